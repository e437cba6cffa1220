#!/usr/bin/env bash
# numa_vm.sh [OPTIONS] -- COMMAND [ARGUMENT...]
#
# Runs a command on a real Linux kernel that has several memory nodes, on a machine that has one. QEMU boots a Debian
# kernel over the host's own root filesystem: the command sees the host's files, tools and virtual environments, may write
# anywhere, and changes nothing. Its output is streamed, its exit status is this script's. docs/developing.md says more.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)

usage() {
  cat <<'USAGE'
usage: numa_vm.sh [options] -- COMMAND [ARGUMENT...]
       numa_vm.sh --fetch [--suite SUITE]      only fetches the kernel

  --nodes N        memory nodes (default 2). Those without CPUs come last, since Linux numbers them so
  --cpus LIST      CPUs of each node: 2, or 1,3,0 (default 1)
  --mem LIST       memory of each node: 1G, or 1G,512M,0 (default 1G); node 0 has some
  --distance D     between any two nodes (default 20; a node's own is 10); I-J=D: between these two (may be repeated)
  --suite SUITE    the Debian suite of the kernel (default: this machine's)
  --accel A        auto (default: KVM if it works, else emulation), kvm or tcg
  --timeout S      seconds for the whole run, boot included (default 600)
  --rw DIR         a folder of the host that the command may write to (may be repeated)
  --scratch SIZE   an empty ext4 disk at /mnt/scratch, such as 4G
  --count FILE     counts accesses to ranges of memory by CPU and node (see numa_count.c); with emulation only
  --append ARGS    more kernel arguments, such as transparent_hugepage=never
  --verbose        says on stderr what the machine is and how long it took
  --console        copies the guest's kernel console to stderr

Exit status: the command's; 124: timed out; 125: the guest did not run it to its end; 2: usage.
Kernels are kept in $NUMA_LAB_CACHE (default: .deps/numa-lab of the project).
USAGE
}

die() { echo "numa_vm: $*" >&2; exit 125; }
bad() { echo "numa_vm: $*" >&2; usage >&2; exit 2; }
say() { [ "$verbose" = 0 ] || echo "numa_vm: $*" >&2; }

# Sets the options, and the command in the array job.
parse() {
  local cpu_list=1 mem_list=1G
  nodes=2 suite='' accel=auto limit=600 scratch='' append='' count='' verbose=0 console=0 fetch_only=0
  distance=20 distances=() rw=()
  while [ $# -gt 0 ]; do
    case $1 in
      --) shift; break ;;
      --help|-h) usage; exit 0 ;;
      --fetch) fetch_only=1; shift; continue ;;
      --verbose) verbose=1; shift; continue ;;
      --console) console=1; shift; continue ;;
      --nodes|--cpus|--mem|--distance|--suite|--accel|--timeout|--rw|--scratch|--count|--append)
        [ $# -ge 2 ] || bad "$1 needs a value" ;;
      *) bad "unknown option: $1" ;;
    esac
    case $1 in
      --nodes) nodes=$2 ;;
      --cpus) cpu_list=$2 ;;
      --mem) mem_list=$2 ;;
      --distance) case $2 in *=*) distances+=("$2") ;; *) distance=$2 ;; esac ;;
      --suite) suite=$2 ;;
      --accel) accel=$2 ;;
      --timeout) limit=$2 ;;
      --scratch) scratch=$2 ;;
      --count) count=$2 ;;
      --append) append+=" $2" ;;
      --rw) rw+=("$(realpath -e -- "$2")") || bad "--rw: no such folder: $2" ;;
    esac
    shift 2
  done
  for n in "$nodes" "$limit"; do
    [[ $n =~ ^[1-9][0-9]*$ ]] || bad "not a positive number: $n"
  done
  for d in "0-0=$distance" "${distances[@]}"; do
    [[ $d =~ ^[0-9]+-[0-9]+=[1-9][0-9]*$ ]] || bad "--distance wants D or I-J=D, got ${d#0-0=}"
  done
  parse_nodes "$cpu_list" "$mem_list"
  [[ -z $scratch || $scratch =~ ^[1-9][0-9]*[MG]$ ]] || bad "--scratch wants a number and M or G, got $scratch"
  case $accel in auto|kvm|tcg) ;; *) bad "--accel is auto, kvm or tcg" ;; esac
  [ -z "$count" ] || [ "$accel" != kvm ] || bad "--count needs emulation"
  [ "$fetch_only" = 1 ] || [ $# -gt 0 ] || bad "no command"
  job=("$@")
}

