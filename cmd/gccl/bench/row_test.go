package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUC95_BusFactors(t *testing.T) {
	for name, want := range map[string][4]float64{ // n = 2, 3, 8, 16
		"all_reduce":     {1, 4.0 / 3, 1.75, 1.875},
		"all_gather":     {0.5, 2.0 / 3, 0.875, 0.9375},
		"reduce_scatter": {0.5, 2.0 / 3, 0.875, 0.9375},
		"alltoall":       {0.5, 2.0 / 3, 0.875, 0.9375},
		"broadcast":      {1, 1, 1, 1},
		"reduce":         {1, 1, 1, 1},
		"sendrecv":       {1, 1, 1, 1},
	} {
		k, err := ParseKind(name)
		require.NoError(t, err)
		for i, n := range []int{2, 3, 8, 16} {
			require.InDelta(t, want[i], k.BusFactor(n), 1e-12, "%s of %d ranks", name, n)
		}
	}
	_, err := ParseKind("all-reduce")
	require.ErrorContains(t, err, "all_reduce, all_gather")
}

// TestUC95_PublicReports recomputes the bus bandwidth of public nccl-tests output.
func TestUC95_PublicReports(t *testing.T) {
	dir := os.Getenv("GCCL_FIXTURES")
	if dir == "" {
		dir = "testdata" // the same rows
	} else {
		dir = filepath.Join(dir, "nccl-tests")
	}
	k, err := ParseKind("all_reduce")
	require.NoError(t, err)
	for _, n := range []int{8, 16} {
		file, err := os.Open(filepath.Join(dir, fmt.Sprintf("allreduce-%drank.tsv", n)))
		require.NoError(t, err)
		defer file.Close()
		rows := 0
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "#") || lines.Text() == "" {
				continue
			}
			fields := strings.Fields(lines.Text())
			number := func(back int) float64 {
				v, err := strconv.ParseFloat(fields[len(fields)-back], 64)
				require.NoError(t, err)
				return v
			}
			alg, bus := number(2), number(1)
			require.InDelta(t, bus, alg*k.BusFactor(n), 0.02, lines.Text())
			if n == 16 { // these have a time: our own derivation from it
				row := Row{Ranks: n, Bytes: int64(number(4))}
				row.setBandwidth(k, number(3))
				require.InDelta(t, alg, *row.AlgBW, 0.006, lines.Text())
				require.InDelta(t, bus, *row.BusBW, 0.012, lines.Text())
			}
			rows++
		}
		require.Greater(t, rows, 1)
	}
}

func TestUC95_RowJSON(t *testing.T) {
	k, err := ParseKind("all_reduce")
	require.NoError(t, err)
	wrong := int64(0)
	row := Row{Kind: k.Name, Bytes: 1000, Count: 250, DType: "float", RedOp: "sum", Ranks: 8, Algo: "ring", Transport: "shm",
		Memory: "alloc", Iters: 3, Wrong: &wrong, Barrier: "page", TimeUS: TimeUS{1, 2, 3, 2}}
	row.setBandwidth(k, 2)
	text, err := json.Marshal(row)
	require.NoError(t, err)
	var keys map[string]any
	require.NoError(t, json.Unmarshal(text, &keys))
	for _, key := range strings.Fields("kind bytes count dtype redop ranks algo transport root memory in_place iters time_us algbw_gb_per_s busbw_gb_per_s wrong barrier") {
		require.Contains(t, keys, key)
		delete(keys, key)
	}
	require.Empty(t, keys, "and no others")
	var back Row
	require.NoError(t, json.Unmarshal(text, &back))
	require.InDelta(t, 0.5, *back.AlgBW, 1e-12) // 1000 bytes in 2 µs
	require.InDelta(t, 0.875, *back.BusBW, 1e-12)
	var out bytes.Buffer
	require.NoError(t, (&table{w: &out}).row([]Row{row}))
	require.Equal(t, strings.Fields("1000 250 float sum -1 2.00 0.50 0.88 0 N/A N/A N/A N/A 3.00 N/A"), strings.Fields(out.String()))
}

// TestTableShowsTheTimeOfTheBandwidths, be that the median or the mean, whatever was before the calls.
func TestTableShowsTheTimeOfTheBandwidths(t *testing.T) {
	k, err := ParseKind("all_reduce")
	require.NoError(t, err)
	for _, barrier := range []string{"page", "comm", "none"} {
		for _, us := range []float64{2, 2.5} {
			row := Row{Bytes: 1000, Ranks: 2, Barrier: barrier, TimeUS: TimeUS{1, 2, 3, 2.5}}
			row.setBandwidth(k, us)
			var out bytes.Buffer
			require.NoError(t, (&table{w: &out}).row([]Row{row}))
			require.Contains(t, out.String(), "  "+short(us)+" ")
			require.InEpsilon(t, 1/us, *row.AlgBW, 1e-9)
		}
	}
}

func TestNoBandwidthOfOneRankOrNothing(t *testing.T) {
	k, err := ParseKind("broadcast")
	require.NoError(t, err)
	for _, row := range []Row{{Ranks: 1, Bytes: 8}, {Ranks: 2, Bytes: 0}} {
		row.setBandwidth(k, 1)
		require.Nil(t, row.AlgBW)
		require.Nil(t, row.BusBW)
		text, err := json.Marshal(row)
		require.NoError(t, err)
		require.Contains(t, string(text), `"busbw_gb_per_s":null`)
	}
}

func TestPercentiles(t *testing.T) {
	var times []time.Duration
	for i := 1000; i >= 1; i-- {
		times = append(times, time.Duration(i)*time.Microsecond)
	}
	require.Equal(t, TimeUS{Min: 1, P50: 500, P99: 990, Mean: 500.5}, newTimeUS(times))
	require.Equal(t, TimeUS{2, 2, 2, 2}, newTimeUS([]time.Duration{2000}))
	require.Equal(t, TimeUS{1, 1, 3, 2}, newTimeUS([]time.Duration{3000, 1000}), "p99 of few is the longest")
	require.Equal(t, TimeUS{Min: 3, P50: 3, P99: 4, Mean: 3.5}, slowest([][]int64{{1000, 4000}, {3000, 2000}}))
	require.Equal(t, TimeUS{Min: 2, P50: 2, P99: 2.5, Mean: 2.5}, together([][]int64{{1000, 4000}, {3000, 1000}}))
	require.False(t, math.IsNaN(newTimeUS([]time.Duration{0}).Mean))
}
