#!/usr/bin/env bash
# test.sh [FLAG...]: runs the tests that need RDMA devices, with these flags of test binaries: here, where there are devices, else in a
# virtual machine that has some, booted once for all of them. With GCCL_TEST_FULL=1 all of them, which takes hours, else pairs. Where there
# is no GPU, what devices do with memory of GPUs is tested on emulated ones, for which g++ is needed.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages="transport/verbs/internal/ibv transport/verbs tests/e2e tests/faults"
binaries=build/rdma-tests
mkdir -p "$binaries"
for p in $packages; do ${GO:-go} test -c -o "$binaries/$(basename "$p").test" "./$p"; done
${GO:-go} build -o "$binaries/gccl" ./cmd/gccl
rm -rf "$binaries/emulator"
require=verbs
if [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ] && ls /dev/nvidia[0-9]* >/dev/null 2>&1; then # the virtual machine has none
	require=verbs,cuda
elif command -v "${CXX:-g++}" >/dev/null; then
	require=verbs,cuda
	kernels/cuda/emulator/build.sh "$binaries/emulator"
fi
limit=1200
[ -z "${GCCL_TEST_FULL:-}" ] || limit=43200
# Of the end-to-end tests those over RDMA devices, and of NUMA nodes, of which the virtual machine has two; of the failures those that take no
# minutes in an emulated machine.
run='status=0
export LD_LIBRARY_PATH=$0/emulator${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
for p in '"$packages"'; do
	only=
	case $p in
	tests/e2e) only="-test.run=OverRDMA|TestMemoryIsNear" ;;
	tests/faults) only="-test.run=FlippedBit|UC01_AnotherShape"
		[ -z "${GCCL_TEST_FULL:-}" ] || only="-test.run=FlippedBit|UC01_AnotherShape|UC02|UC04|UC09|UC12|UC27|UC85|UC87|UC92|Mismatches|PausedRank|Recorder|Strikes" ;;
	esac
	(cd "$p" && exec "$0/$(basename "$p").test" -test.timeout '"$limit"'s $only "$@") && echo "ok $p" || { echo "FAIL $p"; status=1; }
done
GCCL_TRANSPORT=verbs "$0/gccl" bench all_reduce -b 8 -e 64K -f 16 -n 5 && echo "ok bench" || { echo "FAIL bench"; status=1; }
for link in write_bw write_lat send_lat read_bw atomic_lat; do
	"$0/gccl" bench $link -n 200 -w 0 && echo "ok $link" || { echo "FAIL $link"; status=1; }
done
for link in read_bw atomic_lat; do # of the memory of GPUs
	[[ $GCCL_REQUIRE != *cuda* ]] || { "$0/gccl" bench $link --use_cuda 0 -n 200 -w 0 && echo "ok $link of GPU memory"; } || { echo "FAIL $link of GPU memory"; status=1; }
done
[[ $GCCL_REQUIRE != *cuda* ]] || { GCCL_TRANSPORT=verbs "$0/gccl" run -n 2 -- "$0/gccl" bench all_reduce --device cuda -b 8 -e 64K -f 16 -n 5 && echo "ok bench of GPU memory"; } || { echo "FAIL bench of GPU memory"; status=1; }
# The doctor compares a plan with what the device says to others, too.
doctor() {
	local plan word
	plan=$(GCCL_TRANSPORT=verbs "$0/gccl" doctor --plan 2 --all) || return 1
	for word in max_qp max_cqe; do
		grep -q "the device has $word $(ibv_devinfo -v -d rxe0 | awk -v w=$word: "\$1 == w {print \$2; exit}")\$" <<< "$plan" || return 1
	done
	! plan=$(GCCL_TRANSPORT=verbs GCCL_QP_COUNT=32 "$0/gccl" doctor --plan 65536) && grep -q "^FAIL *plan_qps: 2097120 queue pairs" <<< "$plan"
}
[ -z "${GCCL_RDMA_VM:-}" ] || { doctor && echo "ok doctor"; } || { echo "FAIL doctor"; status=1; }
exit $status'
if [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
	GCCL_REQUIRE=$require bash -c "$run" "$PWD/$binaries" "$@"
else
	GCCL_REQUIRE=$require,numa tests/rdma/vm.sh --timeout "$limit" bash -c "$run" "$PWD/$binaries" "$@"
fi
