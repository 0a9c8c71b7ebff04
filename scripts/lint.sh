#!/usr/bin/env bash
# Checks the layout of the code (clang-format) and reads it for mistakes (clang-tidy).
#
#   scripts/lint.sh            layout of every file
#   scripts/lint.sh --tidy     clang-tidy too, over src/ (minutes); needs the preset cpu configured
#   scripts/lint.sh --fix      rewrites the layout in place

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t files < <(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
case ${1:-} in
  '') clang-format --dry-run --Werror "${files[@]}" ;;
  --fix) clang-format -i "${files[@]}" ;;
  --tidy)
    clang-format --dry-run --Werror "${files[@]}"
    git ls-files 'src/*.cpp' | grep -v '^src/ops/cuda/' |
      xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/cpu --extra-arg=-Wno-unknown-warning-option
    ;;
  *) printf 'usage: scripts/lint.sh [--tidy | --fix]\n' >&2; exit 2 ;;
esac
