#!/usr/bin/env bash
# debian_package.sh [--follow REGEX] DEST SUITES PACKAGE...
#
# Unpacks Debian packages under DEST without installing them and without touching the system's package lists: needs no
# root. SUITES is a comma-separated list; the first suite that has every PACKAGE is used. --follow takes the packages that
# these depend on, too, as far as their names match REGEX, and what those depend on. Prints "suite=... deb=..."
# lines on success. The archive is the one this machine's apt is configured for; ORT_HINA_DEBIAN_MIRROR overrides it.
set -euo pipefail

fail() { echo "debian_package: $*" >&2; exit 1; }
follow=
if [ "${1:-}" = --follow ] && [ $# -ge 2 ]; then follow=$2; shift 2; fi
[ $# -ge 3 ] || fail "usage: debian_package.sh [--follow REGEX] DEST SUITE[,SUITE...] PACKAGE..."
dest=$1 suites=${2//,/ }
shift 2

for tool in apt-get dpkg dpkg-deb; do
  command -v "$tool" >/dev/null || fail "$tool is not here: this is not a Debian system"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"  # apt may drop to its own user, who has to walk through this folder

# apt itself lists what it would fetch, so every spelling of a source (one-line, deb822, mirror lists) is understood.
archive_of_this_machine() {
  apt-get update --print-uris 2>/dev/null |
    sed -n "s|^'\(.*\)/dists/[^']*'.*|\1|p" |
    grep -E '/debian(\.list)?(/|$)' | grep -v -- '-security' | awk '!seen[$0]++' | sed -n 1p
}
archive=${ORT_HINA_DEBIAN_MIRROR:-$(archive_of_this_machine || true)}
[ -n "$archive" ] || fail "apt has no Debian archive configured here; name one in ORT_HINA_DEBIAN_MIRROR"

keyring=
for candidate in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
  if [ -e "$candidate" ]; then keyring=$candidate; break; fi
done
[ -n "$keyring" ] || fail "Debian's archive keys are not here (package debian-archive-keyring)"

arch=$(dpkg --print-architecture)

followed() {  # PACKAGE...: the packages themselves, and what they depend on as far as it is followed; needs $options
  local known='' found
  found=$(printf '%s\n' "$@" | sort -u)
  while [ "$found" != "$known" ]; do
    known=$found
    [ -n "$follow" ] || break
    # shellcheck disable=SC2086  # names of packages have no spaces
    found=$(apt-cache "${options[@]}" depends $known | sed -n 's/^ *Depends: //p' | grep -E "$follow" || true)
    found=$(printf '%s\n' $known $found | sort -u)
  done
  echo "$known"
}

fetch_from() {  # SUITE PACKAGE...: downloads into $work/SUITE/download
  local suite=$1 root=$work/$1
  shift
  mkdir -p "$root"/{lists/partial,cache/archives/partial,download,parts}
  printf 'deb [arch=%s signed-by=%s] %s %s main\n' "$arch" "$keyring" "$archive" "$suite" >"$root/sources.list"
  local options=(
    -o "Dir::Etc::SourceList=$root/sources.list" -o "Dir::Etc::SourceParts=$root/parts"
    -o Dir::Etc::Preferences=/dev/null -o "Dir::Etc::PreferencesParts=$root/parts"
    -o "Dir::State::Lists=$root/lists" -o "Dir::Cache=$root/cache"
    -o "APT::Architecture=$arch" -o "APT::Architectures=$arch"
    -o "APT::Sandbox::User=$(id -un)"  # no second user has to read our folders
    -o Acquire::Languages=none -o Acquire::Retries=2
    -o Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false
  )
  # apt-get update exits 0 when a suite cannot be had; the download then says that the package is unknown.
  apt-get "${options[@]}" update || return
  # shellcheck disable=SC2046
  (cd "$root/download" && apt-get "${options[@]}" download $(followed "$@"))
}

for suite in $suites; do
  if fetch_from "$suite" "$@" >"$work/log" 2>&1; then
    mkdir -p "$dest"
    for deb in "$work/$suite"/download/*.deb; do
      dpkg-deb -x "$deb" "$dest"
      echo "suite=$suite deb=$(basename "$deb")"
    done
    exit 0
  fi
  echo "debian_package: $* could not be had from $archive $suite:" >&2
  grep -E '^(E|W|Err)' "$work/log" | tail -n4 >&2 || true
done
exit 1
