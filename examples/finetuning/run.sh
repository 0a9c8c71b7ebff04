#!/usr/bin/env bash
# From a model of Hugging Face to one that talks: import, conversations, training, chat. docs/finetuning.md explains
# each step.
#
#   examples/finetuning/run.sh [FOLDER]
#
# FOLDER (runs/finetuning unless given) gets all that is made. N names the program if it is not build/cpu/n.

set -euo pipefail
example=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$example/../.." && pwd)
n=$(realpath "${N:-$repo/build/cpu/n}")
mkdir -p "${1:-$repo/runs/finetuning}"
cd "${1:-$repo/runs/finetuning}"

step() { printf '\n== %s\n' "$*"; }

step 'A model of Hugging Face: a tiny one, so that there is nothing to download'
if [[ ! -d hf-model ]]; then
  "$n" tokenizer train "$repo"/docs/{,log/}*.md --vocab-size 1024 -o tokenizer.json
  "$n" prep "$repo"/docs/{,log/}*.md --tokenizer tokenizer.json --valid-tail 0.05 -o base-data
  "$n" train "$example/base.toml"
  "$n" export runs/checkpoints/base hf-model
fi

step 'Import'
[[ -d imported ]] || "$n" import hf-model imported

step 'Conversations'
[[ -d chats ]] || "$n" prep "$example/chats.jsonl" --messages-field messages --tokenizer hf-model -o chats
"$n" data sample chats

step 'Fine-tuning'
"$n" train "$example/finetune.toml" --resume

step 'A conversation'
printf '%s\n' 'What is nmoe?' '/reset' '/system Be brief.' 'What is nmoe?' |
  "$n" chat runs/checkpoints/talks --temperature 0
