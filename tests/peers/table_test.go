//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseRows(t *testing.T) {
	rows, err := parseRows("[host:1] a launcher's warning\nall_reduce 8 0.241 0.400 0 500\nall_reduce 4096 1.171 1.322 0 500\n")
	require.NoError(t, err)
	require.Equal(t, []Row{{Kind: "all_reduce", Bytes: 8, P50: 0.241, P99: 0.4, Calls: 500}, {Kind: "all_reduce", Bytes: 4096, P50: 1.171, P99: 1.322, Calls: 500}}, rows)
	_, err = parseRows("all_reduce 8 0.241 0.400 3 500\n")
	require.ErrorContains(t, err, "3 elements of all_reduce of 8 bytes are wrong")
}

// rows of three repeats: 3, 1 and 2 times a peer's time, whose 99th percentile is tail times as long.
func repeats(peer, kind string, bytes int64, time, tail float64) (rows []Row) {
	for i, f := range []float64{3, 1, 2} {
		rows = append(rows, Row{Peer: peer, Mode: "shm", Kind: kind, Bytes: bytes, P50: f * time, P99: tail * f * time, Repeat: i})
	}
	return rows
}

func TestTable(t *testing.T) {
	rows := append(repeats("openmpi", "all_reduce", 8, 0.5, 10), repeats("mpich", "all_reduce", 8, 1, 2)...)
	rows = append(rows, repeats("gccl-alloc", "all_reduce", 8, 0.2, 10)...)
	rows = append(rows, repeats("gccl-slice", "all_reduce", 8, 0.25, 20)...)
	rows = append(rows, repeats("limit", "sum", 8, 0.1, 10)...)
	rows = append(rows, repeats("limit", "sum_streaming", 8, 0.3, 10)...)
	require.Equal(t, cell{1, 10, 3}, summary(rows)[place{"all_reduce", "openmpi", 8}])
	got := table("shm", "shm", rows, rows)
	require.Regexp(t, `all_reduce +8 +0.4 \(4; 3.00\) +0.5 \(10; 3.00\) +2 \(4; 3.00\) +1 \(10; 3.00\) +0.50 +0.40 +2.50 +1.00 +0.2 +2.00\n`, got)
	got = table("near", "shm", rows[3:], rows)
	require.Regexp(t, `# near: .*\n.*\nall_reduce +8 +0.4 \(4; 3.00\) +0.5 \(10; 3.00\) +2 \(4; 3.00\) +- +- +- +- +- +0.2 +2.00\n`, got, "the other peer has no slice there")
	path := filepath.Join(t.TempDir(), "shm.svg")
	require.NoError(t, drawMode(path, "shm", rows))
	picture, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, words := range []string{"gccl-alloc", "openmpi", "limit", "shm all reduce"} {
		require.Contains(t, string(picture), words)
	}
}

// Slices are told apart by how long a line took before and after; what changed in between counts for neither.
func TestStates(t *testing.T) {
	row := func(peer string, before, after float64) Row {
		return Row{Peer: peer, Kind: "all_reduce", Bytes: 8, Exchange: before, After: after}
	}
	require.Empty(t, states([]Row{row("a", 0.1, 0.12), row("b", 0.13, 0.19)}))
	got := states([]Row{row("a", 0.1, 0.12), row("a", 0.12, 0.5), row("b", 0.6, 0.5), row("b", 0.13, 0.12), row("c", 0.5, 0.1), row("d", 0, 0.1)})
	require.Len(t, got, 2)
	require.Equal(t, []Row{row("a", 0.1, 0.12), row("b", 0.13, 0.12)}, got[0].rows)
	require.Equal(t, []Row{row("b", 0.6, 0.5)}, got[1].rows)
}

func TestSizesThatBlocksDivide(t *testing.T) {
	g := group{sizes: []int64{8, 64, 512, 4 << 10}}
	for _, c := range []struct {
		kind  string
		ranks int
		want  []int64
	}{
		{"all_reduce", 16, []int64{8, 64, 512}},
		{"all_gather", 2, []int64{8, 64, 512}},
		{"reduce_scatter", 16, []int64{64, 512}},
		{"alltoall", 4, []int64{64, 512}},
	} {
		require.Equal(t, c.want, g.within(512, c.kind, c.ranks).sizes, "%s of %d", c.kind, c.ranks)
	}
}

func TestCoresFirst(t *testing.T) {
	system := t.TempDir()
	require.Equal(t, []int{1, 2, 5, 6}, coresFirst(system, []int{1, 2, 5, 6}), "nothing is said of cores")
	for _, cpu := range []int{1, 2, 5, 6} {
		dir := filepath.Join(system, fmt.Sprintf("cpu%d", cpu), "topology")
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "thread_siblings_list"), fmt.Appendf(nil, "%d-%d\n", (cpu-1)/2*2+1, (cpu-1)/2*2+2), 0o644))
	}
	require.Equal(t, []int{1, 5, 2, 6}, coresFirst(system, []int{1, 2, 5, 6}))
}

func TestTableHasNoLineWithoutFigures(t *testing.T) {
	rows := append(repeats("openmpi", "all_reduce", 8, 1, 1), repeats("openmpi", "all_gather", 64, 1, 1)...)
	got := table("crowded", "crowded", rows, rows)
	require.Equal(t, 4, strings.Count(got, "\n"), "a title, a head, and a line for each: %s", got)
}
