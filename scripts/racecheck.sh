#!/bin/bash
# racecheck.sh [FILTER]: runs tests of CUDA operations (their names as --gtest_filter has them) under compute-sanitizer's
# racecheck, which looks for races in shared memory, and fails if it names one that is not in the list of those that were
# proven false, tests/ops/cuda/racecheck_false.txt. Needs a GPU and a build of the preset hopper. All take hours: the
# default is small cases of the kernels that synchronise by themselves.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly filter=${1:-'*WeightPieces*/0_*:CudaGroupedLinear*:CudaAttention*:CudaFp8*:CudaHeadLoss*:CudaRmsNorm*:CudaEmbedding*'}
readonly tests=build/hopper/tests/ops/ops_cuda_test
report=$(mktemp /tmp/racecheck.XXXXXX)
readonly report
trap 'rm -f "$report"' EXIT

[[ -x $tests ]] || { echo "$tests is not there: cmake --preset hopper && cmake --build --preset hopper" >&2; exit 2; }
command -v compute-sanitizer > /dev/null || { echo "compute-sanitizer is not there: it comes with CUDA" >&2; exit 2; }
# Its own exit code says whether there is any race, or whether tests failed: the report and the tests are looked at here.
compute-sanitizer --tool racecheck --racecheck-report analysis --print-limit 1000000 --log-file "$report" \
  "$tests" --gtest_filter="$filter" --gtest_brief=1
python3 scripts/racecheck_compare.py "$report" tests/ops/cuda/racecheck_false.txt
