package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/cmd/gccl/reference"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/mem"
)

// run runs a benchmark between n ranks of this process over transport mem, and returns what rank 0
// printed and all logged.
func run(t *testing.T, n int, cfg Config, hook transport.Hook) (results []Result, errs []error, tableText, jsonText, logText string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var network mem.Network
	var id bootstrap.ID
	if n > 1 {
		root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
		require.NoError(t, err)
		defer root.Close()
		id = root.ID()
	}
	results, errs = make([]Result, n), make([]error, n)
	var table, lines bytes.Buffer
	var log locked
	var wait sync.WaitGroup
	for rank := range n {
		wait.Go(func() {
			c, err := comm.New(ctx, comm.Config{Rank: rank, Size: n, ID: id, Transport: "mem", Memory: &network, Hook: hook,
				Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				errs[rank] = err
				return
			}
			out := Output{Log: &log}
			if rank == 0 {
				out.Table, out.JSON = &table, &lines
			}
			results[rank], errs[rank] = Run(ctx, c, cfg, out)
			if errs[rank] != nil {
				c.Abort(errs[rank])
			}
			if err := c.Close(); errs[rank] == nil {
				errs[rank] = err
			}
		})
	}
	wait.Wait()
	return results, errs, table.String(), lines.String(), log.String()
}

// locked is a buffer that several goroutines write to.
type locked struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func TestEveryKindIsRight(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		for _, k := range kinds {
			t.Run(fmt.Sprintf("%s/%d", k.Name, n), func(t *testing.T) {
				cfg := plain(t, k.Name)
				cfg.Sizes = Sizes{Min: 0, Max: 40000, Factor: 29}
				cfg.DTypes = []kernels.DType{kernels.Int8, kernels.Bfloat16, kernels.Float64}
				cfg.Ops = Ops()
				if cfg.Roots = nil; n > 3 {
					cfg.Roots = []int{0, n - 1}
				}
				cfg.Iters = 2
				results, errs, table, _, log := run(t, n, cfg, nil)
				for rank, err := range errs {
					require.NoError(t, err, "rank %d", rank)
					require.Zero(t, results[rank].Wrong, log)
					require.Equal(t, len(results[0].Rows), len(results[rank].Rows))
				}
				places := 2
				if !k.inPlace {
					places = 1
				}
				sizes := map[string]bool{}
				for _, row := range results[0].Rows {
					require.NotNil(t, row.Wrong)
					require.Equal(t, k.rooted, row.Root != nil, "a root where the kind has one")
					root := -1
					if row.Root != nil {
						root = *row.Root
					}
					sizes[fmt.Sprint(row.Bytes, row.DType, row.RedOp, root)] = true
				}
				require.Len(t, results[0].Rows, places*len(sizes))
				require.Contains(t, table, fmt.Sprintf("world %d ranks, 1 host, mem", n))
				require.Contains(t, table, "# Out of bounds values : 0 OK")
			})
		}
	}
}

func TestUC88_WorldOfOne(t *testing.T) {
	for _, k := range kinds {
		if k.isExchange() {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			cfg := plain(t, k.Name)
			cfg.Sizes = Sizes{Min: 0, Max: 4 << 20, Factor: 1 << 22}
			cfg.DTypes = []kernels.DType{kernels.Float32, kernels.Int32}
			cfg.Ops = Ops()
			results, errs, table, lines, log := run(t, 1, cfg, nil)
			require.NoError(t, errs[0])
			require.Zero(t, results[0].Wrong, log)
			require.Contains(t, table, "a world of 1: nothing leaves the rank")
			require.NotContains(t, table, "Avg bus bandwidth")
			require.Zero(t, results[0].BusBW)
			for _, row := range rowsOf(t, lines) {
				require.Nil(t, row.BusBW)
				require.Nil(t, row.AlgBW)
				require.NotNil(t, row.Wrong)
			}
		})
	}
}

func rowsOf(t *testing.T, lines string) (rows []Row) {
	t.Helper()
	for line := range strings.Lines(lines) {
		var row Row
		require.NoError(t, json.Unmarshal([]byte(line), &row), line)
		rows = append(rows, row)
	}
	return rows
}

func TestUC95_TableAndJSONHaveTheSameNumbers(t *testing.T) {
	for _, n := range []int{2, 3} {
		for _, kind := range []string{"all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv"} {
			cfg := plain(t, kind)
			cfg.Sizes = Sizes{Min: 1 << 10, Max: 64 << 10, Factor: 8}
			cfg.Iters, cfg.Checks, cfg.Roots = 5, 0, nil
			results, errs, table, lines, _ := run(t, n, cfg, nil)
			require.NoError(t, errs[0])
			rows := rowsOf(t, lines)
			require.Equal(t, len(results[0].Rows), len(rows))
			next, sum := 0, 0.0
			for line := range strings.Lines(table) {
				if strings.HasPrefix(line, "#") {
					continue
				}
				fields := strings.Fields(line)
				require.Len(t, fields, 15)
				for place := range 2 {
					cells := fields[5+4*place : 9+4*place]
					if place == 1 && !cfg.Kind.inPlace {
						require.Equal(t, []string{"N/A", "N/A", "N/A", "N/A"}, cells)
						continue
					}
					row := rows[next]
					next++
					require.Equal(t, fmt.Sprint(row.Bytes), fields[0])
					root := "-1"
					if row.Root != nil {
						root = fmt.Sprint(*row.Root)
					}
					require.Equal(t, root, fields[4])
					require.Equal(t, place == 1, row.InPlace)
					require.Equal(t, []string{short(row.TimeUS.P50), short(*row.AlgBW), short(*row.BusBW), "N/A"}, cells)
					require.InDelta(t, *row.AlgBW*cfg.Kind.BusFactor(n), *row.BusBW, 1e-9)
					require.InDelta(t, float64(row.Bytes)/row.TimeUS.P50/1e3, *row.AlgBW, 1e-9)
					require.LessOrEqual(t, row.TimeUS.Min, row.TimeUS.P50)
					require.LessOrEqual(t, row.TimeUS.P50, row.TimeUS.P99)
					sum += *row.BusBW
				}
			}
			require.Equal(t, len(rows), next)
			require.InDelta(t, sum/float64(len(rows)), results[0].BusBW, 1e-9)
			require.Contains(t, table, fmt.Sprintf("# Avg bus bandwidth    : %.4f GB/s", results[0].BusBW))
			require.Contains(t, table, "not checked")
		}
	}
}

