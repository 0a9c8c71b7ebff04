#!/usr/bin/env bash
# Fuzzes every reader of what others write (tests/fuzz/targets.cpp) with libFuzzer, under AddressSanitizer and
# UndefinedBehaviorSanitizer.
#
#   scripts/fuzz.sh [--seconds N] [--jobs N] [--workers N] [--out FOLDER] [--binary FILE] [TARGET...]
#
# N seconds each (600; 3600 for a long run), --jobs targets at once (1), each by --workers processes (1) that share what
# they find; all targets unless some are named. In FOLDER (build/fuzz/out): corpus/TARGET, the inputs that reach something
# new, from which the next run goes on; TARGET-crash-..., -timeout- (an input that takes 25 s), -oom- (more than 2 GB, or
# one allocation of more than 2.5 GB) and -leak-..., which go into tests/fuzz/corpus/TARGET with their mending;
# TARGET.report, what was said of them; TARGET.log. After a find the target goes on.
# Ends with a line a target: executions, edges of the code and features (edges by how often, compared values) that were
# reached, inputs kept, the most memory that a process had, and what was found. 1 when anything was.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  printf 'usage: scripts/fuzz.sh [--seconds N] [--jobs N] [--workers N] [--out FOLDER] [--binary FILE] [TARGET...]\n' >&2
  exit 2
}
seconds=600 jobs=1 workers=1 out=build/fuzz/out binary='' targets=()
while (($#)); do
  case $1 in
    --seconds | --jobs | --workers | --out | --binary)
      (($# > 1)) || usage
      declare "${1#--}=$2"
      shift 2
      ;;
    -*) usage ;;
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

# One process after the other until the time is over: each ends at its first find. An input is at most 64 KiB: what a
# reader makes of more, tests say. A zstd file may ask for a window of 2 GiB, of which only what is written takes memory.
work() {
  local target=$1 log=$out/$1-$2.log tries=0 left code
  for ((; (left = end - SECONDS) > 0 && tries < 20; ++tries)); do
    code=0
    NMOE_FUZZ_TARGET=$target timeout --kill-after=10 $((left + 120)) "$binary" -max_total_time="$left" -timeout=25 \
      -rss_limit_mb=2048 -malloc_limit_mb=2560 -max_len=65536 -print_final_stats=1 -artifact_prefix="$out/$target-" \
      "$out/corpus/$target" "tests/fuzz/corpus/$target" > "$log.last" 2>&1 || code=$?
    cat "$log.last" >> "$log"
    if ((code == 0)); then break; fi
    printf '==== ended with %d\n' "$code" | tee -a "$log" >> "$out/$target.report"
    grep -v '^#[0-9]' "$log.last" | tail -n 100 >> "$out/$target.report"
  done
  rm -f "$log.last"
}

# One line about a target, of what its processes said.
fuzz() {
  local target=$1 end=$((SECONDS + seconds)) worker finds
  mkdir -p "$out/corpus/$target"
  rm -f "$out/$target"-*.log "$out/$target.report"
  for ((worker = 1; worker <= workers; ++worker)); do work "$target" "$worker" & done
  wait
  cat "$out/$target"-*.log > "$out/$target.log"
  rm -f "$out/$target"-*.log
  finds=$(find "$out" -maxdepth 1 -name "$target-*" | wc -l)
  awk -v target="$target" -v seconds="$((workers * seconds))" -v finds="$finds" \
    -v inputs="$(find "$out/corpus/$target" -type f | wc -l)" '
    / cov: / {
      for (i = 1; i < NF; ++i) {
        if ($i == "cov:" && $(i + 1) > edges) edges = $(i + 1)
        if ($i == "ft:" && $(i + 1) > features) features = $(i + 1)
      }
    }
    /^stat::number_of_executed_units:/ { executions += $2 }
    /^stat::peak_rss_mb:/ && $2 > memory { memory = $2 }
    /^==== ended with/ { ++failed }
    END {
      result = finds > 0 ? finds " FOUND" : failed > 0 ? failed " ENDED EARLY" : "nothing found"
      printf "%-20s %6d s %10d executions %6d edges %7d features %6d inputs %5d MB  %s\n",
        target, seconds, executions, edges, features, inputs, memory, result
    }' "$out/$target.log" | tee "$out/$target.line"
}
export -f fuzz work
export seconds workers out binary

mkdir -p "$out"
rm -f "$out"/*.line
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz {}' > /dev/null
cat "$out"/*.line | tee "$out/table.txt"
[[ $(grep -c 'nothing found$' "$out/table.txt") == "${#targets[@]}" ]]
