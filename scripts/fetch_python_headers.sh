#!/usr/bin/env bash
# fetch_python_headers.sh DEST VERSION
#
# Puts the C headers of Debian's own Python VERSION (such as 3.13) under DEST/pythonVERSION. Does nothing if they are
# there. Debian keeps them in a package of their own, which a machine with only python3 does not have.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dest=${1:?usage: fetch_python_headers.sh DEST VERSION}
version=${2:?usage: fetch_python_headers.sh DEST VERSION}
include=$dest/python$version

[ ! -e "$include/Python.h" ] || exit 0

mkdir -p "$dest"
staging=$(mktemp -d "$include.XXXXXX")
trap 'rm -rf "$staging"' EXIT
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")

if ! "$here/debian_package.sh" "$staging" "${suite:-stable}" "libpython$version-dev"; then
  cat >&2 <<MESSAGE
fetch_python_headers: the C headers of Python $version are not on this machine and could not be fetched. Install them:
  apt-get install python3-dev
MESSAGE
  exit 1
fi

# Debian's pyconfig.h only picks the one of the architecture, through a path that is not on the compiler's list here.
mv "$staging"/usr/include/*-linux-gnu*/"python$version/pyconfig.h" "$staging/usr/include/python$version/pyconfig.h"
mv "$staging/usr/include/python$version" "$include"
