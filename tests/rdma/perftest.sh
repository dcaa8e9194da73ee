#!/usr/bin/env bash
# perftest.sh GCCL [ROUNDS [ITERATIONS [NAME...]]]: gccl's connection beside perftest's, by turns on one device in one machine, and the
# median of all rounds: bandwidth or latency, and the packets that the device sent for each message; and the best of all, the greatest
# peak or the least time, which says more where others use the processors. Run it by vm.sh, or where there is a Soft-RoCE device; DEVICE
# and GID_INDEX say which. NAMEs are of what to compare, as write_bw or atomic_lat; without, all.
set -euo pipefail
gccl=$1 rounds=${2:-10} iterations=${3:-200} names=${*:4}
device=${DEVICE:-rxe0} gid=${GID_INDEX:-1}
counter=/sys/class/infiniband/$device/ports/1/hw_counters/sent_pkts
export GCCL_RDMA_DEVICE="=$device" GCCL_GID_INDEX=$gid
packets() { cat "$counter" 2>/dev/null || echo 0; }

# ours and theirs print the last line's figure in the column that is asked for, and the one in the third, the best.
ours() { # name column arguments
	local name=$1 column=$2
	shift 2
	"$gccl" bench "$name" -w 0 "$@" | awk -v c="$column" 'END {print $c, $3}'
}
# perftest's two ends find each other over TCP, and now and then do not on a loaded machine: then once more.
theirs() {
	local name=$1 column=$2 server figure
	shift 2
	for _ in 1 2 3 4 5; do
		"ib_$name" -F -d "$device" -x "$gid" "$@" >/dev/null 2>&1 &
		server=$!
		for _ in $(seq 200); do # until it listens
			grep -q ':4853 ' /proc/net/tcp /proc/net/tcp6 && break
			sleep 0.05
		done
		figure=$("ib_$name" -F -d "$device" -x "$gid" "$@" 127.0.0.1 2>"$results/why" | awk -v c="$column" '/^ *[0-9]+ +[0-9]+ / {v = $c " " $3} END {print v}') || figure=
		[ -n "$figure" ] || kill $server 2>/dev/null || true
		wait $server || true
		[ -z "$figure" ] || { echo "$figure"; return; }
	done
	echo "perftest.sh: ib_$name gave no figure: $(cat "$results/why")" >&2
	return 1
}
median() { sort -g | awk '{v[NR] = $1} END {printf "%.2f", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
best() { awk '{print $2}' | sort "$1" | head -n 1; }
spread() { sort -g | awk 'NR == 1 {low = $1} {high = $1} END {printf "%.2f-%.2f", low, high}'; }

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
compare() { # title name column messages arguments
	local title=$1 name=$2 column=$3 messages=$4
	shift 4
	[[ -z $names || " $names " == *" $name "* ]] || return 0
	set -- "$@" -n "$messages"
	local order=-gr # a bandwidth
	[[ $name != *_lat ]] || order=-g
	: > "$results/figure.ours"; : > "$results/figure.theirs"; : > "$results/packets.ours"; : > "$results/packets.theirs"
	for _ in $(seq "$rounds"); do
		for who in theirs ours; do
			before=$(packets)
			$who "$name" "$column" "$@" >> "$results/figure.$who"
			awk -v a="$before" -v b="$(packets)" -v n="$messages" 'BEGIN {print (b - a) / n}' >> "$results/packets.$who"
		done
	done
	awk -v title="$title" -v t="$(median < "$results/figure.theirs")" -v o="$(median < "$results/figure.ours")" \
		-v tb="$(best $order < "$results/figure.theirs")" -v ob="$(best $order < "$results/figure.ours")" \
		-v ts="$(spread < "$results/figure.theirs")" -v os="$(spread < "$results/figure.ours")" \
		-v tp="$(median < "$results/packets.theirs")" -v op="$(median < "$results/packets.ours")" 'BEGIN {
		printf "%-28s perftest %10s (%s)  gccl %10s (%s)  gccl/perftest %.2f  best %s and %s: %.2f  packets a message: perftest %s, gccl %s\n", title, t, ts, o, os, o / t, tb, ob, ob / tb, tp, op}'
}
few=$((iterations / 10 > 5 ? iterations / 10 : 5)) # of long ones
compare "write_bw 64 KiB, MB/s" write_bw 4 "$iterations" -s 65536
compare "write_bw 1 MiB, MB/s" write_bw 4 "$few" -s 1048576
compare "write_lat 8 B typical, us" write_lat 5 "$((iterations * 5))" -s 8
compare "send_lat 8 B typical, us" send_lat 5 "$((iterations * 5))" -s 8
compare "read_bw 64 KiB, MB/s" read_bw 4 "$iterations" -s 65536
compare "atomic_lat typical, us" atomic_lat 5 "$((iterations * 5))"
