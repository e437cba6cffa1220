#!/usr/bin/env bash
# fetch_ort_headers.sh DEST [SUITE...]
#
# Puts ONNX Runtime's C and C++ headers (Debian's libonnxruntime-dev, headers only) under DEST/onnxruntime. Does nothing
# if they are there. The library itself is not needed: the host process hands its function table to ours.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dest=${1:?usage: fetch_ort_headers.sh DEST [SUITE...]}
shift
suites=${*:-sid forky trixie}

if [ -e "$dest/onnxruntime/onnxruntime_cxx_api.h" ]; then
  cat "$dest/SOURCE"
  exit 0
fi

mkdir -p "$(dirname "$dest")"
staging=$(mktemp -d "$dest.XXXXXX")
trap 'rm -rf "$staging"' EXIT

if ! source=$("$here/debian_package.sh" "$staging/root" "${suites// /,}" libonnxruntime-dev); then
  cat >&2 <<MESSAGE
fetch_ort_headers: ONNX Runtime's headers could not be fetched. Either
  install them on this machine:  apt-get install libonnxruntime-dev   (Debian 13 and newer), or
  name a Debian archive that is reachable from here:  ORT_HINA_DEBIAN_MIRROR=URL $0 $dest
MESSAGE
  exit 1
fi

version=$(sed -n 's/^#define ORT_API_VERSION //p' "$staging/root/usr/include/onnxruntime/onnxruntime_c_api.h")
mkdir "$staging/headers"
mv "$staging/root/usr/include/onnxruntime" "$staging/headers/onnxruntime"
cp "$staging/root/usr/share/doc/libonnxruntime-dev/copyright" "$staging/headers/COPYRIGHT"
echo "$source ORT_API_VERSION=$version" >"$staging/headers/SOURCE"
chmod 755 "$staging/headers"

# Renamed when complete: an interrupted fetch leaves nothing that looks finished.
rm -rf "$dest"
mv "$staging/headers" "$dest"
cat "$dest/SOURCE"
