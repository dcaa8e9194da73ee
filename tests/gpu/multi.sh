#!/bin/sh
# Runs what concerns several GPUs, from the binaries beside it, on a machine with a driver and as many GPUs as it has. Full logs go to
# the folder given. NVLink multicast stays off.
# usage: multi.sh OUTPUT-FOLDER [GROUP…], where a group is facts, values, comm, bench, apart, speed or soak; without, all but soak.
# MULTI_KINDS: comma-separated kinds to measure, instead of all.
cd "$(dirname "$0")" || exit 1
out=${1:?usage: multi.sh OUTPUT-FOLDER [facts] [values] [comm] [bench] [apart] [speed] [soak]}
shift
[ $# -gt 0 ] || set -- facts values comm bench apart speed
export GCCL_REQUIRE=cuda NCCL_NVLS_ENABLE=0
status=0
run() { # name, seconds, command…
	name=$1 seconds=$2
	shift 2
	start=$(date +%s)
	timeout -s QUIT -k 5 "$seconds" "$@" >"$out/$name.log" 2>&1
	rc=$?
	echo "$name: exit $rc after $(($(date +%s) - start)) s: $(tail -1 "$out/$name.log")"
	[ $rc -eq 0 ] && return 0
	status=1
	grep -m 12 -A 6 -e '--- FAIL' -e 'Error:' -e '^panic' "$out/$name.log"
	return 1
}
{ date -u; nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader; uname -r; } 2>&1 | tee "$out/machine.log"
for group in "$@"; do
	case $group in
	facts)
		run nvml 30 ./nvml.test -test.v -test.run ThisHost
		run topo 20 ./gccl topo && cat "$out/topo.log"
		run topo-matrix 20 nvidia-smi topo -m && cat "$out/topo-matrix.log"
		run doctor 20 ./gccl doctor
		;;
	values)
		run devices 40 ./cuda.test -test.v -test.timeout 30s -test.run 'Connect|Import|Memory'
		run multi-values 150 ./gpu.test -test.v -test.timeout 140s -test.run 'Several|Transfers|Across|Missing|Parts' -test.skip Shapes
		;;
	comm) run multi-comm 90 ./comm.test -test.v -test.timeout 80s -test.run SeveralGPUs ;;
	bench)
		gpus=$(nvidia-smi -L | grep -c '^GPU')
		list=$(seq -s, 0 $((gpus - 1)))
		for kind in all_reduce all_gather reduce_scatter broadcast reduce alltoall sendrecv barrier; do
			run "bench-$kind" 40 ./gccl bench $kind --device cuda --gpus "$list" --ranks "$gpus" -d all -o all -b 4 -e 100K -f 160 -n 3 -m 3 -r all
		done
		run bench-long 40 ./gccl bench all_reduce --device cuda --gpus "$list" --ranks "$gpus" --graph -b 1K -e 256M -f 16 -n 5 -m 4 && cat "$out/bench-long.log"
		;;
	apart) # a process for each GPU
		gpus=$(nvidia-smi -L | grep -c '^GPU')
		run apart-faults 60 ./faults.test -test.v -test.timeout 55s -test.run OnGPU
		for kind in all_reduce all_gather reduce_scatter broadcast reduce alltoall sendrecv barrier; do
			run "apart-$kind" 40 ./gccl run -n "$gpus" -- ./gccl bench $kind --device cuda -d all -o all -b 4 -e 100K -f 160 -n 3 -m 3 -r all
		done
		for kind in all_reduce all_gather reduce_scatter broadcast alltoall sendrecv; do
			run "apart-long-$kind" 40 ./gccl run -n "$gpus" -- ./gccl bench $kind --device cuda -b 8 -e 1G -f 8 -n 9 -m 5 && cat "$out/apart-long-$kind.log"
		done
		;;
	speed)
		nccl=$(find / -name libnccl.so.2 -not -path '/proc/*' 2>/dev/null | head -1)
		run multi-speed 280 env LD_LIBRARY_PATH="$(dirname "${nccl:-/}"):$LD_LIBRARY_PATH" GCCL_MULTI="${MULTI_KINDS:-all}" \
			./figures.test -test.v -test.timeout 270s -test.run MultiFigures
		cat "$out/multi-speed.log"
		;;
	soak) run multi-soak 120 ./gpu.test -test.v -test.timeout 110s -test.run 'AcrossSoak|Litmus' -test.count 5 ;;
	esac
done
exit $status
