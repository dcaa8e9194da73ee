#!/bin/sh
# Runs the GPU tests and figures from the binaries beside it, on a machine with a driver. Full logs go to the folder given.
# usage: run.sh OUTPUT-FOLDER [GROUP…], where a group is values, waiting, figures, shapes or memcheck; without, values waiting figures
cd "$(dirname "$0")" || exit 1
out=${1:?usage: run.sh OUTPUT-FOLDER [values] [waiting] [figures] [shapes] [memcheck]}
shift
[ $# -gt 0 ] || set -- values waiting figures
export GCCL_REQUIRE=cuda
status=0
run() { # name, seconds, command…
	name=$1 seconds=$2
	shift 2
	start=$(date +%s)
	timeout "$seconds" "$@" >"$out/$name.log" 2>&1
	rc=$?
	echo "$name: exit $rc after $(($(date +%s) - start)) s: $(tail -1 "$out/$name.log")"
	if [ $rc -ne 0 ]; then
		status=1
		grep -m 12 -A 6 -e '--- FAIL' -e 'Error:' -e '^panic' "$out/$name.log"
	fi
}
{ date -u; nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader; uname -r; } 2>&1 | tee "$out/machine.log"
for group in "$@"; do
	case $group in
	values)
		run kernels 90 ./cuda.test -test.v -test.short -test.timeout 80s
		run collectives 100 ./gpu.test -test.v -test.timeout 90s -test.skip 'Waiting|Abort|TooMany'
		;;
	waiting) run waiting 50 ./gpu.test -test.v -test.timeout 40s -test.run 'Waiting|Abort|TooMany' ;;
	figures) run figures 90 ./figures.test -test.v -test.timeout 80s -test.run Figures && cat "$out/figures.log" ;;
	shapes) run shapes 60 env GCCL_SHAPES=1 ./figures.test -test.v -test.timeout 50s -test.run Shapes ;;
	memcheck) run memcheck 200 compute-sanitizer --tool memcheck ./gpu.test -test.v -test.short -test.timeout 190s -test.run 'Algorithms|Waiting' ;;
	esac
done
exit $status
