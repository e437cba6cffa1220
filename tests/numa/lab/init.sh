#!/bin/busybox sh
# The first process of the guest: mounts the host's files with a throw-away layer over them, runs the command, powers off.
# /job/params holds its parameters, /job/run the command. It speaks to numa_vm.sh through three ports: the command's output
# and errors, and the status ("up SECONDS" when the command starts, "rc STATUS" when it ended).
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /low /over /root
mount -t proc proc /proc
mount -t sysfs sys /sys
[ -e /dev/null ] || mount -t devtmpfs dev /dev
while read -r module; do
  insmod "/mod/$module.ko" 2>/dev/null || echo "numa_vm: cannot load $module"
done </mod/order
. /job/params

port() {
  for candidate in /sys/class/virtio-ports/*; do
    [ "$(cat "$candidate/name" 2>/dev/null)" != "$1" ] || echo "/dev/${candidate##*/}"
  done
}
fail() { echo "numa_vm: $*"; sync; poweroff -f; sleep 60; }

tries=0
while [ -z "$(port status)" ] && [ $tries -lt 500 ]; do usleep 10000; tries=$((tries + 1)); done
exec 3>"$(port status)"

options=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o $options,ro,cache=loose root /low || fail "cannot mount the host's root"
mount -t tmpfs -o mode=755 over /over
mkdir /over/up /over/work
mount -t overlay -o lowerdir=/low,upperdir=/over/up,workdir=/over/work,xino=off overlay /root ||
  fail "cannot mount the overlay"
for folder in proc sys dev; do mount --rbind /$folder /root/$folder || fail "cannot mount /$folder"; done
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts -o ptmxmode=666 devpts /root/dev/pts
mount -t tmpfs -o mode=1777 shm /root/dev/shm
mount -t tmpfs -o mode=755 run /root/run
mount -t tmpfs -o mode=755 mnt /root/mnt
for link in fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do
  ln -sfn "${link#*:}" "/root/dev/${link%%:*}"
done
i=0
while [ $i -lt "$RW_COUNT" ]; do
  eval "folder=\$RW_$i"
  mkdir -p "/root$folder" && mount -t 9p -o $options,cache=mmap rw$i "/root$folder" || fail "cannot mount $folder"
  i=$((i + 1))
done
if [ -n "$SCRATCH" ]; then
  mkdir -p /root/mnt/scratch
  PATH=/usr/sbin:/sbin:/usr/bin chroot /root mkfs.ext4 -q -F -E lazy_itable_init=1 /dev/vda &&
    mount -t ext4 /dev/vda /root/mnt/scratch || fail "cannot make the scratch disk"
fi
ifconfig lo up

# Pipes, not the ports themselves, so that the command may reopen /dev/stdout.
mkdir /root/run/numa_vm
cp /job/run /root/run/numa_vm/run
mkfifo /out /err
cat /out >"$(port out)" & out=$!
cat /err >"$(port err)" & err=$!
read -r up rest </proc/uptime
echo "up $up" >&3
chroot /root /bin/bash /run/numa_vm/run </dev/null >/out 2>/err 3>&-
status=$?
# What the command left running would keep the pipes open.
for process in /proc/[0-9]*; do
  case ${process#/proc/} in
    1|$out|$err) ;;
    *) [ -z "$(cat "$process/cmdline" 2>/dev/null)" ] || kill -9 "${process#/proc/}" 2>/dev/null ;;
  esac
done
wait $out
wait $err
echo "rc $status" >&3
umount /root/mnt/scratch 2>/dev/null
sync
poweroff -f
