#!/usr/bin/env bash
# Installs what the CPU preset needs to build, on Debian 12 or Ubuntu 24.04 (x86-64) or newer.
#
#   scripts/setup.sh                compiler, build tools, libraries, DuckDB, uPlot
#   scripts/setup.sh --quickstart   the same, and what scripts/quickstart.sh runs beside the program
#   scripts/setup.sh --test         build needs, and what tests, benches and the linters need
#   scripts/setup.sh --fuzz         the same, and clang with what its fuzzers need, for scripts/fuzz.sh
#   scripts/setup.sh --browser      test needs, and what the test of n viz's page in a browser needs (400 MB)
#   scripts/setup.sh --tokenizers   only OpenAI's token ranks (6 MB), for tests and for training with them
#   scripts/setup.sh --cuda         only looks for a usable CUDA toolkit; installs nothing
#
# Run it as yourself: it asks sudo for the packages alone, so that third_party/ stays yours.
# A second run finds everything in place and returns at once.
#
# DuckDB is in neither distribution, so its library and header come out of two packages of npm's registry, into
# third_party/duckdb/{include,lib}. uPlot, which draws curves in a page, comes out of one more, into third_party/uplot;
# so do token ranks, into third_party/tokenizers/*.tiktoken, and axe-core, by which a test judges a page, into
# third_party/axe.
# NMOE_DEPS_DIR names another folder than third_party/.

set -euo pipefail

readonly build_packages=(
  g++ cmake ninja-build pkgconf ccache git
  libtomlplusplus-dev libcli11-dev libfmt-dev nlohmann-json3-dev
  libsqlite3-dev libpcre2-dev libutf8proc-dev libssl-dev
  libsimdjson-dev libxxhash-dev libzstd-dev zlib1g-dev libboost-dev libedit-dev libncurses-dev
  libseccomp-dev
)
# python3: for tests of the sandbox; tmux: of n mon; dpkg-dev and file: of the Debian package.
readonly test_packages=(libgtest-dev libbenchmark-dev libcpp-httplib-dev clang-format clang-tidy python3 tmux dpkg-dev file)
# Older ones do not understand ranges of g++ 12.
readonly fuzz_packages=(clang-16 libclang-rt-16-dev)
readonly browser_packages=(chromium chromium-driver)
readonly quickstart_packages=(python3-minimal xz-utils)
# npm's registry is reached over TLS; a minimal image has no certificates to check it with. npm itself is not needed, and
# would be two thirds of all packages.
readonly fetch_packages=(curl ca-certificates)

# The library and the header must be of one DuckDB version. Sums hold the registry to what was tried.
readonly duckdb_library_spec='@duckdb/node-bindings-linux-x64@1.4.4-r.4'
readonly duckdb_library_sha256='732fac4dc6b8f198870b9c4bb6ddf13544466daca00ad28ba2f1d80de5d7aa4b'
readonly duckdb_header_spec='duckdb@1.4.4'
readonly duckdb_header_sha256='5bb967dcbcd517670ba5f169f238fb9d6787e53752c60ebe24386169d76941ed'
readonly duckdb_header_member='package/src/duckdb/src/include/duckdb.h'

readonly uplot_spec='uplot@1.6.32'
readonly uplot_sha256='4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d'
readonly uplot_files=(dist/uPlot.iife.min.js dist/uPlot.min.css LICENSE)

readonly axe_spec='axe-core@4.10.3'
readonly axe_sha256='0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292'
readonly axe_files=(axe.min.js LICENSE)

readonly ranks_spec='gpt-tokenizer@4.0.0'
readonly ranks_sha256='e50075c9a98389fbe59bf6b42d8d50b49c1cbd7aec6c205bfc28847ee0eeb20a'
readonly ranks_files=(data/r50k_base.tiktoken data/cl100k_base.tiktoken data/o200k_base.tiktoken LICENSE)

readonly min_nvcc=13.0
readonly min_cudnn=9.19

repo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps_dir=${NMOE_DEPS_DIR:-$repo_root/third_party}
duckdb_dir=$deps_dir/duckdb
temp_dir=''
trap 'if [[ -n $temp_dir ]]; then rm -rf "$temp_dir"; fi' EXIT

say() { printf 'setup: %s\n' "$*"; }

