#!/bin/sh
# Makes an emulated CUDA driver: the kernels' own sources as code of this processor, behind the driver's functions that gccl calls. Who
# has its folder in LD_LIBRARY_PATH runs on emulated GPUs. usage: build.sh FOLDER
set -eu
out=${1:?usage: build.sh FOLDER}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")"
cxx() { "${CXX:-g++}" -std=c++20 -O1 -g0 -fPIC -fvisibility=hidden -ffp-contract=off -fno-strict-aliasing -pthread -Wall -I.. "$@"; }
for source in fiber stream memory driver; do cxx -c -o "$out/$source.o" "$source.cc"; done
for source in kernels float8 wire; do cxx -I. -x c++ -c -o "$out/$source.o" "../$source.cu"; done
cxx -shared -Wl,-soname,libcuda.so.1 -o "$out/libcuda.so.1" "$out"/*.o
