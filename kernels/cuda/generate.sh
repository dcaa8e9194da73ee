#!/bin/sh
# Makes zkernels_sm80.ptx.gz of the kernels: PTX for every GPU from compute capability 8.0 on, which the driver compiles for the
# one at hand. Needs Debian's clang-19, and no CUDA toolkit. Without that compiler it leaves the file and says so.
set -eu
cd "$(dirname "$0")"
if ! command -v clang-19 >/dev/null; then
	echo "kernels/cuda: no clang-19 here: zkernels_sm80.ptx.gz is left as it is, unproven" >&2
	exit 0
fi
ptx=$(mktemp)
trap 'rm -f "$ptx"' EXIT
clang-19 -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch=sm_80 -std=c++20 -O3 -ffp-contract=off \
	-Wall -Werror -fno-verbose-asm -S -o "$ptx" kernels.cu
if [ -f zkernels_sm80.ptx.gz ] && gzip -dc zkernels_sm80.ptx.gz | cmp -s - "$ptx"; then
	exit 0 # the same text, whatever gzip packed it
fi
gzip -n9 <"$ptx" >zkernels_sm80.ptx.gz
