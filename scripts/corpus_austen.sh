#!/usr/bin/env bash
# Makes a small corpus of real English: Jane Austen's six novels, five to train on and one held out.
#
#   scripts/corpus_austen.sh OUT_DIR     writes OUT_DIR/train/*.txt, OUT_DIR/valid/*.txt, SOURCE.txt
#
# The texts come out of the package r-cran-janeaustenr (Debian main, Ubuntu universe), which is
# downloaded and unpacked but not installed: no root, no R. Python's standard library decodes it.
# A second run on a finished OUT_DIR only shows what is there.

set -euo pipefail

readonly package=r-cran-janeaustenr

script_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
temp_dir=''
trap 'if [[ -n $temp_dir ]]; then rm -rf "$temp_dir"; fi' EXIT

# die MESSAGE REMEDY
die() {
  printf 'corpus: error: %s\n' "$1" >&2
  printf 'corpus: remedy: %s\n' "$2" >&2
  exit 1
}

have() { command -v "$1" > /dev/null 2>&1; }

# download_package: puts the .deb into $temp_dir/deb. As root apt would hand the download to a user
# of its own, who cannot write there; the package is verified all the same.
download_package() {
  mkdir -p "$temp_dir/deb" "$temp_dir/apt/lists/partial" "$temp_dir/apt/archives/partial"
  cd "$temp_dir/deb"
  local apt_get=(apt-get -q -o APT::Sandbox::User=)
  if "${apt_get[@]}" download "$package" > "$temp_dir/apt.log" 2>&1; then
    return
  fi
  # The machine's package lists are absent or stale. Refreshing them takes root; a private copy of
  # them does not.
  printf 'corpus: refreshing package lists (a private copy)\n'
  apt_get+=(-o "Dir::State::lists=$temp_dir/apt/lists" -o "Dir::Cache=$temp_dir/apt")
  if ! "${apt_get[@]}" update >> "$temp_dir/apt.log" 2>&1 ||
    ! "${apt_get[@]}" download "$package" >> "$temp_dir/apt.log" 2>&1; then
    cat "$temp_dir/apt.log" >&2
    die "apt-get could not download $package" \
      "check the network; the package is in Debian's main and Ubuntu's universe"
  fi
}

# write_source DEB UNPACKED: where the texts are from, and on what terms.
write_source() {
  local deb=$1 copyright=$2/usr/share/doc/$package/copyright
  printf 'Jane Austen, six novels: public domain (the author died in 1817).\n'
  printf 'Taken from the package %s %s, sha256 of the .deb:\n' \
    "$package" "$(dpkg-deb -f "$deb" Version)"
  sha256sum "$deb" | cut -d' ' -f1
  printf 'Source package: %s\n' "$(dpkg-deb -f "$deb" Source | grep . || echo "$package")"
  printf 'Licence of the package: %s; its copyright file follows.\n\n' \
    "$(awk '/^License:/ { print $2; exit }' "$copyright")"
  cat "$copyright"
}

# show_corpus: the head of SOURCE.txt and the size of each novel.
show_corpus() {
  sed '/^$/,$d' "$1/SOURCE.txt"
  (cd "$1" && wc -c train/*.txt valid/*.txt)
}

main() {
  if (($# != 1)) || [[ $1 == -* ]]; then
    sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
  fi
  local out_dir parent
  out_dir=$(realpath -m -- "$1")
  parent=$(dirname "$out_dir")

  # SOURCE.txt arrives with the texts, in one rename.
  if [[ -f $out_dir/SOURCE.txt ]]; then
    show_corpus "$out_dir"
    return
  fi
  if [[ -e $out_dir ]]; then
    rmdir "$out_dir" 2> /dev/null ||
      die "$out_dir exists and is not a finished corpus" "name another folder, or remove this one"
  fi
  if ! have apt-get || ! have dpkg-deb; then
    die "this system has no apt" "run this on Debian or Ubuntu, and copy OUT_DIR"
  fi
  have python3 || die "no python3" "install python3-minimal"

  # Beside OUT_DIR, so that the finished corpus can be renamed into place.
  mkdir -p "$parent" || die "cannot create $parent" "name a writable folder"
  temp_dir=$(mktemp -d "$parent/.austen.XXXXXX") ||
    die "cannot write to $parent" "name a writable folder"

  (download_package)
  local debs=("$temp_dir"/deb/*.deb)
  dpkg-deb -x "${debs[0]}" "$temp_dir/unpacked"
  mkdir "$temp_dir/corpus"
  python3 "$script_dir/corpus_austen.py" \
    "$temp_dir/unpacked/usr/lib/R/site-library/janeaustenr/data" "$temp_dir/corpus" ||
    die "cannot decode ${debs[0]##*/}" "the package has changed: adapt scripts/corpus_austen.py"
  write_source "${debs[0]}" "$temp_dir/unpacked" > "$temp_dir/corpus/SOURCE.txt"
  mv -T "$temp_dir/corpus" "$out_dir"
  show_corpus "$out_dir"
}

main "$@"
