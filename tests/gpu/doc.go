// Package gpu measures collectives on a GPU, and keeps what was measured in RESULTS.md. Right values are tested beside the code, in
// kernels/cuda and collective/gpu; `make test-gpu` runs them on emulated GPUs, on any machine with g++. `make gpu-tests` builds all of it as binaries that need nothing but a driver:
//
//	make gpu-tests
//	build/gpu/run.sh OUTPUT-FOLDER
//	build/gpu/multi.sh OUTPUT-FOLDER # where there are several GPUs; also beside the machine's NCCL
package gpu
