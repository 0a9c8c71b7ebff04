#!/usr/bin/env bash
# Makes the corpus that configs/speedrun/ train on.
#
#   scripts/corpus_speedrun.sh packages              source code and English prose out of Debian packages (150 MB)
#   scripts/corpus_speedrun.sh code | prose          one of the two
#   scripts/corpus_speedrun.sh FILE.parquet...       dumps that you have, with the text in a column `text`, such as
#                                                    FineWeb-Edu's
#
#   --out DIR          where to (${NMOE_DATA:-data}/speedrun, which those configurations read)
#   --tokenizer T      as `n prep` takes it. Otherwise packages get a byte-level BPE learned from them, of as many ids as
#                      configs/speedrun/super.toml has, for GPT-2's spends a token on every space of an indentation; and
#                      dumps get GPT-2's ids, as the field's comparisons have them.
#
# Packages are downloaded and unpacked but not installed; no root. About 60 M tokens: Go, Rust and Python sources; the
# manuals of Linux, Python and Perl, dictionaries, essays, novels. The same versions of the packages, which
# SOURCE.txt names, give the same corpus. One document in 200 is held out for validation.

set -euo pipefail

readonly vocab_size=50304
# Of the names that match, the newest is taken.
readonly code_packages=('golang-[0-9.]+-src' 'rust(-[0-9.]+)?-src' 'libpython3[.][0-9]+-stdlib'
  'libpython3[.][0-9]+-testsuite')
readonly prose_packages=('linux-doc(-[0-9.]+)?' 'python3[.][0-9]+-doc' dict-gcide dict-foldoc wordnet-base anarchism
  perl-doc r-cran-janeaustenr)
# Tables, generated files and copies of files are no text to learn from.
readonly filters=(--min-chars 200 --max-chars 400000 --max-symbols 0.4 --max-repeated-lines 0.5 --dedup --near-dedup)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
temp_dir=''
trap 'if [[ -n $temp_dir ]]; then rm -rf "$temp_dir"; fi' EXIT

say() { printf 'corpus: %s\n' "$*"; }

# die MESSAGE REMEDY
die() {
  printf 'corpus: error: %s\n' "$1" >&2
  printf 'corpus: remedy: %s\n' "$2" >&2
  exit 1
}

usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

