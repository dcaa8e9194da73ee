#!/usr/bin/env bash
# vm.sh [options] COMMAND [ARGUMENT...]: runs a command of this host, as root and in this directory and environment, in a virtual
# machine whose kernel has Soft-RoCE, with the devices of net.sh. Output and exit status are the command's; 124 when the time was
# over, 125 when the machine did not start. What the command writes to files is thrown away.
#
#	--timeout S   seconds for the whole machine; 600
#	--cpus N      2, at least
#	--memory MIB  3072; it and the processors belong to two NUMA nodes, by halves
#	--image DIR   build/rdma-vm of the repository
#	--append ARGS for the kernel's command line
#
# KVM is used where the processor has it, else QEMU emulates: then what is measured inside means something only beside what else is.
set -u
here=$(cd "$(dirname "$0")" && pwd)
image=$here/../../build/rdma-vm timeout=600 cpus=2 memory=3072 append=
while [ $# -gt 0 ]; do
	case $1 in
	--timeout) timeout=$2; shift 2 ;;
	--cpus) cpus=$2; shift 2 ;;
	--memory) memory=$2; shift 2 ;;
	--image) image=$2; shift 2 ;;
	--append) append=$2; shift 2 ;;
	--*) echo "vm.sh: unknown option $1" >&2; exit 125 ;;
	*) break ;;
	esac
done
[ $# -gt 0 ] || { sed -n '2,/^set/p' "$0" | sed '$d' >&2; exit 125; }
"$here/image.sh" "$image" || exit 125
image=$(realpath "$image")

# A /dev/kvm without vmx or svm runs only kernels that were built for it.
if grep -qwE 'vmx|svm' /proc/cpuinfo && { : <>/dev/kvm; } 2>/dev/null; then
	accel="-accel kvm -cpu host"
else
	accel="-accel tcg,thread=multi,tb-size=512 -cpu max"
fi

job=$(mktemp -d "${TMPDIR:-/tmp}/gccl-rdma-vm.XXXXXX")
trap 'rm -rf "$job"' EXIT
echo "$image/kernel/lib/modules/$(cat "$image/release")" > "$job/modules"
cp "$here/net.sh" "$job/net.sh"
{
	export -p | grep -vE '^declare -x (PWD|OLDPWD|SHLVL|_|TMPDIR)(=|$)'
	echo "ulimit -l unlimited -n 65536"
	echo "export GCCL_RDMA_VM=1"
	echo ". /run/job/net.sh || exit 125"
	printf 'cd %q || exit 125\nexec' "$PWD"
	printf ' %q' "$@"
	echo
} > "$job/start"
mkfifo "$job/out" "$job/err"
cat < "$job/out" & out=$!
cat < "$job/err" >&2 & err=$!
half=$((memory / 2))
numa="-object memory-backend-ram,id=near,size=${half}M -object memory-backend-ram,id=far,size=${half}M"
numa+=" -numa node,memdev=near,cpus=0-$((cpus / 2 - 1)) -numa node,memdev=far,cpus=$((cpus / 2))-$((cpus - 1))"
timeout -k 5 "$timeout" qemu-system-x86_64 $accel -M q35 -smp "$cpus" -m $((2 * half)) $numa \
	-nodefaults -no-user-config -display none -no-reboot -kernel "$image/vmlinux" -initrd "$image/initramfs" \
	-append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off $append" -serial "file:$job/console" \
	-virtfs "local,path=/,mount_tag=host,security_model=passthrough,readonly=on,multidevs=remap" \
	-virtfs "local,path=$job,mount_tag=job,security_model=passthrough" \
	-device virtio-serial-pci \
	-chardev "file,id=out,path=$job/out,append=on" -device virtserialport,chardev=out,name=out \
	-chardev "file,id=err,path=$job/err,append=on" -device virtserialport,chardev=err,name=err \
	</dev/null >"$job/qemu" 2>&1
ended=$?
# A machine that failed before it opened the pipes would leave their readers waiting.
exec 8<>"$job/out" 9<>"$job/err"
exec 8>&- 9>&-
wait $out $err
if [ -s "$job/status" ]; then
	exit "$(cat "$job/status")"
elif [ $ended = 124 ] || [ $ended = 137 ]; then
	echo "vm.sh: stopped after $timeout s" >&2
	exit 124
fi
echo "vm.sh: the machine ended without a status (qemu: $ended)" >&2
cat "$job/qemu" >&2
tail -n 20 "$job/console" >&2 2>/dev/null
exit 125
