#!/bin/sh
# Runs the GPU tests and figures from the binaries beside it, on a machine with a driver. Full logs go to the folder given.
# usage: run.sh OUTPUT-FOLDER [GROUP…], where a group is values, long, litmus, machine, comm, bench, apart, figures, shapes, soak or memcheck; without, values long litmus machine comm bench apart figures
cd "$(dirname "$0")" || exit 1
out=${1:?usage: run.sh OUTPUT-FOLDER [values] [long] [litmus] [machine] [comm] [bench] [apart] [figures] [shapes] [soak] [memcheck]}
shift
[ $# -gt 0 ] || set -- values long litmus machine comm bench apart figures
export GCCL_REQUIRE=cuda
status=0
run() { # name, seconds, command…
	name=$1 seconds=$2
	shift 2
	start=$(date +%s)
	timeout "$seconds" "$@" >"$out/$name.log" 2>&1
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
	values)
		run kernels 90 ./cuda.test -test.v -test.short -test.timeout 80s
		run collectives 120 ./gpu.test -test.v -test.timeout 110s -test.skip 'LongOfEvery|Huge|Litmus'
		;;
	long) run long 200 ./gpu.test -test.v -test.timeout 190s -test.run 'LongOfEvery|Huge' && grep '_test.go\|^--- ' "$out/long.log" ;;
	litmus) run litmus 200 ./gpu.test -test.v -test.timeout 190s -test.run Litmus && grep '_test.go\|--- ' "$out/litmus.log" ;;
	machine)
		run nvml 30 ./nvml.test -test.v -test.run ThisHost && cat "$out/nvml.log"
		run doctor 20 ./gccl doctor --all
		cat "$out/doctor.log"
		run topo 20 ./gccl topo && cat "$out/topo.log"
		;;
	comm)
		run example 20 ./example && cat "$out/example.log"
		run comm 120 ./comm.test -test.v -test.timeout 110s -test.run 'Device'
		;;
	bench)
		run bench-graph 60 ./gccl bench all_reduce --device cuda --ranks 8 --graph -b 1K -e 1M -f 4 -n 9 -m 20 && cat "$out/bench-graph.log"
		run bench-long 60 ./gccl bench all_reduce --device cuda --ranks 8 --graph -b 4M -e 1G -f 4 -n 9 -m 5 -c 0 && cat "$out/bench-long.log"
		run bench-eager 60 ./gccl bench all_reduce --device cuda --ranks 8 -b 8K -e 8K -n 20 -m 200 && cat "$out/bench-eager.log"
		for kind in all_gather reduce_scatter broadcast reduce alltoall sendrecv barrier; do
			run "bench-$kind" 60 ./gccl bench $kind --device cuda --ranks 5 -d all -o all -b 100K -e 100K -n 3 -m 3 -r all
		done
		run bench-types 90 ./gccl bench all_reduce --device cuda --ranks 3 -d all -o all -b 1 -e 100K -f 37 -n 3 -m 3
		;;
	apart) # ranks in processes of their own
		run faults 60 ./faults.test -test.v -test.timeout 55s -test.run OnGPU
		for n in 2 8; do
			run "apart-$n" 90 ./gccl run -n $n -- ./gccl bench all_reduce --device cuda -b 8 -e 64M -f 8 -n 30 -m 5 && cat "$out/apart-$n.log"
		done
		for kind in all_gather reduce_scatter broadcast reduce alltoall sendrecv; do
			run "apart-$kind" 60 ./gccl run -n 3 -- ./gccl bench $kind --device cuda -d all -o all -r all -b 100K -e 100K -n 3
		done
		;;
	figures)
		run figures 90 ./figures.test -test.v -test.timeout 80s -test.run Figures && cat "$out/figures.log"
		run linked 30 env CUDA_DEVICE_MAX_CONNECTIONS=32 ./figures.test -test.v -test.timeout 25s -test.run LinkedFigures && cat "$out/linked.log"
		;;
	shapes) run shapes 60 env GCCL_SHAPES=1 ./figures.test -test.v -test.timeout 50s -test.run Shapes ;;
	soak) run soak 170 ./gpu.test -test.v -test.timeout 160s -test.run GoroutinesMeet -test.count 100 ;;
	memcheck)
		run memcheck-collectives 60 compute-sanitizer --tool memcheck --error-exitcode 9 ./gpu.test -test.v -test.short -test.timeout 55s \
			-test.run 'Algorithms|BatchOnGPU|FactorsOnGPU|Transfers|SeveralDevices'
		run memcheck-kernels 60 compute-sanitizer --tool memcheck --error-exitcode 9 ./cuda.test -test.v -test.short -test.timeout 55s -test.run 'Copy|Graph|Foreign'
		;;
	esac
done
exit $status
