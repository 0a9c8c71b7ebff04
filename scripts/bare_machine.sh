#!/usr/bin/env bash
# Proof that README's two commands need nothing but themselves: makes a bare Debian 12 in a folder (debootstrap, minbase),
# clones what is committed here into it, and runs scripts/quickstart.sh and scripts/test.sh there. Slow, for all is
# compiled from nothing; no part of CI.
#
#   scripts/bare_machine.sh [quickstart | test]   both, or one of the two commands
#
#   BARE_MIRROR    Debian's mirror (the one that apt has for bookworm, else http://deb.debian.org/debian)
#   BARE_DIR       where the folder is made, and removed at the end (${TMPDIR:-/tmp}); BARE_KEEP=1 keeps it
#
# It takes debootstrap and namespaces: those of root, or of an ordinary user who has subordinate ids (/etc/subuid and
# the package uidmap). Of this machine nothing is seen inside but the network: name servers, what apt's configuration
# says of proxies and checks, proxy variables, and certificates that CURL_CA_BUNDLE names.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

die() {
  printf 'bare_machine: error: %s\nbare_machine: remedy: %s\n' "$1" "$2" >&2
  exit 1
}

# The mirror that apt takes Debian 12 from, in either form of its lists.
mirror_of_apt() {
  # shellcheck disable=SC2016  # apt's own variables
  apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages' 2> /dev/null |
    awk '$2 == "bookworm" { print $1; exit }' || true
}

# ---- outside ------------------------------------------------------------------------------------

outside() {
  case ${1:-} in
    '' | quickstart | test) ;;
    *) printf 'usage: scripts/bare_machine.sh [quickstart | test]\n' >&2; exit 2 ;;
  esac
  PATH=$PATH:/usr/sbin:/sbin
  command -v debootstrap > /dev/null || die 'there is no debootstrap' 'install the package debootstrap'
  local mirror
  namespaces=(unshare --mount --pid --fork --kill-child)
  if ((EUID != 0)); then
    command -v newuidmap > /dev/null || die 'there is no newuidmap' 'install the package uidmap, or run this as root'
    namespaces+=(--map-root-user --map-auto)
    export container=lxc  # for debootstrap: devices cannot be made here, and are bound
  fi
  "${namespaces[@]}" true 2> /dev/null ||
    die 'this machine makes no namespaces' 'run it as root, or give this user a range in /etc/subuid and /etc/subgid'
  mirror=${BARE_MIRROR:-$(mirror_of_apt)}

  bare=$(mktemp -d "${BARE_DIR:-${TMPDIR:-/tmp}}/nmoe-bare.XXXXXX")
  # What the namespace's root made is not its maker's to remove outside of one.
  [[ ${BARE_KEEP:-} ]] || trap '"${namespaces[@]}" rm -rf "$bare"' EXIT
  "${namespaces[@]}" "${BASH_SOURCE[0]}" --inside "$bare" "${mirror:-http://deb.debian.org/debian}" "${@:1:1}"
}

# ---- in the namespace, as its root --------------------------------------------------------------

stage() { printf '\n##### %s (at %d s)\n' "$*" "$SECONDS"; }

# What of the network's settings is to be known inside.
carry_network() {
  local bare=$1
  cp -L /etc/resolv.conf "$bare/etc/resolv.conf"
  apt-config dump 2> /dev/null |
    grep -E '^Acquire::(http|https|Check-Valid-Until|Check-Date|Retries|ForceIPv4|ForceIPv6)' \
      > "$bare/etc/apt/apt.conf.d/90network" || true
  if [[ -r ${CURL_CA_BUNDLE:-} ]]; then
    cp -L "$CURL_CA_BUNDLE" "$bare/etc/ca-bundle.crt"
    carried+=(CURL_CA_BUNDLE=/etc/ca-bundle.crt)
  fi
  local name
  for name in http_proxy https_proxy no_proxy npm_config_registry; do
    if [[ ${!name:-} ]]; then carried+=("$name=${!name}"); fi
  done
}

inside() {
  local bare=$1 mirror=$2 only=${3:-} command
  carried=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
  stage "Debian 12 from $mirror"
  debootstrap --variant=minbase bookworm "$bare" "$mirror" > "$bare.log" 2>&1 || {
    tail -n 20 "$bare.log" >&2
    die 'debootstrap failed' "name a mirror that answers with BARE_MIRROR; all it said is in $bare.log"
  }
  rm "$bare.log"
  carry_network "$bare"
  mount --rbind /dev "$bare/dev"
  mount -t proc proc "$bare/proc"
  git clone --quiet --no-hardlinks "$root" "$bare/root/nmoe"
  printf 'nmoe %s, %d packages, %s\n' "$(git -C "$bare/root/nmoe" rev-parse --short HEAD)" \
    "$(chroot "$bare" dpkg-query -W | wc -l)" "$(chroot "$bare" cat /etc/debian_version)"
  for command in quickstart test; do
    [[ -z $only || $only == "$command" ]] || continue
    stage "scripts/$command.sh"
    env -i "${carried[@]}" chroot "$bare" sh -c "cd /root/nmoe && ./scripts/$command.sh"
  done
  stage 'done: a bare machine is enough'
}

if [[ ${1:-} == --inside ]]; then inside "${@:2}"; else outside "$@"; fi
