#!/usr/bin/env bash
# Trains with a checkpoint every few seconds, and serves a checkpoint to clients that never stop, side by side for an
# hour: neither may grow. Says the resident size of each, as the median over the second quarter of the time and over the
# last, and fails when they are more than 1 % apart.
#
#   scripts/soak.sh [SECONDS [PROGRAM]]   3600 and build/cpu/n

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-3600}
n=$(realpath "${2:-build/cpu/n}")

work=$(mktemp -d)
jobs=()
# shellcheck disable=SC2317
finish() {
  if ((${#jobs[@]} > 0)); then kill "${jobs[@]}" 2> /dev/null || true; fi
  wait || true
  rm -rf "$work"
}
trap finish EXIT
cd "$work"

for i in {1..3000}; do printf 'the cat sat by the old river %d and it rained.\n' "$((i * 7919 % 1000))"; done > train.txt
head -n 100 train.txt > valid.txt
cat > soak.toml << 'END'
[run]
name = "soak"
threads = 1
[model]
dim = 64
num_layers = 3
num_heads = 4
num_dense_layers = 1
dense_dim = 128
[model.moe]
num_experts = 16
top_k = 4
expert_dim = 32
[data]
path = "data"
seq_len = 64
[optim]
lr = 1e-3
experts = { optimizer = "muon", lr = 1e-3 }
[optim.schedule]
warmup = 10
hold = 1000000
decay = 1000000
[train]
steps = 1500000
batch_seqs = 8
log_every = 20
valid_every = 500
[checkpoint]
every = 100
END
"$n" prep train.txt --valid valid.txt --out data > /dev/null
"$n" train soak.toml --set run.name=served --set train.steps=20 > /dev/null 2>&1

"$n" train soak.toml > train.log 2>&1 &
train=$!
jobs+=("$train")
"$n" serve runs/checkpoints/served --port 0 --threads 1 2> serve.log &
serve=$!
jobs+=("$serve")
port=''
for _ in {1..100}; do
  port=$(sed -n 's/.*at http:[^ ]*:\([0-9]*\) .*/\1/p' serve.log)
  if [[ -n $port ]]; then break; fi
  sleep 0.1
done

# Prompts of many lengths, with and without streaming, wrong ones, and clients that leave.
ask() {
  exec 3<> "/dev/tcp/127.0.0.1/$port"
  printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
    "${#1}" "$1" >&3
  if [[ ${2:-} != leave ]]; then cat <&3 > /dev/null; fi
  exec 3>&-
}
clients() {
  for ((i = 0; ; ++i)); do
    local prompt
    prompt=$(printf 'the river %.0s' $(seq $((i % 5 + 1))))
    ask "{\"prompt\": \"$prompt\", \"max_tokens\": $((i % 7 * 3 + 1)), \"seed\": $i}"
    ask "{\"prompt\": \"$prompt\", \"max_tokens\": 8, \"stream\": true}"
    ask "{\"prompt\": \"$prompt\", \"max_tokens\": 8, \"stream\": true}" leave
    ask "{\"prompt\": $i"
    sleep 0.2
  done
}
clients 2> clients.log &
jobs+=($!)

resident() { sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$1/status"; }
begin=$SECONDS
while ((SECONDS - begin < seconds)); do
  printf '%d %d %d\n' "$((SECONDS - begin))" "$(resident "$train")" "$(resident "$serve")" >> sizes.txt
  sleep 2
done

# median COLUMN FROM TO, of the times from FROM to TO.
median() {
  awk -v c="$1" -v from="$2" -v to="$3" '$1 >= from && $1 < to { print $c }' sizes.txt | sort -n |
    awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
failed=0
# report NAME COLUMN
report() {
  local early late
  early=$(median "$2" $((seconds / 4)) $((seconds / 2)))
  late=$(median "$2" $((seconds * 3 / 4)) "$seconds")
  awk -v name="$1" -v early="$early" -v late="$late" 'BEGIN {
    change = 100 * (late - early) / early
    printf "%-6s %.1f MB, then %.1f MB: %+.2f %%\n", name, early / 1024, late / 1024, change
    exit change > 1 || change < -1 }' || failed=1
}
printf '%d s; %s steps, %d checkpoints kept, %d requests answered\n' "$seconds" \
  "$(sed -n 's/^train step \([0-9]*\).*/\1/p' train.log | tail -n 1)" \
  "$(find runs/checkpoints/soak -maxdepth 1 -name 'step_*' | wc -l)" "$(grep -c completions serve.log)"
report train 2
report serve 3
kill "$train" "$serve"
wait "$train" && wait "$serve"
exit "$failed"
