#!/usr/bin/env bash
# perftest.sh GCCL [ROUNDS [ITERATIONS [NAME...]]]: gccl's connection beside perftest's, by turns on one device in one machine, and the
# median of all rounds: bandwidth or latency, and the packets that the device sent for each message; and the best of all, the greatest
# peak or the least time, which says more where others use the processors. Then comes what both ends together ask of the device for each
# message: posts to send queues and to receive queues with the requests in them, and polls that found something with the completions (how many
# find nothing says only how long a process spun). That is counted in runs of their own (count.c), as the difference between two of different
# lengths, which leaves the set-up out. Run it by vm.sh, or where there is a Soft-RoCE device; DEVICE and GID_INDEX say which. NAMEs are of
# what to compare, as write_bw or atomic_lat; without, all.
set -euo pipefail
gccl=$1 rounds=${2:-10} iterations=${3:-200} names=${*:4}
device=${DEVICE:-rxe0} gid=${GID_INDEX:-1}
sent=/sys/class/infiniband/$device/ports/1/hw_counters/sent_pkts
export GCCL_RDMA_DEVICE="=$device" GCCL_GID_INDEX=$gid
packets() { cat "$sent" 2>/dev/null || echo 0; }

# ours and theirs print the last line's figure in the column that is asked for, and the one in the third, the best. Our messages are writes, with
# what tells the receiver: write_bw, where perftest's receiver does nothing, stands beside send_bw, too.
ours() { # name column arguments
	local name=${1/send_bw/write_bw} column=$2
	shift 2
	LD_AUDIT=$audit "$gccl" bench "$name" -w 0 "$@" | awk -v c="$column" 'END {print $c, $3}'
}
# perftest's two ends find each other over TCP, and now and then do not on a loaded machine: then once more.
theirs() {
	local name=$1 column=$2 server figure
	shift 2
	for _ in 1 2 3 4 5; do
		LD_AUDIT=$audit "ib_$name" -F -d "$device" -x "$gid" "$@" >/dev/null 2>&1 &
		server=$!
		for _ in $(seq 200); do # until it listens
			grep -q ':4853 ' /proc/net/tcp /proc/net/tcp6 && break
			sleep 0.05
		done
		figure=$(LD_AUDIT=$audit "ib_$name" -F -d "$device" -x "$gid" "$@" 127.0.0.1 2>"$results/why" | awk -v c="$column" '/^ *[0-9]+ +[0-9]+ / {v = $c " " $3} END {print v}') || figure=
		[ -n "$figure" ] || kill $server 2>/dev/null || true
		wait $server || true
		[ -z "$figure" ] || { echo "$figure"; return; }
	done
	echo "perftest.sh: ib_$name gave no figure: $(cat "$results/why")" >&2
	return 1
}
median() { sort -g | awk '{v[NR] = $1} END {printf "%.4g", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
best() { awk '{print $2}' | sort "$1" | head -n 1; }
spread() { sort -g | awk 'NR == 1 {low = $1} {high = $1} END {printf "%.2f-%.2f", low, high}'; }

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
audit=
counter=$results/auditor.so
"${CC:-cc}" -O1 -shared -fPIC -o "$counter" "$(dirname "$0")/count.c"
export COUNTS=$results/count

# counted runs one side for so many messages and prints what it asked of the device, all processes together: the numbers of count.c.
counted() { # ours or theirs, name, messages, arguments
	local who=$1 name=$2 messages=$3
	shift 3
	rm -f "$COUNTS".*
	audit=$counter $who "$name" 4 "$@" -n "$messages" >/dev/null
	for f in "$COUNTS".*; do od -An -v -tu8 -w48 "$f"; done | awk '{for (i = 1; i <= 6; i++) n[i] += $i} END {print n[1], n[2], n[3], n[4], n[5], n[6]}'
}
# asked prints the medians of some rounds of that for each message.
asked() { # ours or theirs, name, messages, arguments
	local who=$1 name=$2 messages=$3 i
	shift 3
	: > "$results/asked"
	for _ in $(seq "$((rounds < 3 ? rounds : 3))"); do
		{ counted $who "$name" "$messages" "$@"; counted $who "$name" $((2 * messages)) "$@"; } |
			awk -v n="$messages" 'NR == 1 {split($0, a)} NR == 2 {for (i = 1; i <= 6; i++) printf "%f ", ($i - a[i]) / n; print ""}' >> "$results/asked"
	done
	for i in 1 2 3 4 5 6; do awk -v i=$i '{print $i}' "$results/asked" | median; echo; done | tr '\n' ' '
	echo
}
compare() { # title name column messages bytes arguments; bytes are 0 where their number means nothing
	local title=$1 name=$2 column=$3 messages=$4 bytes=$5
	shift 5
	local arguments=("$@")
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
	{ asked theirs "$name" "$messages" "${arguments[@]}"; asked ours "$name" "$messages" "${arguments[@]}"; } | awk -v bytes="$bytes" '
		{ posts[NR] = $1 + $3; polls[NR] = $5; printf "%-28s %s posts of sends %.2f (%.2f requests), of receives %.2f (%.2f), polls %.2f (%.2f completions)\n", "", NR == 1 ? "perftest" : "gccl    ", $1, $2, $3, $4, $5, $6 }
		END {
			k = bytes ? 1048576 / bytes : 1
			printf "%-28s %s: posts %.2f and %.2f: %.2f, polls %.2f and %.2f: %.2f\n", "", bytes ? "a MiB" : "a message", posts[1] * k, posts[2] * k, posts[2] / posts[1], polls[1] * k, polls[2] * k, polls[2] / polls[1]
		}'
}
few=$((iterations / 10 > 5 ? iterations / 10 : 5)) # of long ones
compare "write_bw 64 KiB, MB/s" write_bw 4 "$iterations" 65536 -s 65536
compare "write_bw 1 MiB, MB/s" write_bw 4 "$few" 1048576 -s 1048576
compare "send_bw 64 KiB, MB/s" send_bw 4 "$iterations" 65536 -s 65536
compare "send_bw 1 MiB, MB/s" send_bw 4 "$few" 1048576 -s 1048576
compare "write_lat 8 B typical, us" write_lat 5 "$((iterations * 5))" 0 -s 8
compare "send_lat 8 B typical, us" send_lat 5 "$((iterations * 5))" 0 -s 8
compare "read_bw 64 KiB, MB/s" read_bw 4 "$iterations" 65536 -s 65536
compare "atomic_lat typical, us" atomic_lat 5 "$((iterations * 5))" 0
