#!/usr/bin/env bash
# How much faster nmoe trains than PyTorch: the same model, shapes, batch, AdamW, fp32 and threads.
#
#   bench/torch_ratio.sh [CONFIG] [--set KEY=VALUE ...]     default: configs/bench/small_moe.toml
#
# Three variants take turns, one process a turn, and medians are compared:
#   nmoe                 build/cpu/n (or $NMOE_PROGRAM)
#   torch, as installed  Debian's python3-torch with libopenblas0-openmp, told to use two threads
#   torch, tuned         the same with a malloc that keeps freed memory, and with AVX-512 kernels where
#                        OpenBLAS has them but does not know the processor
#
# It needs: apt-get install --no-install-recommends python3-torch libopenblas0-openmp

set -euo pipefail

readonly rounds=3
readonly warmup=2
readonly steps=6
readonly threads=2

readonly python=/usr/bin/python3
readonly openblas_dir=/usr/lib/x86_64-linux-gnu/openblas-openmp
readonly torch_packages='python3-torch libopenblas0-openmp'

repo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=${NMOE_PROGRAM:-$repo_root/build/cpu/n}
results=''
trap 'if [[ -n $results ]]; then rm -f "$results"; fi' EXIT

# die MESSAGE REMEDY
die() {
  printf 'torch_ratio: error: %s\n' "$1" >&2
  printf 'torch_ratio: remedy: %s\n' "$2" >&2
  exit 2
}

# What a caller's environment says about BLAS, OpenMP or malloc would bend the comparison.
clean_environment() {
  local name
  for name in $(compgen -e); do
    case $name in
      OPENBLAS_* | OMP_* | GOMP_* | KMP_* | MKL_* | DNNL_* | ONEDNN_* | ATEN_* | MALLOC_* | GLIBC_TUNABLES | LD_*)
        unset "$name"
        ;;
    esac
  done
}

# measure VARIANT COMMAND... : keeps the JSON that the command prints, and shows what a step took.
measure() {
  local variant=$1 json ms
  shift
  json=$("$@")
  printf '{"variant": "%s", "result": %s}\n' "$variant" "$json" >> "$results"
  ms=${json#*'"ms_per_step":'}
  printf '%-20s %s ms/step\n' "$variant" "${ms%%,*}"
}

main() {
  local config=$repo_root/configs/bench/small_moe.toml
  case ${1:---set} in
    --set) ;;
    -*)
      sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
    *)
      config=$1
      shift
      ;;
  esac
  local model=("$config" "$@")

  clean_environment
  [[ -x $program ]] || die "no $program" "cmake --preset cpu && cmake --build build/cpu --target n"
  if [[ ! -e $openblas_dir/libblas.so.3 ]] || ! "$python" -c 'import torch' 2> /dev/null; then
    die "no PyTorch with OpenBLAS to compare with" \
      "as root, on Debian 12: apt-get install --no-install-recommends $torch_packages"
  fi

  results=$(mktemp)
  local nmoe=("$program" bench train "${model[@]}" --set "run.threads=$threads"
    --warmup "$warmup" --steps "$steps" --json)
  # For these processes alone, openblas-openmp is the BLAS, whatever the system's alternatives say: beside
  # torch's OpenMP threads, those of openblas-pthread make two threads slower than one.
  local torch=(env "LD_LIBRARY_PATH=$openblas_dir" "$python" "$repo_root/bench/torch_moe.py"
    --threads "$threads" time "${model[@]}" --program "$program" --warmup "$warmup" --steps "$steps")
  local tuning=(MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184)

  local round
  for ((round = 1; round <= rounds; ++round)); do
    printf 'round %d of %d\n' "$round" "$rounds"
    measure 'nmoe' "${nmoe[@]}"
    measure 'torch, as installed' "${torch[@]}"
    if ((round == 1)) && grep -q avx512f /proc/cpuinfo && grep -q '"blas_vectors": "AVX2"' "$results"; then
      tuning+=(OPENBLAS_CORETYPE=SKYLAKEX)
    fi
    measure 'torch, tuned' env "${tuning[@]}" "${torch[@]}"
  done
  "$python" "$repo_root/bench/torch_report.py" "$results"
}

main "$@"