// A bit that flips on its way must be seen, by every kind that moves data.
func TestFlippedBitIsCounted(t *testing.T) {
	for _, k := range kinds {
		if k.isBarrier() {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			cfg := plain(t, k.Name)
			cfg.Sizes = Sizes{Min: 120000, Max: 120000, Factor: 2}
			cfg.Ops = []Op{OpOf(kernels.Sum)}
			// The benchmark's own messages are shorter.
			hook := func(f transport.Frame) (fate transport.Fate) {
				if f.Bytes > 8000 {
					fate.Flip = 8 * 4 * 3 // the sign of an element, of float32 and little-endian
				}
				return fate
			}
			results, errs, table, lines, log := run(t, 3, cfg, hook)
			for rank, err := range errs {
				require.NoError(t, err, "rank %d", rank)
				require.NotZero(t, results[rank].Wrong, "all ranks know")
				require.Equal(t, results[0].Wrong, results[rank].Wrong)
			}
			require.Contains(t, table, "FAILED")
			require.Contains(t, log, "element ")
			var sum int64
			for _, row := range rowsOf(t, lines) {
				sum += *row.Wrong
			}
			require.Equal(t, results[0].Wrong, sum)
		})
	}
}

func TestBackToBackAndAggregated(t *testing.T) {
	cfg := plain(t, "all_reduce")
	cfg.Iters, cfg.Warmup, cfg.Agg, cfg.BackToBack = 10, 3, 4, true
	results, errs, table, _, log := run(t, 2, cfg, nil)
	require.NoError(t, errs[0])
	require.Zero(t, results[0].Wrong, log)
	for _, row := range results[0].Rows {
		require.Equal(t, "none", row.Barrier)
		require.InDelta(t, float64(row.Bytes)/row.TimeUS.Mean/1e3, *row.AlgBW, 1e-9)
	}
	require.Contains(t, table, "back to back")
	require.Contains(t, table, "an iteration is 4 calls")
}

func TestRanksWithoutCommonPageUseBarrier(t *testing.T) {
	for _, kind := range []string{"all_reduce", "barrier"} {
		cfg := plain(t, kind)
		cfg.pageDir = t.TempDir() + "/missing"
		results, errs, table, _, log := run(t, 3, cfg, nil)
		for rank, err := range errs {
			require.NoError(t, err, "rank %d", rank)
		}
		require.Zero(t, results[0].Wrong, log)
		require.Equal(t, "comm", results[0].Rows[0].Barrier)
		require.Contains(t, table, "before each a Barrier")
		require.Contains(t, table, "missing", "and why")
		// Hosts share no clock, so a barrier can't be checked.
		require.Equal(t, kind == "barrier", results[0].Rows[0].Wrong == nil)
	}
	cfg := plain(t, "barrier")
	results, errs, _, _, log := run(t, 3, cfg, nil)
	require.NoError(t, errs[0])
	require.Equal(t, "page", results[0].Rows[0].Barrier)
	require.Zero(t, *results[0].Rows[0].Wrong, log)
}

// What a call does that it should not: the check must see each.
func TestCheckSeesStrayWrites(t *testing.T) {
	c, err := comm.New(t.Context(), comm.Config{Size: 1})
	require.NoError(t, err)
	defer c.Close()
	for _, memory := range []Memory{MemoryAlloc, MemorySlice} {
		cfg := plain(t, "all_reduce")
		in, err := newBuffer(c, memory, 4096)
		require.NoError(t, err)
		out, err := newBuffer(c, memory, 4096)
		require.NoError(t, err)
		inputs := reference.Input{DType: kernels.Float32, Ranks: 1}
		m := newMessage(c, &cfg, in, out, kernels.Float32, OpOf(kernels.Sum), 0, 4096, false)
		v, err := m.check(t.Context(), inputs)
		require.NoError(t, err)
		require.Zero(t, v.Wrong, v.First)
		require.Empty(t, out.intact(4096))

		for at, where := range map[int]string{front - 1: "before", front - back: "before", front + 4096: "behind", front + 4096 + back - 1: "behind"} {
			out.guard(4096)
			out.all[at]++
			require.Equal(t, where, out.intact(4096))
		}
		out.poison(4096)
		require.NotZero(t, m.result(inputs).Wrong, "poison is no result")
		require.EqualValues(t, 1024, m.result(inputs).Wrong, "each element counts")
		require.NoError(t, in.free())
		require.NoError(t, out.free())
	}
}
