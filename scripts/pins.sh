#!/usr/bin/env bash
# Hashes of what a program computes, to be compared between two builds of it: a change that is not meant to change
# results leaves every line as it was.
#
#   scripts/pins.sh PROGRAM CORPUS WORK          on the CPU
#   scripts/pins.sh PROGRAM CORPUS WORK --cuda   on one GPU, and on two where there are two
#
# PROGRAM is a build of n, CORPUS what scripts/quickstart.sh prepares (data/austen), WORK an empty folder for runs. One
# line per pin: its name, then the hash of all weights after 100 steps, or of what was written.
# NMOE_PINS_FROM names a checkpoint folder of an earlier build, which is then continued too; NMOE_EVAL_DATA the folder of
# evaluation data, of which CORE's losses are pinned item by item.

set -euo pipefail

if (($# < 3)); then
  sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
configs=$(cd "$(dirname "${BASH_SOURCE[0]}")/../configs" && pwd)
program=$(realpath "$1") corpus=$(realpath "$2") device=cpu
[[ ${4:-} != --cuda ]] || device=cuda
mkdir -p "$3"
cd "$3"

# weights_of CHECKPOINT
weights_of() { "$program" checkpoint info "$1" | awk '$1 == "weights" { print $2 }'; }

# pin NAME CONFIG SETTING...: trains for 100 steps.
pin() {
  local name=$1 config=$2 setting settings=()
  shift 2
  for setting in "$@"; do settings+=(--set "$setting"); done
  "$program" train "$config" --set run.name="$name" --set run.device="$device" --set data.path="$corpus" \
    --set train.steps=100 --set train.valid_every=0 ${settings[@]:+"${settings[@]}"} > "$name.log" 2>&1 ||
    { printf '%-28s failed: %s\n' "$name" "$(tail -n 1 "$name.log")"; return 0; }
  printf '%-28s %s\n' "$name" "$(weights_of "runs/checkpoints/$name")"
}

# written NAME COMMAND...: what a command prints.
written() {
  local name=$1
  shift
  printf '%-28s %s\n' "$name" "$("$@" 2> "$name.log" | sha256sum | cut -d' ' -f1)"
}

pin quickstart "$configs/quickstart.toml"
pin quickstart-fp8 "$configs/quickstart.toml" run.precision=fp8
if [[ $device == cpu ]]; then
  pin quickstart-2-ranks "$configs/quickstart.toml" parallel.ranks=2
else
  # The width and the experts of `super`, in fewer layers and with the corpus's vocabulary.
  super=(model.vocab_size=2048 model.num_layers=3 data.seq_len=512 train.batch_seqs=16 train.microbatch_seqs=16)
  pin super "$configs/speedrun/super.toml" "${super[@]}"
  pin super-fp8 "$configs/speedrun/super.toml" "${super[@]}" run.precision=fp8 \
    precision.fp8_weight_gradients=true precision.saved=fp8
  if (($(nvidia-smi -L | wc -l) > 1)); then
    pin super-2-ranks "$configs/speedrun/super.toml" "${super[@]}" train.microbatch_seqs=8 \
      parallel.ranks=2 parallel.logical_shards=2
  fi
fi
if [[ -n ${NMOE_PINS_FROM:-} ]]; then
  mkdir -p runs/checkpoints
  cp -r "$NMOE_PINS_FROM" runs/checkpoints/continued
  "$program" train "$configs/quickstart.toml" --set run.name=continued --set run.device="$device" \
    --set data.path="$corpus" --set train.valid_every=0 --set train.steps=150 --resume > continued.log 2>&1
  printf '%-28s %s\n' continued "$(weights_of runs/checkpoints/continued)"
fi
written generated "$program" generate runs/checkpoints/quickstart --device "$device" --prompt 'She had' --max-tokens 1000 \
  --context 1100 --temperature 0.8 --seed 7
if [[ -n ${NMOE_EVAL_DATA:-} ]]; then
  "$program" eval runs/checkpoints/quickstart --device "$device" --tasks core --data "$NMOE_EVAL_DATA" --limit 60 \
    --context 1024 --out core > core.log 2>&1
  written core sed 's/"seconds":[^,}]*//' core/items.jsonl
fi
