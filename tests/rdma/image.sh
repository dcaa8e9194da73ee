#!/usr/bin/env bash
# image.sh DIR: makes what vm.sh boots: the kernel of Debian's package, unpacked into DIR and installed nowhere, and an initramfs of a
# static busybox, the modules of Soft-RoCE and init. Installs what is missing where it may. Does nothing when DIR is complete.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"

packages="qemu-system-x86 busybox-static cpio kmod xz-utils rdma-core ibverbs-utils ibverbs-providers libibverbs-dev perftest iproute2"
missing=$(dpkg-query -W -f '${Package} ${Status}\n' $packages 2>/dev/null | awk '$4 == "installed" {print $1}' | grep -vxFf - <(printf '%s\n' $packages) || true)
if [ -n "$missing" ]; then
	apt-get update -q >&2
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >&2
fi

# What boots must come first. rdma_ucm and the queueing disciplines are for who tries things out in there.
boot="virtio_pci virtio_console 9pnet_virtio 9p overlay"
rdma="crc32_generic crc32_pclmul rdma_rxe ib_uverbs rdma_ucm veth dummy"
# files prints those of modules and of what they need, in the order of loading.
files() { for m in $1; do modprobe -S "$release" -d kernel --show-depends "$m"; done | awk '$1 == "insmod" && !seen[$2]++ {print $2}'; }

if [ ! -s release ]; then
	package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ {print $2; exit}')
	release=${package#linux-image-}
	fresh=$(mktemp -d)
	trap 'rm -rf "$fresh"' EXIT
	(cd "$fresh" && chmod 755 . && apt-get download "$package" >&2)
	rm -rf kernel && mkdir kernel
	dpkg -x "$fresh/$package"_*.deb kernel
	depmod -b kernel "$release"
	# Of 450 MB a few are needed.
	keep=$(mktemp "$fresh/keep.XXXXXX")
	{ files "$boot $rdma"; find kernel -path '*/net/sched/*.ko'; } | xargs realpath > "$keep"
	find "$PWD/kernel/lib" -name '*.ko' | grep -vxFf "$keep" | xargs rm -f
	find kernel/lib -type d -empty -delete
	rm -rf kernel/usr
	depmod -b kernel "$release"
	echo "$release" > release
fi
release=$(cat release)

# QEMU boots an ELF kernel by its PVH note, which saves an emulated CPU the work of unpacking it.
if [ ! -s vmlinux ]; then
	at=$(LC_ALL=C grep -obUaP '\xfd7zXZ\x00' "kernel/boot/vmlinuz-$release" | head -n 1 | cut -d: -f1)
	tail -c "+$((at + 1))" "kernel/boot/vmlinuz-$release" | xz -dc --single-stream > vmlinux.new 2>/dev/null || true
	[ "$(head -c 4 vmlinux.new)" = $'\x7fELF' ] || { echo "image.sh: no ELF kernel in vmlinuz-$release" >&2; exit 1; }
	mv vmlinux.new vmlinux
fi

if [ ! -s initramfs -o "$here/init" -nt initramfs -o "$here/image.sh" -nt initramfs ]; then
	rm -rf root && mkdir -p root/bin root/modules root/proc root/sys root/dev root/host root/scratch root/root
	cp "$(command -v busybox)" root/bin/busybox
	cp "$here/init" root/init
	chmod +x root/init
	list() {
		files "$2" | while read -r file; do
			name=$(basename "$file")
			[ -e "root/modules/$name" ] && continue
			cp "$file" root/modules/
			echo "$name"
		done > "root/$1"
	}
	list boot "$boot"
	list rdma "$rdma"
	strip --strip-debug root/modules/*.ko
	(cd root && find . | cpio -o -H newc --quiet) > initramfs.new
	mv initramfs.new initramfs
	rm -rf root
fi