# find_program: prints the newest `n` that was built here.
find_program() {
  local program
  program=$(ls -t "$root"/build/*/n 2> /dev/null | head -n 1)
  [[ -n $program ]] || die 'the program is not built' 'run scripts/setup.sh, cmake --preset cpu, cmake --build --preset cpu'
  printf '%s\n' "$program"
}

# Lists of packages of our own where the machine's are absent: refreshing those takes root.
apt_options=(-o APT::Sandbox::User=)
refresh_lists() {
  say 'refreshing package lists (a private copy)'
  mkdir -p "$temp_dir/apt/lists/partial" "$temp_dir/apt/archives/partial"
  apt_options+=(-o "Dir::State::lists=$temp_dir/apt/lists" -o "Dir::Cache=$temp_dir/apt")
  apt-get -q "${apt_options[@]}" update > "$temp_dir/apt.log" 2>&1 || {
    cat "$temp_dir/apt.log" >&2
    die 'apt-get cannot refresh package lists' 'check the network'
  }
}

# newest PATTERN: prints the package of that name, or nothing.
newest() { apt-cache "${apt_options[@]}" pkgnames | grep -Ex "$1" | sort -V | tail -n 1 || true; }

# fetch KIND PATTERN...: unpacks packages into $temp_dir/KIND/NAME and adds to $temp_dir/SOURCE.txt.
fetch() {
  local kind=$1 pattern name deb
  shift
  mkdir -p "$temp_dir/debs" "$temp_dir/$kind"
  for pattern; do
    name=$(newest "$pattern")
    if [[ -z $name ]]; then
      say "left out, for this system has no such package: $pattern"
      continue
    fi
    (cd "$temp_dir/debs" && apt-get -q "${apt_options[@]}" download "$name" > "$temp_dir/apt.log" 2>&1) || {
      cat "$temp_dir/apt.log" >&2
      die "apt-get could not download $name" 'check the network'
    }
    deb=$(ls "$temp_dir/debs/${name}"_*.deb)
    dpkg-deb -x "$deb" "$temp_dir/$kind/$name"
    printf '%s  %s %s  %s\n' "$(sha256sum "$deb" | cut -d' ' -f1)" "$name" "$(dpkg-deb -f "$deb" Version)" "$kind" \
      >> "$temp_dir/SOURCE.txt"
  done
}

from_packages() {
  local kind files=()
  [[ ! -e $out ]] || rmdir "$out" 2> /dev/null ||
    die "$out exists and is not a finished corpus" 'name another folder with --out, or remove this one'
  command -v apt-get dpkg-deb python3 > /dev/null ||
    die 'packages take apt-get, dpkg-deb and python3' 'run this on Debian or Ubuntu, or give Parquet files'
  [[ -n $(newest 'perl-doc') ]] || refresh_lists
  printf 'Texts out of these packages, whose copyright files say on what terms:\n' > "$temp_dir/SOURCE.txt"
  for kind; do
    local -n packages=${kind}_packages
    fetch "$kind" "${packages[@]}"
    python3 "$root/scripts/corpus_packages.py" "$kind" "$temp_dir/$kind" "$temp_dir/$kind.jsonl" "$temp_dir/$kind.sample.txt" ||
      die "cannot read the texts of $kind" 'a package has changed: adapt scripts/corpus_packages.py'
    files+=("$temp_dir/$kind.jsonl")
  done
  if [[ -z $tokenizer ]]; then
    tokenizer=$temp_dir/tokenizer.json
    # Without marks of turns: entries of the leaderboard were measured on this vocabulary.
    "$n" tokenizer train "$temp_dir"/*.sample.txt --vocab-size "$vocab_size" --no-chatml --out "$tokenizer"
  fi
  "$n" prep "${files[@]}" --id-field id --tokenizer "$tokenizer" --dataset speedrun --valid-fraction 0.005 \
    "${filters[@]}" --out "$temp_dir/corpus"
  mv "$temp_dir/SOURCE.txt" "$temp_dir/corpus/"
  mv -T "$temp_dir/corpus" "$out"
}

# A preparation that was interrupted goes on.
from_parquet() {
  if [[ -z $tokenizer ]]; then
    "$root/scripts/setup.sh" --tokenizers
    tokenizer=gpt2:${NMOE_DEPS_DIR:-$root/third_party}/tokenizers/r50k_base.tiktoken
  fi
  "$n" prep "$@" --tokenizer "$tokenizer" --dataset speedrun --valid-fraction 0.005 --min-chars 200 --dedup --out "$out"
  { printf 'Texts out of these files:\n' && sha256sum "$@"; } > "$out/SOURCE.txt"
}

out=${NMOE_DATA:-$root/data}/speedrun tokenizer='' inputs=()
while (($# > 0)); do
  case $1 in
    --out | --tokenizer)
      (($# > 1)) || usage
      if [[ $1 == --out ]]; then out=$2; else tokenizer=$2; fi
      shift
      ;;
    -*) usage ;;
    *) inputs+=("$1") ;;
  esac
  shift
done
((${#inputs[@]} > 0)) || usage
case ${inputs[*]} in
  packages) kinds=(code prose) ;;
  code | prose) kinds=("${inputs[0]}") ;;
  *)
    kinds=()
    for input in "${inputs[@]}"; do
      [[ $input == *.parquet ]] || usage
      [[ -f $input ]] || die "$input does not exist" 'name Parquet files'
    done
    ;;
esac

n=$(find_program)
# SOURCE.txt is written last.
if [[ ! -f $out/SOURCE.txt ]]; then
  mkdir -p "$(dirname "$out")" || die "cannot create $(dirname "$out")" 'name a writable folder with --out'
  # Beside the corpus, so that it can be renamed into place; apt changes folders, so absolute.
  temp_dir=$(mktemp -d "$(realpath "$(dirname "$out")")/.speedrun.XXXXXX") ||
    die "cannot write to $(dirname "$out")" 'name another with --out'
  if ((${#kinds[@]} > 0)); then from_packages "${kinds[@]}"; else from_parquet "${inputs[@]}"; fi
fi
cat "$out/SOURCE.txt"
"$n" data info "$out"
