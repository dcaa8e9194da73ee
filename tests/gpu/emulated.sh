#!/bin/sh
# Runs the GPU tests on emulated GPUs (kernels/cuda/emulator), for machines without any: values, orders and refusals, no figures.
# They need g++ and cgo. usage: emulated.sh, with GO in the environment if go is not in PATH
set -eu
cd "$(dirname "$0")/../.."
GO=${GO:-go}
out=$PWD/build/emulator
kernels/cuda/emulator/build.sh "$out"
export LD_LIBRARY_PATH="$out" GCCL_REQUIRE=cuda CGO_ENABLED=1
$GO build -o "$out/gccl" ./cmd/gccl
$GO build -o "$out/example" ./examples/gpu
for package in kernels/cuda/internal/cu kernels/cuda collective/gpu comm cmd/gccl/bench tests/faults; do
	$GO test -c -o "$out/$(basename $package).test" ./$package
done
run() { # package, arguments
	echo "emulated GPUs: $*"
	(cd "$1" && "$out/$(basename "$1").test" -test.short -test.timeout 15m "$2" ${3+"$3"})
}
run kernels/cuda/internal/cu -test.run=.
run kernels/cuda -test.run=.
run collective/gpu -test.run=.
run comm -test.run=Device
GCCL_EMULATOR_GPUS=1 run comm -test.run=DeviceProxy # shared by the ranks
GCCL_EMULATOR_GPUS=5 run comm -test.run=DeviceProxy # each has one alone
GCCL_EMULATOR_GPUS=5 GCCL_TEST_LINKED=1 run comm -test.run=DeviceProxy # … and all are linked
run cmd/gccl/bench -test.run=Device
GCCL_EMULATOR_GPUS=3 run tests/faults -test.run=OnGPU
# A driver that does not tell streams apart.
GCCL_EMULATOR_DRIVER=11080 run collective/gpu -test.run='Renewal|TestPartsAhead'
GCCL_EMULATOR_DRIVER=11080 run comm -test.run=Renewal
# More GPUs than anybody lends us, and small ones.
GCCL_EMULATOR_GPUS=8 run collective/gpu -test.run='TestAcross$|TestAcrossOneWay|TestParts$|TestPartsPost$'
GCCL_EMULATOR_GPUS=4 run comm -test.run=SeveralGPUs
GCCL_EMULATOR_GPUS=3 GCCL_EMULATOR_MULTIPROCESSORS=7 GCCL_EMULATOR_SEED=2 run collective/gpu -test.run='TestAcross|SeveralDevices|TooMany' -test.skip='Long|Abort|Soak|Allocate'
"$out/example"
"$out/gccl" bench all_reduce --device cuda --ranks 3 --gpus 0,1 -d all -o all -b 1 -e 10K -f 37 -n 1 >"$out/bench.log" || { cat "$out/bench.log"; exit 1; }
for kind in all_gather reduce_scatter broadcast reduce alltoall sendrecv barrier; do
	"$out/gccl" bench $kind --device cuda --ranks 3 --graph -b 10K -e 10K -n 2 -m 3 -r all >"$out/bench.log" || { cat "$out/bench.log"; exit 1; }
done
# Ranks in processes of their own: a GPU each, which are linked; and some of one GPU, by way of host memory.
for kind in all_reduce all_gather reduce_scatter broadcast reduce alltoall sendrecv barrier; do
	for what in "-d all -o all -b 4 -e 4K -f 900" "-b 5M -e 5M"; do
		GCCL_EMULATOR_GPUS=3 GCCL_DEBUG=INFO "$out/gccl" run -n 3 -- "$out/gccl" bench $kind --device cuda -r all $what -n 1 -w 1 >"$out/bench.log" 2>&1 &&
			grep -q 'over links between the GPUs' "$out/bench.log" || { cat "$out/bench.log"; exit 1; }
	done
done
for kind in all_reduce all_gather reduce_scatter broadcast reduce alltoall sendrecv barrier; do
	for transport in shm tcp; do
		for what in "-d all -o all -b 4 -e 4K -f 900" "-b 5M -e 5M"; do
			GCCL_TRANSPORT=$transport "$out/gccl" run -n 3 -- "$out/gccl" bench $kind --device cuda -r all $what -n 1 -w 1 >"$out/bench.log" 2>&1 || { cat "$out/bench.log"; exit 1; }
		done
	done
done
echo ok
