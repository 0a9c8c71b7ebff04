#!/usr/bin/env bash
# From nothing to a trained Mixture-of-Experts model and a paragraph it wrote: installs what is missing, builds,
# prepares Jane Austen's novels, trains configs/quickstart.toml on the CPU. A second run skips what is done.
#
# The text: six novels (public domain) out of Debian's package r-cran-janeaustenr (MIT), one of them held out for
# validation. scripts/corpus_austen.sh prints the details.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly n=build/cpu/n
readonly text=data/austen-text
readonly corpus=data/austen
readonly tokenizer=data/austen-tokenizer.json
readonly checkpoints=runs/checkpoints/quickstart
readonly vocab_size=2048

step() { printf '\n== %s (at %d s)\n' "$*" "$SECONDS"; }

# bits_per_byte COMPRESSED_BYTES TEXT_BYTES
bits_per_byte() { awk -v c="$1" -v t="$2" 'BEGIN { printf "%.3f", 8 * c / t }'; }

step 'Set-up'
scripts/setup.sh --quickstart

step 'Build'
[[ -f build/cpu/build.ninja ]] || cmake --preset cpu -DNMOE_BUILD_TESTS=OFF > /dev/null
# Nothing was compiled before: no preprocessing of each file to look for it in ccache.
CCACHE_DEPEND=1 cmake --build --preset cpu --target n
"$n" --version

step 'Corpus'
scripts/corpus_austen.sh "$text"
if [[ ! -f $tokenizer ]]; then
  "$n" tokenizer train "$text/train" --vocab-size "$vocab_size" --out "$tokenizer"
fi
if [[ ! -f $corpus/train/manifest.json ]]; then
  "$n" prep "$text/train" --valid "$text/valid" --tokenizer "$tokenizer" --dataset austen --out "$corpus"
fi

step 'Training'
result=$("$n" train configs/quickstart.toml --resume)
printf '%s\n' "$result"

step 'A paragraph'
"$n" generate "$checkpoints" --prompt 'She had always been' --max-tokens 160 --temperature 0.7 --seed 7

step 'Bits per byte on the held-out novel'
held_out=$(cat "$text"/valid/*.txt | wc -c)
model=$(sed -n 's/.* \([0-9.]*\) bits per byte.*/\1/p' <<< "$result" | tail -n 1)
printf '%-8s %s\n' model "$model"
printf '%-8s %s\n' 'gzip -9' "$(bits_per_byte "$(cat "$text"/valid/*.txt | gzip -9 | wc -c)" "$held_out")"
printf '%-8s %s\n' 'xz -9' "$(bits_per_byte "$(cat "$text"/valid/*.txt | xz -9 | wc -c)" "$held_out")"
