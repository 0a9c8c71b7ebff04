#!/usr/bin/env bash
# Kills, full and failing disks and power loss at every call of train, prep, import and export that changes files
# (tests/faults/): more than 9,000 cases, some 40 minutes of one core.
#
#   scripts/faults.sh [--jobs N] [--out FOLDER] [--binary FILE]
#
# --jobs processes share the cases (as many as there are cores). FOLDER (build/faults) gets what each said. Ends with a
# line for each command and fault: how many calls there are, cases, and how many of these failed; 1 when any did.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  printf 'usage: scripts/faults.sh [--jobs N] [--out FOLDER] [--binary FILE]\n' >&2
  exit 2
}
jobs=$(nproc) out=build/faults binary=''
while (($#)); do
  case $1 in
    --jobs | --out | --binary)
      (($# > 1)) || usage
      declare "${1#--}=$2"
      shift 2
      ;;
    *) usage ;;
  esac
done

if [[ -z $binary ]]; then
  scripts/setup.sh --test
  cmake --preset cpu -DNMOE_BUILD_TESTS=ON
  cmake --build --preset cpu --target faults_test
  binary=build/cpu/tests/faults/faults_test
fi

mkdir -p "$out"
rm -f "$out"/part-*.log
export jobs out binary
failed=0
# shellcheck disable=SC2016
seq "$jobs" | xargs -P "$jobs" -I{} bash -c 'NMOE_FAULTS={}/$jobs "$binary" > "$out/part-{}.log" 2>&1' || failed=1

# Lines such as "train: kill: 622 calls, 39 cases, 0 failed".
cat "$out"/part-*.log | awk -F'[:,] ' '
  /^[a-z ]+: .*: [0-9]+ calls, [0-9]+ cases, [0-9]+ failed$/ {
    key = sprintf("%-23s %-26s", $1, $2)
    if (!(key in cases)) order[++keys] = key
    if ($3 + 0 > calls[key]) calls[key] = $3 + 0
    cases[key] += $4
    failed[key] += $5
    all += $4
    all_failed += $5
  }
  END {
    for (i = 1; i <= keys; ++i) {
      printf "%s %5d calls %6d cases %5d failed\n", order[i], calls[order[i]], cases[order[i]], failed[order[i]]
    }
    printf "%-50s %11s %6d cases %5d failed\n", "all", "", all, all_failed
  }' | tee "$out/table.txt"
if ((failed)); then
  printf 'failed: see %s\n' "$(grep -l -E 'FAILED|Check failed' "$out"/part-*.log | tr '\n' ' ')"
  exit 1
fi