# A value that stands alone, once for each node; a list as it is.
for_each_node() {
  local i
  case $1 in *,*) echo "$1"; return ;; esac
  for ((i = 1; i < nodes; i++)); do printf '%s,' "$1"; done
  echo "$1"
}

# Sets the arrays cpus and megabytes, of each node, from the two lists.
parse_nodes() {
  local cpu memory i last=1
  IFS=, read -ra cpus <<<"$(for_each_node "$1")"
  IFS=, read -ra memory <<<"$(for_each_node "$2")"
  megabytes=()
  [ "${#cpus[@]}" = "$nodes" ] && [ "${#memory[@]}" = "$nodes" ] ||
    bad "--cpus and --mem want one value or $nodes, got $1 and $2"
  for ((i = 0; i < nodes; i++)); do
    cpu=${cpus[i]}
    [[ $cpu =~ ^[0-9]+$ ]] || bad "--cpus wants numbers, got $1"
    case ${memory[i]} in
      0) megabytes[i]=0 ;;
      *[0-9]M) megabytes[i]=${memory[i]%M} ;;
      *[0-9]G) megabytes[i]=$((${memory[i]%G} * 1024)) ;;
      *) bad "--mem wants numbers and M or G, or 0, got $2" ;;
    esac
    [ "$cpu" != 0 ] || [ "${megabytes[i]}" != 0 ] || bad "node $i has neither CPUs nor memory"
    [ "$cpu" = 0 ] || [ "$last" != 0 ] || bad "nodes without CPUs come last, got $1"
    last=$cpu
  done
  [ "${megabytes[0]}" != 0 ] && [ "${cpus[0]}" != 0 ] || bad "node 0 needs CPUs and memory"
}

sum() { local total=0 n; for n in "$@"; do total=$((total + n)); done; echo "$total"; }

# The kernel unpacks this second archive over the first: what is to be done this time.
pack_job() {
  mkdir -p "$run/job/job"
  cp "$here/init.sh" "$run/job/init"
  chmod 755 "$run/job/init"
  {
    echo "RW_COUNT=${#rw[@]}"
    for i in "${!rw[@]}"; do printf "RW_%d='%s'\n" "$i" "${rw[i]//\'/\'\\\'\'}"; done
    echo "SCRATCH=$scratch"
  } >"$run/job/job/params"
  {
    export -p
    printf 'cd -- %q || cd /\nexec -- ' "$PWD"
    printf '%q ' "${job[@]}"
    echo
  } >"$run/job/job/run"
  (cd "$run/job" && find . | "$kernel/busybox" cpio -o -H newc 2>/dev/null) >"$run/job.img"
  cat "$kernel/initrd.img" "$run/job.img" >"$run/initrd.img"
}

# The plugin's arguments, for --count.
add_plugin() {
  local source=$here/numa_count.c interface=1 plugin sizes
  accel=tcg
  # QEMU 9 and newer refuse plugins that were made for interface 1.
  [ "$(qemu-system-x86_64 --version | sed -nE 's/^QEMU emulator version ([0-9]+).*/\1/p')" -lt 9 ] || interface=2
  plugin=$cache/numa_count-$interface.so
  if ! [ "$plugin" -nt "$source" ]; then
    "${CC:-cc}" -O2 -Wall -Wextra -DQEMU_PLUGIN_VERSION=$interface -fPIC -shared -fvisibility=hidden "$source" \
      -o "$plugin.$$" || die "cannot build the counter"
    mv "$plugin.$$" "$plugin"
  fi
  : >"$count" || die "cannot write $count"
  sizes=$(IFS=:; echo "${megabytes[*]}")
  machine+=(-plugin "$plugin,megabytes=$sizes,out=$(realpath -- "$count")")
}

