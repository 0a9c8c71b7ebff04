#!/usr/bin/env bash
# Builds and runs every test.
#
#   scripts/test.sh           all tests but those labelled slow
#   scripts/test.sh --all     slow ones too
#   scripts/test.sh --asan    the tests that suit it, under AddressSanitizer and UndefinedBehaviorSanitizer
#   scripts/test.sh --tsan    the tests that suit it, under ThreadSanitizer

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=cpu
filter=(--label-exclude '^slow$')
case ${1:-} in
  '') ;;
  --all) filter=() ;;
  # Sanitizers are for our own memory and threads: programs that mostly run other people's code gain nothing.
  --asan) preset=asan filter=(--tests-regex '^(base|tensor|ops|config|data|optim|checkpoint|train)_test$') ;;
  --tsan) preset=tsan filter=(--tests-regex '^(base|ops|checkpoint|track)_test$') ;;
  *) printf 'usage: scripts/test.sh [--all | --asan | --tsan]\n' >&2; exit 2 ;;
esac

scripts/setup.sh --test
cmake --preset "$preset" -DNMOE_BUILD_TESTS=ON
cmake --build --preset "$preset"
ctest --preset "$preset" "${filter[@]}"
