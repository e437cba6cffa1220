#!/usr/bin/env bash
# fetch_kernel.sh DEST SUITE
#
# Makes DEST with what numa_vm.sh boots: vmlinux, busybox and initrd.img (modules only), out of the current kernel of a
# Debian suite and its static busybox. Does nothing if they are there.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dest=${1:?usage: fetch_kernel.sh DEST SUITE}
suite=${2:?usage: fetch_kernel.sh DEST SUITE}
modules_wanted=(virtio_pci virtio_blk virtio_console 9pnet_virtio 9p overlay crc32c_generic ext4)

fail() { echo "fetch_kernel: $*" >&2; exit 1; }

[ ! -e "$dest/initrd.img" ] || exit 0

mkdir -p "$(dirname "$dest")"
dest=$(cd "$(dirname "$dest")" && pwd)/$(basename "$dest")
exec 9>"$dest.lock"
flock 9
[ ! -e "$dest/initrd.img" ] || exit 0
work=$(mktemp -d "$dest.XXXXXX")
trap 'rm -rf "$work"' EXIT

echo "fetch_kernel: fetching the kernel of $suite" >&2
# The metapackage names the image; newer images are in several packages.
if ! "$here/../../../scripts/debian_package.sh" --follow '^linux-(image|binary|modules)-[0-9]' "$work/root" "$suite" \
  linux-image-amd64 busybox-static >"$work/source"; then
  fail "the kernel of Debian $suite could not be fetched. Name an archive that has it: ORT_HINA_DEBIAN_MIRROR=URL"
fi

find_one() {  # FIND_ARGUMENT...: the first match
  local found
  found=$(find "$work/root" "$@" -print -quit)
  [ -n "$found" ] || fail "the packages of $suite have another layout: nothing is $*"
  echo "$found"
}

# The ELF kernel inside vmlinuz: QEMU starts it directly, which saves the emulated decompression, a third of the boot.
unpack_kernel() {  # VMLINUZ OUT
  local format magic tool at
  for format in '\xFD7zXZ\x00 xz' '\x28\xB5\x2F\xFD zstd' '\x1f\x8b\x08 gzip'; do
    read -r magic tool <<<"$format"
    command -v "$tool" >/dev/null || continue
    for at in $(LC_ALL=C grep -aboP "$magic" "$1" | cut -d: -f1 | head -n 3); do
      tail -c "+$((at + 1))" "$1" | "$tool" -dc >"$2" 2>/dev/null || true  # what follows the kernel is no part of the stream
      [ "$(head -c 4 "$2" | tail -c 3)" != ELF ] || return 0
    done
  done
  return 1
}

# A module, after those that it depends on, into the folder mod, and their names in load order into mod/order. One that the
# kernel has no file of is built into it, or does not exist there.
add_module() {  # NAME
  local name=${1//-/_} file dependency
  [ ! -e "$work/initrd/mod/$name.ko" ] || return 0
  file=$(find "$modules" -name "${name//_/[-_]}.ko*" -print -quit)
  case $file in
    '') return 0 ;;
    *.xz) "$busybox" unxz -c "$file" >"$work/initrd/mod/$name.ko" ;;
    *.ko) cp "$file" "$work/initrd/mod/$name.ko" ;;
    *) fail "cannot unpack $file" ;;
  esac
  for dependency in $(tr '\0' '\n' <"$work/initrd/mod/$name.ko" | sed -n 's/^depends=//p' | tr ',' ' '); do
    add_module "$dependency"
  done
  echo "$name" >>"$work/initrd/mod/order"
}

vmlinuz=$(find_one -type f -name 'vmlinuz*')
modules=$(find_one -type d -path '*/lib/modules/*' -prune)
busybox=$(find_one -type f -name busybox -perm -u+x)
mkdir -p "$work"/{out,initrd/bin,initrd/mod}
cp "$busybox" "$work/initrd/bin/busybox"
for name in "${modules_wanted[@]}"; do add_module "$name"; done
(cd "$work/initrd" && find . | "$busybox" cpio -o -H newc 2>/dev/null) >"$work/out/initrd.img"
unpack_kernel "$vmlinuz" "$work/out/vmlinux" || cp "$vmlinuz" "$work/out/vmlinux"
cp "$busybox" "$work/out/busybox"
cp "$work/source" "$work/out/SOURCE"

# Renamed when complete: an interrupted fetch leaves nothing that looks finished.
rm -rf "$dest"
mv "$work/out" "$dest"
