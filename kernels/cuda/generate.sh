#!/bin/sh
# Makes PTX of the kernels, packed: kernels and wire for every GPU from compute capability 8.0 on, wire also from 9.0 on, where a kernel may
# begin before the one ahead has ended, float8 from 9.0 on alone. The driver compiles it for the one at hand. Needs Debian's clang-19, and
# no CUDA toolkit. Without that compiler it leaves the files and says so.
set -eu
cd "$(dirname "$0")"
if ! command -v clang-19 >/dev/null; then
	echo "kernels/cuda: no clang-19 here: the PTX is left as it is, unproven" >&2
	exit 0
fi
ptx=$(mktemp)
trap 'rm -f "$ptx"' EXIT
make_ptx() { # source, architecture
	packed=z$1_$(echo "$2" | tr -d _).ptx.gz
	clang-19 -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch="$2" -std=c++20 -O3 -ffp-contract=off \
		-Wall -Werror -fno-verbose-asm -S -o "$ptx" "$1.cu"
	if [ -f "$packed" ] && gzip -dc "$packed" | cmp -s - "$ptx"; then
		return # the same text, whatever gzip packed it
	fi
	gzip -n9 <"$ptx" >"$packed"
}
make_ptx kernels sm_80
make_ptx float8 sm_90
make_ptx wire sm_80
make_ptx wire sm_90
