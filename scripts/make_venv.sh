#!/usr/bin/env bash
# make_venv.sh VENV [PYTHON]
#
# Makes the virtual environment VENV, with pip, from PYTHON (default: python3). Leaves a working one alone. Works without
# Debian's python3-venv and without root: pip then comes from Debian's own pip wheel, unpacked under .deps/.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${1:?usage: make_venv.sh VENV [PYTHON]}
python=${2:-python3}
wheels=$here/../.deps/pip

fail() { echo "make_venv: $*" >&2; exit 1; }

"$venv/bin/python" -m pip --version >/dev/null 2>&1 && exit 0

command -v "$python" >/dev/null || fail "no '$python' on this machine. Install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$python is $("$python" --version 2>&1), but Python 3.11 or newer is needed. Name another one: make PYTHON=/path/to/python3"

if "$python" -c 'import ensurepip' 2>/dev/null; then
  exec "$python" -m venv --clear "$venv"
fi

"$python" -m venv --clear --without-pip "$venv"
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
if ! compgen -G "$wheels/usr/share/python-wheels/pip-*.whl" >/dev/null; then
  "$here/debian_package.sh" "$wheels" "${suite:-stable}" python3-pip-whl ||
    fail "this Python has no ensurepip, and pip could not be fetched from Debian. Install it: apt-get install python3-venv"
fi
wheel=$(compgen -G "$wheels/usr/share/python-wheels/pip-*.whl" | sed -n 1p)
"$venv/bin/python" "$wheel/pip" install --quiet --no-index "$wheel"
