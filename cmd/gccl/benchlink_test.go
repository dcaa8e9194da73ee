package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBenchOfALink: one connection's bandwidth and latency come out in perftest's columns, with figures that fit together.
func TestBenchOfALink(t *testing.T) {
	figures := func(args ...string) (head string, rows [][]float64) {
		o := command(t, nil, append([]string{"bench"}, args...)...)
		require.Equal(t, 0, o.code, o.stderr)
		all := strings.Split(strings.TrimSpace(o.stdout), "\n")
		for _, line := range all[1:] {
			var row []float64
			for _, word := range strings.Fields(line) {
				x, err := strconv.ParseFloat(word, 64)
				require.NoError(t, err, line)
				row = append(row, x)
			}
			rows = append(rows, row)
		}
		return strings.Join(strings.Fields(all[0]), " "), rows
	}
	head, rows := figures("write_bw", "--transport", "tcp", "-s", "64K", "-n", "300", "-w", "20")
	require.Equal(t, "#bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]", head)
	require.Len(t, rows, 1)
	row := rows[0]
	require.Equal(t, []float64{65536, 300}, row[:2])
	require.GreaterOrEqual(t, row[2], row[3])
	require.InEpsilon(t, row[3], row[4]*1e6/16, 0.01, "16 messages are a MB")

	head, rows = figures("send_lat", "--transport", "tcp", "-n", "300")
	require.Equal(t, "#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] 99% percentile[usec] 99.9% percentile[usec]", head)
	row = rows[0]
	require.Equal(t, []float64{8, 300}, row[:2])
	for _, pair := range [][2]int{{2, 4}, {4, 7}, {7, 8}, {8, 3}, {2, 5}, {5, 3}} {
		require.LessOrEqual(t, row[pair[0]], row[pair[1]], "columns %v of %v", pair, row)
	}

	_, rows = figures("write_bw", "--transport", "tcp", "-a", "-n", "5", "-w", "0")
	require.Len(t, rows, 23)

	for _, args := range [][]string{{"-s", "1G"}, {"--transport", "shm"}, {"-n", "0"}, {"64K"}} {
		require.Equal(t, 2, command(t, nil, append([]string{"bench", "write_lat"}, args...)...).code, "%v", args)
	}
	for args, says := range map[string]string{
		"write_bw -a -s 8":                         "-a and -s",
		"read_bw -s 0":                             "-s 0; want 1 to 64M",
		"write_bw -t 100":                          "-t 100; want a power of two",
		"write_bw -t 512":                          "-t 512; want a power of two from 4 to 256",
		"write_lat --transport tcp -t 8":           "--tx-depth with --transport tcp",
		"read_bw --transport tcp":                  "tcp has no one-sided operations",
		"atomic_lat --transport tcp":               "tcp has no one-sided operations",
		"atomic_lat --transport shm":               "want verbs",
		"write_bw --all --size 64K --iters 1":      "-a and -s",
		"write_bw --transport tcp --tx-depth 1024": "-t 1024",
	} {
		o := command(t, nil, append([]string{"bench"}, strings.Fields(args)...)...)
		require.Equal(t, 2, o.code, "%s: %s", args, o.stderr)
		require.Contains(t, o.stderr, says)
		require.Empty(t, o.stdout)
	}
	o := command(t, []string{"GCCL_RDMA_DEVICE==none"}, "bench", "write_lat")
	require.NotZero(t, o.code)
	require.Contains(t, o.stderr, "verbs: ")

	// The settings that a connection has a use for hold.
	o = command(t, []string{"GCCL_SOCKET_IFNAME=none"}, "bench", "write_lat", "--transport", "tcp", "-n", "1")
	require.Equal(t, 1, o.code)
	require.Contains(t, o.stderr, "no interface matches none; have: lo")
	o = command(t, []string{"GCCL_SOCKET_IFNAME==lo"}, "bench", "write_lat", "--transport", "tcp", "-n", "1")
	require.Zero(t, o.code, o.stderr)
	o = command(t, []string{"GCCL_RANK=1", "GCCL_WORLD_SIZE=2", "GCCL_SECRET=x", "GCCL_ROOT=no.such.host.invalid:1", "GCCL_INIT_TIMEOUT=10ms"}, "bench", "write_lat", "--transport", "tcp")
	require.Equal(t, 1, o.code)
	require.Contains(t, o.stderr, "the root at no.such.host.invalid:1 timed out", "a name may resolve later")
}