add_nodes() {
  local i j cpu=0 d
  # Every CPU is a socket of its own: nodes may then have any number of them.
  machine+=(-smp "$(sum "${cpus[@]}"),sockets=$(sum "${cpus[@]}"),cores=1,threads=1" -m "$(sum "${megabytes[@]}")M")
  for ((i = 0; i < nodes; i++)); do
    if [ "${megabytes[i]}" != 0 ]; then
      machine+=(-object "memory-backend-ram,id=mem$i,size=${megabytes[i]}M" -numa "node,nodeid=$i,memdev=mem$i")
    else
      machine+=(-numa "node,nodeid=$i")
    fi
  done
  for ((i = 0; i < nodes; i++)); do
    for ((j = 0; j < cpus[i]; j++)); do machine+=(-numa "cpu,node-id=$i,socket-id=$cpu"); cpu=$((cpu + 1)); done
    for ((j = 0; j < i; j++)); do
      d=$distance
      for pair in "${distances[@]}"; do
        case $pair in "$i-$j="*|"$j-$i="*) d=${pair#*=} ;; esac
      done
      machine+=(-numa "dist,src=$i,dst=$j,val=$d")
    done
  done
}

# QEMU's arguments, in the array machine.
describe_machine() {
  local name i
  machine=(
    # The counter needs to know where the hole below 4 GB begins.
    -machine pc,max-ram-below-4g=3G
    -nodefaults -no-user-config -no-reboot -display none -monitor none
    -kernel "$kernel/vmlinux" -initrd "$run/initrd.img"
    -append "console=ttyS0 quiet panic=-1 rdinit=/init$append"
    -serial "file:$run/console"
    -device virtio-serial-pci
    -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap
    -device virtio-9p-pci,fsdev=root,mount_tag=root
  )
  for name in out err status; do
    machine+=(-chardev "file,id=$name,path=$run/$name" -device "virtserialport,chardev=$name,name=$name")
  done
  for i in "${!rw[@]}"; do
    machine+=(-fsdev "local,id=rw$i,path=${rw[i]//,/,,},security_model=none,multidevs=remap"
              -device "virtio-9p-pci,fsdev=rw$i,mount_tag=rw$i")
  done
  if [ -n "$scratch" ]; then
    truncate -s "$scratch" "$run/scratch"
    machine+=(-drive "if=none,id=scratch,format=raw,cache=unsafe,discard=unmap,file=$run/scratch"
              -device virtio-blk-pci,drive=scratch)
  fi
  add_nodes
  [ -z "$count" ] || add_plugin
}

cleanup() {
  trap - EXIT
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || :
  rm -rf "$run"
}

ran() { grep -q '^up ' "$run/status"; }

# guard SECONDS PID: ends PID unless the command has started by then.
guard() {
  sleep "$1" & local sleeper=$!
  trap 'kill $sleeper' TERM
  wait "$sleeper" && { ran || kill "$2"; }
}

# relay FIFO: copies it to stdout, to nowhere once stdout is closed.
relay() { { cat 2>/dev/null || cat >/dev/null; } <"$1"; }