# die MESSAGE REMEDY
die() {
  printf 'setup: error: %s\n' "$1" >&2
  printf 'setup: remedy: %s\n' "$2" >&2
  exit 1
}

have() { command -v "$1" > /dev/null 2>&1; }

# ---- packages ----------------------------------------------------------------------------------

# Prints those of its arguments that dpkg does not have fully installed, one a line.
missing_packages() {
  local installed name
  # It exits 1 if it does not know one of them, which is just what is asked here. The status's
  # second letter is the state; the name comes without ":amd64".
  installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "$@" 2> /dev/null || true)
  for name in "$@"; do
    grep -q "^.i. *${name//+/[+]}\$" <<< "$installed" || printf '%s\n' "$name"
  done
}

as_root() {
  if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

# apt_get COMMAND... : apt-get without questions, waiting for another apt that holds the lock.
apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o DPkg::Lock::Timeout=300 "$@"
}

install_packages() {
  if ! have dpkg-query || ! have apt-get; then
    die "this system has no apt; the build needs (Debian's names): $*" \
      "use Debian 12 or Ubuntu 24.04 (a container will do), or install the counterparts yourself"
  fi

  local missing
  mapfile -t missing < <(missing_packages "$@")
  if ((${#missing[@]} == 0)); then
    say "packages: all $# present"
    return
  fi

  ((EUID == 0)) || have sudo ||
    die "not root, and there is no sudo; missing packages: ${missing[*]}" \
      "as root: apt-get install --no-install-recommends ${missing[*]}"
  say "packages: installing ${missing[*]}"
  apt_get update ||
    die "apt-get update failed" "check the network and /etc/apt, then run this again"
  apt_get install --no-install-recommends "${missing[@]}" ||
    die "apt-get could not install: ${missing[*]}" \
      "Debian 12 or Ubuntu 24.04 (with universe) is the oldest that has them all; see apt's message"
}

# ---- DuckDB ------------------------------------------------------------------------------------

# What the stamp beside the finished folder must say: it changes with every pin.
duckdb_pins() {
  printf '%s %s\n' "$duckdb_library_sha256" "$duckdb_library_spec" \
    "$duckdb_header_sha256" "$duckdb_header_spec"
}

duckdb_is_ready() {
  [[ -s $duckdb_dir/lib/libduckdb.so && -s $duckdb_dir/include/duckdb.h ]] &&
    [[ -f $duckdb_dir/PINS && $(< "$duckdb_dir/PINS") == "$(duckdb_pins)" ]]
}

# npm's registry, or the one that npm's settings name.
npm_registry() {
  local registry=${npm_config_registry:-}
  # From $temp_dir, so that no .npmrc or package.json of the caller's folder has a say.
  if [[ -z $registry ]] && have npm; then
    registry=$(cd "$temp_dir" && npm config get registry 2> /dev/null) || registry=''
  fi
  printf '%s\n' "${registry:-https://registry.npmjs.org}"
}

# fetch_npm SPEC SHA256: puts the npm package SPEC, NAME@VERSION, into $temp_dir/SHA256.tgz.
fetch_npm() {
  local spec=$1 sha256=$2 name=${1%@*} version=${1##*@} registry url found
  registry=$(npm_registry)
  url=${registry%/}/$name/-/${name##*/}-$version.tgz
  curl --fail --silent --show-error --location --connect-timeout 20 --retry 3 --output "$temp_dir/$sha256.tgz" "$url" ||
    die "could not fetch $url" \
      "check the network (https_proxy, CURL_CA_BUNDLE; npm_config_registry names another registry), then run this again"
  found=$(sha256sum "$temp_dir/$sha256.tgz")
  [[ ${found%% *} == "$sha256" ]] ||
    die "$spec has sha256 ${found%% *}, expected $sha256" \
      "try again; if it stays so, do not use what was served"
}

# make_temp_dir DIR: $temp_dir beside DIR, so that a last step can rename, and no half-made folder can be seen.
make_temp_dir() {
  local parent=${1%/*}
  mkdir -p "$parent" || die "cannot create $parent" "name a writable folder in NMOE_DEPS_DIR"
  temp_dir=$(mktemp -d "$parent/.${1##*/}.XXXXXX") ||
    die "cannot write to $parent" "name a writable folder in NMOE_DEPS_DIR"
}

# move_into_place NEW DIR: DIR becomes NEW, and $temp_dir goes.
move_into_place() {
  # A folder of other pins is moved away first: rename does not replace a folder that has files.
  [[ ! -e $2 ]] || mv -T "$2" "$temp_dir/old"
  mv -T "$1" "$2" || die "cannot move $1 to $2" "is another setup.sh running? run this again"
  rm -rf "$temp_dir"
  temp_dir=''
}

# npm's tarballs are dated 1985: with --touch a later pin's files are newer than what was built.
readonly untar=(tar -xz --touch --no-same-owner --transform='s,.*/,,')

install_duckdb() {
  if duckdb_is_ready; then
    say "DuckDB: present in $duckdb_dir"
    return
  fi
  say "DuckDB: fetching $duckdb_library_spec and $duckdb_header_spec (33 MB)"

  make_temp_dir "$duckdb_dir"
  fetch_npm "$duckdb_library_spec" "$duckdb_library_sha256"
  fetch_npm "$duckdb_header_spec" "$duckdb_header_sha256"

  local new=$temp_dir/duckdb library=$temp_dir/$duckdb_library_sha256.tgz header=$temp_dir/$duckdb_header_sha256.tgz
  mkdir -p "$new/include" "$new/lib"
  chmod 755 "$new"
  "${untar[@]}" -C "$new/lib" package/libduckdb.so < "$library"
  "${untar[@]}" -C "$new/include" "$duckdb_header_member" < "$header"
  "${untar[@]}" -C "$new" package/LICENSE < "$header"
  strip --strip-unneeded "$new/lib/libduckdb.so"  # a sixth smaller, and nothing links to the rest
  duckdb_pins > "$new/PINS"

  move_into_place "$new" "$duckdb_dir"
  say "DuckDB: installed in $duckdb_dir ($(du -sh "$duckdb_dir" | cut -f1))"
}

# ---- files out of one npm package -----------------------------------------------------------------

# files_are_ready DIR SPEC SHA256 FILE... : whether DIR has them, out of just that package.
files_are_ready() {
  local dir=$1 pin="$3 $2" file
  shift 3
  for file in "$@"; do [[ -s $dir/${file##*/} ]] || return 1; done
  [[ -f $dir/PINS && $(< "$dir/PINS") == "$pin" ]]
}

# install_files LABEL DIR SPEC SHA256 FILE... : FILEs of an npm package, straight into DIR.
install_files() {
  local label=$1 dir=$2 spec=$3 sha256=$4
  shift 4
  if files_are_ready "$dir" "$spec" "$sha256" "$@"; then
    say "$label: present in $dir"
    return
  fi
  have curl || install_packages "${fetch_packages[@]}"
  say "$label: fetching $spec"
  make_temp_dir "$dir"
  fetch_npm "$spec" "$sha256"
  local new=$temp_dir/new
  mkdir -p "$new"
  chmod 755 "$new"
  "${untar[@]}" -C "$new" "${@/#/package/}" < "$temp_dir/$sha256.tgz"
  printf '%s %s\n' "$sha256" "$spec" > "$new/PINS"
  move_into_place "$new" "$dir"
  say "$label: installed in $dir ($(du -sh "$dir" | cut -f1))"
}

install_uplot() {
  install_files uPlot "$deps_dir/uplot" "$uplot_spec" "$uplot_sha256" "${uplot_files[@]}"
}
install_axe() {
  install_files axe-core "$deps_dir/axe" "$axe_spec" "$axe_sha256" "${axe_files[@]}"
}
install_ranks() {
  install_files 'token ranks' "$deps_dir/tokenizers" "$ranks_spec" "$ranks_sha256" "${ranks_files[@]}"
}

# ---- CUDA --------------------------------------------------------------------------------------

# find_header NAME DIR... : the first DIR/NAME that exists.
find_header() {
  local name=$1 dir
  shift
  for dir in "$@"; do
    if [[ -f $dir/$name ]]; then
      printf '%s\n' "$dir/$name"
      return
    fi
  done
  return 1
}

# header_version FILE MACRO... : the macros' values joined with dots.
header_version() {
  local file=$1 macro value version=''
  shift
  for macro in "$@"; do
    value=$(awk -v m="$macro" '$1 == "#define" && $2 == m { print $3; exit }' "$file")
    version+=${version:+.}${value:-?}
  done
  printf '%s\n' "$version"
}

check_cuda() {
  local nvcc='' candidate version toolkit failed=0
  for candidate in "${CUDACXX:-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" \
    "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    if [[ -n $candidate && -x $candidate ]]; then
      nvcc=$candidate
      break
    fi
  done
  [[ -n $nvcc ]] ||
    die "no nvcc in CUDACXX, CUDA_HOME, CUDA_PATH, PATH or /usr/local/cuda" \
      "install NVIDIA's CUDA toolkit $min_nvcc or newer, or set CUDACXX to its nvcc"

  version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  if printf '%s\n' "$min_nvcc" "${version:-0}" | sort -VC; then
    say "nvcc: $version ($nvcc)"
  else
    say "nvcc: ${version:-unknown version} ($nvcc) is too old"
    say "  remedy: install CUDA toolkit $min_nvcc or newer beside it, and set CUDACXX to its nvcc"
    failed=1
  fi

  # The toolkit is the folder above nvcc's bin/, once links such as /usr/bin/nvcc are followed.
  toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  local machine
  machine=$(uname -m)
  local dirs=(
    ${CUDNN_HOME:+"$CUDNN_HOME/include"} ${NCCL_HOME:+"$NCCL_HOME/include"}
    "$toolkit/include" "$toolkit/targets/$machine-linux/include"
    /usr/include "/usr/include/$machine-linux-gnu"
  )
  local compiler_dirs dir
  IFS=: read -ra compiler_dirs <<< "${CPATH:-}:${CPLUS_INCLUDE_PATH:-}"
  for dir in "${compiler_dirs[@]}"; do
    [[ -z $dir ]] || dirs+=("$dir")
  done

  # check_header LABEL HEADER MIN_VERSION REMEDY VERSION_HEADER MACRO...
  check_header() {
    local label=$1 header=$2 min_version=$3 remedy=$4 version_header=$5 path versions found
    shift 5
    if path=$(find_header "$header" "${dirs[@]}"); then
      versions=$(dirname "$path")/$version_header
      [[ -f $versions ]] || versions=$path
      found=$(header_version "$versions" "$@")
      if printf '%s\n' "$min_version" "$found" | sort -VC; then
        say "$label: $found ($path)"
      else
        say "$label: $found ($path) is too old"
        say "  remedy: $remedy"
        failed=1
      fi
    else
      say "$label: $header not found in: ${dirs[*]}"
      say "  remedy: $remedy"
      failed=1
    fi
  }
  check_header cublasLt cublasLt.h "$min_nvcc" \
    "install the toolkit's cuBLAS development files (libcublas-dev of its version)" \
    cublas_api.h CUBLAS_VER_MAJOR CUBLAS_VER_MINOR CUBLAS_VER_PATCH
  check_header cuDNN cudnn.h "$min_cudnn" \
    "install cuDNN $min_cudnn or newer for this CUDA version, or set CUDNN_HOME to the folder above its include/" \
    cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL
  check_header NCCL nccl.h 2 \
    "install libnccl-dev for this CUDA version, or set NCCL_HOME to the folder above its include/" \
    nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH

  ((failed == 0)) ||
    die "the CUDA toolkit is not complete" "see the remedies above; the CPU preset needs none of it"
  say "CUDA toolkit: complete"
}

# ---- main --------------------------------------------------------------------------------------

usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

main() {
  local packages=("${build_packages[@]}")
  case "$*" in
    '') ;;
    --quickstart) packages+=("${quickstart_packages[@]}") ;;
    --test) packages+=("${test_packages[@]}") ;;
    --fuzz) packages+=("${test_packages[@]}" "${fuzz_packages[@]}") ;;
    --browser) packages+=("${test_packages[@]}" "${browser_packages[@]}") ;;
    --tokenizers)
      install_ranks
      return
      ;;
    --cuda)
      check_cuda
      return
      ;;
    -h | --help)
      usage
      return
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac

  [[ $(uname -sm) == 'Linux x86_64' ]] ||
    die "this is $(uname -sm); only Linux on x86-64 is supported" "use such a machine"

  # curl fetches nothing but these, so it is not asked for once they are there; install_files asks for itself.
  if ! duckdb_is_ready && ! have curl; then
    packages+=("${fetch_packages[@]}")
  fi
  install_packages "${packages[@]}"
  install_duckdb
  install_uplot
  if [[ $* == --browser ]]; then install_axe; fi
}

main "$@"
