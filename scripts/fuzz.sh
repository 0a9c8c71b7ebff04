#!/usr/bin/env bash
# Fuzzes every reader of what others write (tests/fuzz/targets.cpp) with libFuzzer, under AddressSanitizer and
# UndefinedBehaviorSanitizer.
#
#   scripts/fuzz.sh [--seconds N] [--jobs N] [--binary FILE] [TARGET...]
#
# N seconds each (600; 3600 for a long run), --jobs of them at once (1), all of them unless TARGETs are named. Ends at a
# crash, a hang (an input that takes 25 s), a leak or more than 2 GB, and says where the input lies: it goes into
# tests/fuzz/corpus/TARGET with its mending. Else one line a target: executions, edges of the code that were reached, of
# how many, inputs that reach something new, the most memory in use. Those inputs stay in build/fuzz/corpus, for the next
# run.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=600 jobs=1 binary='' targets=()
while (($#)); do
  case $1 in
    --seconds) seconds=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    --binary) binary=$2; shift 2 ;;
    -*) printf 'usage: scripts/fuzz.sh [--seconds N] [--jobs N] [--binary FILE] [TARGET...]\n' >&2; exit 2 ;;
    *) targets+=("$1"); shift ;;
  esac
done

if [[ -z $binary ]]; then
  scripts/setup.sh --fuzz
  cmake --preset fuzz -DNMOE_BUILD_TESTS=ON
  cmake --build --preset fuzz --target fuzz
  binary=build/fuzz/tests/fuzz/fuzz
fi
if ((${#targets[@]} == 0)); then
  mapfile -t targets < <(ls tests/fuzz/corpus)
fi

# An input is at most 64 KiB: what a reader makes of more, tests say.
fuzz() {
  local target=$1 folder=build/fuzz/corpus/$1 log=build/fuzz/$1.log
  mkdir -p "$folder"
  if ! NMOE_FUZZ_TARGET=$target "$binary" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=2048 -max_len=65536 \
    -print_final_stats=1 -artifact_prefix="build/fuzz/$target-" "$folder" "tests/fuzz/corpus/$target" > "$log" 2>&1; then
    tail -n 60 "$log" >&2
    printf '%-20s FAILED: %s\n' "$target" "$log"
    return 1
  fi
  printf '%-20s %9d executions, %6d of %s edges, %5d inputs, %4d MB\n' "$target" \
    "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
    "$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)" \
    "$(sed -n 's/.*Loaded 1 modules *(\([0-9]*\) inline 8-bit counters.*/\1/p' "$log")" \
    "$(find "$folder" -type f | wc -l)" \
    "$(sed -n 's/^stat::peak_rss_mb: *//p' "$log")"
}
export -f fuzz
export seconds binary
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz {}'