# boot SECONDS ARGUMENT...: runs the machine once; sets status to QEMU's exit status. It is ended if it has not started the
# command after so many seconds (0: no such limit).
boot() {
  local start=$1; shift
  rm -f "$run"/{out,err,status,console}
  mkfifo "$run/out" "$run/err"
  touch "$run/status" "$run/console"
  local readers=() tail='' guard='' vm
  relay "$run/out" & readers+=($!)
  relay "$run/err" >&2 & readers+=($!)
  if [ "$console" = 1 ]; then tail -f "$run/console" >&2 & tail=$!; fi
  # Held open here so that neither reader ends, nor QEMU waits, if the other side is not there.
  exec 7<>"$run/out" 8<>"$run/err"
  timeout -k 5 "$limit" qemu-system-x86_64 "${machine[@]}" "$@" </dev/null >"$run/qemu" 2>&1 7>&- 8>&- &
  vm=$!
  if [ "$start" != 0 ]; then guard "$start" "$vm" >/dev/null 2>&1 7>&- 8>&- & guard=$!; fi
  pids=("$vm" "${readers[@]}" ${tail:+"$tail"} ${guard:+"$guard"})
  status=0
  wait "$vm" || status=$?
  [ -z "$guard" ] || kill "$guard" 2>/dev/null || :
  exec 7>&- 8>&-
  wait "${readers[@]}" || :
  if [ -n "$tail" ]; then sleep 0.2; kill "$tail"; fi
  pids=()
}

# Why not KVM, or nothing. Without vmx or svm, /dev/kvm is a software hypervisor that only runs kernels made for it; others
# boot so slowly there that emulation is faster.
no_kvm() {
  if ! [ -r /dev/kvm ] || ! [ -w /dev/kvm ]; then echo "/dev/kvm is not usable"
  elif ! grep -qwE 'vmx|svm' /proc/cpuinfo; then echo "the CPU shows neither vmx nor svm"; fi
}

run_machine() {
  local why
  # -arch-capabilities: some hosts refuse the MSR behind that flag (0x10a).
  local kvm=(-accel kvm -cpu host,-arch-capabilities) tcg=(-accel tcg,thread=multi -cpu max)
  if [ "$accel" = auto ]; then
    why=$(no_kvm)
    if [ -n "$why" ]; then accel=tcg; say "no KVM: $why"; fi
  fi
  case $accel in
    kvm) boot 0 "${kvm[@]}" ;;
    tcg) boot 0 "${tcg[@]}" ;;
    auto)
      accel=kvm; boot 60 "${kvm[@]}"
      if ! ran && [ "$status" != 124 ]; then
        say "KVM does not work: $(head -n1 "$run/qemu")"
        accel=tcg; boot 0 "${tcg[@]}"
      fi ;;
  esac
}

main() {
  parse "$@"
  [ "$(uname -m)" = x86_64 ] || die "the lab is for x86-64, this is $(uname -m)"
  cache=${NUMA_LAB_CACHE:-$root/.deps/numa-lab}
  [ -n "$suite" ] || suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  kernel=$cache/$suite
  "$here/fetch_kernel.sh" "$kernel" "$suite" || die "there is no kernel to boot"
  [ "$fetch_only" = 0 ] || exit 0

  command -v qemu-system-x86_64 >/dev/null || die "qemu-system-x86_64 is missing (apt-get install qemu-system-x86)"
  run=$(mktemp -d "${TMPDIR:-/tmp}/numa-vm.XXXXXX")
  pids=()
  trap cleanup EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  pack_job
  describe_machine
  started=$SECONDS
  run_machine

  say "$accel: the command started $(sed -n 's/^up //p' "$run/status") s after the kernel; $((SECONDS - started)) s in all"
  rc=$(sed -n 's/^rc //p' "$run/status")
  [ -z "$rc" ] || exit "$rc"
  if [ "$status" = 124 ] || [ "$status" = 137 ]; then
    echo "numa_vm: timed out after $limit s" >&2
    exit 124
  fi
  { echo "numa_vm: the guest ended without running the command to its end (QEMU: $status)"
    cat "$run/qemu"; tail -n 30 "$run/console"; } >&2
  exit 125
}

# Bash has read all of this file before it runs it, so an edit leaves running machines alone.
main "$@"
