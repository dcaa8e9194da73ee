package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// waiters is ranks of one GPU that wait for each other as ranks of several would, in one cooperative launch.
type waiters struct {
	*rig
	c       *Communicator
	desks   []desk
	abort   kernels.Mem
	private cuda.Stream
}

func newWaiters(g *rig, ranks int) *waiters {
	g.Helper()
	w := &waiters{rig: g, c: newCommunicator(g, g.d, ranks)}
	var err error
	w.desks, err = newDesks(g.d, ranks)
	require.NoError(g, err)
	w.abort, err = g.d.Alloc(4)
	require.NoError(g, err)
	require.NoError(g, g.d.Fill(0, w.abort.Ptr, 0, 4))
	require.NoError(g, g.d.Wait(0))
	w.private, err = g.d.NewStream()
	require.NoError(g, err)
	g.Cleanup(func() {
		require.NoError(g, freeDesks(g.d, w.desks))
		require.NoError(g, g.d.Free(w.abort))
		require.NoError(g, g.d.DestroyStream(w.private))
	})
	return w
}

// run queues a call of the ranks given, all on one stream.
func (w *waiters) run(calls []Call, ranks []int, how protocol, blocks, threads int) error {
	s := shape{kind: calls[0].Kind, root: calls[0].Root, algorithm: w.c.algorithm(&calls[0]), scale: calls[0].scales()}
	for r := range calls {
		if calls[r].inPlace(r) {
			s.inPlace |= 1 << r
		}
	}
	m, err := w.c.lower(s)
	if err != nil {
		return err
	}
	ps, err := w.c.build.waiting(m, calls, w.desks, ranks, how, blocks, threads, w.abort.Ptr)
	if err != nil {
		return err
	}
	streams := make([]cuda.Stream, len(calls))
	for r := range calls {
		streams[r] = calls[r].Stream
	}
	return w.d.Launch(ps, streams[0], streams[1:], w.c.sites[0].joins[0])
}

func everybody(n int) []int {
	all := make([]int, n)
	for r := range all {
		all[r] = r
	}
	return all
}

// Both protocols give the bits of the joined launch, for grids of changing size, all types, places and alignments.
func TestWaitingOnGPU(t *testing.T) {
	g := newRig(t, 8, 1<<20)
	done, refused := 0, map[string]int{}
	for _, ranks := range []int{2, 3, 4, 7, 8} {
		w := newWaiters(g, ranks)
		variant := 0
		for _, kind := range collective.Kinds() {
			for _, dtype := range kernels.DTypes() {
				for _, op := range redops(kind) {
					for _, how := range []protocol{lines, barriers} {
						if op == kernels.Avg && !dtype.IsFloat() {
							continue // the division is another launch
						}
						variant++
						call := Call{Kind: kind, DType: dtype, RedOp: op, Count: []int{1, 7, 1000, 1777}[variant%4]}
						if kind == collective.AllReduce && how == barriers {
							call.Algorithm = "twoshot"
						}
						s := sampleOf(call, ranks, variant/4)
						calls := s.lay(g)
						g.waitAll()
						err := w.run(calls, everybody(ranks), how, 1+variant%5, []int{64, 128, 256}[variant%3])
						if errors.Is(err, errors.ErrUnsupported) {
							refused[fmt.Sprintf("%v %v", kind, [...]string{"lines", "barriers"}[how])]++
							continue
						}
						require.NoError(t, err, "%s", s)
						s.check(g, calls)
						done++
					}
				}
			}
		}
	}
	t.Logf("%d collectives, refused by kind: %v", done, refused)
	for what := range refused {
		require.Contains(t, []string{
			"broadcast lines", "reduce lines", // could be overrun
			"alltoall lines", "alltoall barriers", // need exchanges, or two phases, where ranks are in place
			"all_gather lines", "reduce_scatter lines", // of 8 ranks are too long for one launch
		}, what)
	}
	require.Greater(t, done, 1000)
}

// Many calls on fresh data without a look from the host between them: lines and flags of different epochs never mix.
func TestWaitingEpochs(t *testing.T) {
	g := newRig(t, 8, 1<<20)
	w := newWaiters(g, 8)
	for i := range 300 {
		how := protocol(i / 7 % 2)
		call := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1 + i*37%4000}
		if how == barriers {
			call.Algorithm = "twoshot"
		}
		s := sampleOf(call, 8, i)
		calls := s.lay(g)
		g.waitAll()
		turns := 1 + i%3
		if slices.Contains(s.place, true) {
			turns = 1 // in place again it would fold results
		}
		for range turns {
			require.NoError(t, w.run(calls, everybody(8), how, 1+i%8, 128))
		}
		s.check(g, calls)
	}
}

// A rank is missing: the others spin until the abort flag is set, the streams are idle at once, and usable.
func TestAbortEndsWaiting(t *testing.T) {
	g := newRig(t, 8, 1<<20)
	var slowest time.Duration
	for i := range 20 {
		w := newWaiters(g, 8)
		how := protocol(i % 2)
		call := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 2048}
		if how == barriers {
			call.Algorithm = "twoshot"
		}
		s := newSample(call, 8, uint64(i))
		calls := s.lay(g)
		g.waitAll()
		require.NoError(t, w.run(calls, []int{0, 1, 2, 3, 4, 5, 6}, how, 8, 128))
		time.Sleep(2 * time.Millisecond)
		idle, err := g.d.Done(g.streams[0])
		require.NoError(t, err)
		require.False(t, idle, "rank 7 was not waited for")
		start := time.Now()
		require.NoError(t, g.d.Store(w.private, w.abort.Ptr, 1))
		require.NoError(t, g.d.Wait(g.streams[0]))
		slowest = max(slowest, time.Since(start))
		require.NoError(t, w.c.Group(calls))
		s.check(g, calls)
	}
	t.Logf("abort decided → streams idle: at most %v", slowest)
	require.Less(t, slowest, time.Second)
}

// A launch that cannot be resident as a whole fails, rather than hang.
func TestTooManyBlocksAreRefused(t *testing.T) {
	g := newRig(t, 8, 1<<20)
	w := newWaiters(g, 8)
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 2048}, 8, 0)
	calls := s.lay(g)
	require.ErrorContains(t, w.run(calls, everybody(8), lines, 64, 256), "COOPERATIVE_LAUNCH_TOO_LARGE")
	require.ErrorIs(t, w.run(calls, everybody(8), lines, 65, 256), kernels.ErrInvalid)
	require.NoError(t, w.run(calls, everybody(8), lines, 8, 128))
	s.check(g, calls)
}

// TestWaitingLitmus makes very many calls, in place, with no look between them. Integers modulo 2^32 and an odd number of ranks: once all
// are equal each call multiplies them by that number, which loses nothing, so one word read too early or too late anywhere shows in
// the end. Lengths and grids vary from call to call, and another stream keeps the memory busy.
func TestWaitingLitmus(t *testing.T) {
	const ranks, most, inGraph = 7, 3000, 100
	replays := 10000
	if testing.Short() {
		replays = 100
	}
	g := newRig(t, ranks+1, 1<<20)
	for _, how := range []protocol{lines, barriers} {
		w := newWaiters(g, ranks)
		call := Call{Kind: collective.AllReduce, DType: kernels.Uint32, Count: most}
		if how == barriers {
			call.Algorithm = "twoshot"
		}
		s := newSample(call, ranks, 3)
		for r := range ranks {
			s.place[r] = true
			copy(s.inputs[r], s.inputs[0]) // equal from the start
		}
		calls := s.lay(g)
		g.waitAll()
		rng := rand.New(rand.NewPCG(uint64(how), 9))
		times := make([]int, most) // that a graph multiplies an element
		for r := range calls {
			calls[r].Stream = g.streams[0]
		}
		graph, err := g.d.Capture(g.streams[0], func() error {
			for range inGraph {
				n := 1 + rng.IntN(most)
				for i := range n {
					times[i]++
				}
				for r := range calls {
					calls[r].Count = n
				}
				s := shape{kind: collective.AllReduce, algorithm: w.c.algorithm(&calls[0]), inPlace: 1<<ranks - 1}
				m, err := w.c.lower(s)
				if err != nil {
					return err
				}
				ps, err := w.c.build.waiting(m, calls, w.desks, everybody(ranks), how, 1+rng.IntN(16), 32<<rng.IntN(4), w.abort.Ptr)
				if err != nil {
					return err
				}
				if err := g.d.Launch(ps, g.streams[0], nil, nil); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(t, err)
		start := time.Now()
		for i := range replays {
			require.NoError(t, graph.Launch(g.streams[0]))
			if i%16 == 0 {
				require.NoError(t, g.d.Fill(g.streams[ranks], g.src[ranks].Ptr, byte(i), 1<<(10+i/16%10)))
			}
		}
		g.waitAll()
		t.Logf("%v: %d calls in %v", [...]string{"lines", "barriers"}[how], replays*inGraph, time.Since(start))
		for r := range ranks {
			got := g.down(r, calls[r].Dst, 4*most)
			for i := range most {
				factor := uint32(1)
				for range times[i] {
					factor *= ranks
				}
				whole := uint32(1)
				for range replays {
					whole *= factor
				}
				want := binary.NativeEndian.Uint32(s.inputs[0][4*i:]) * whole
				require.Equal(t, want, binary.NativeEndian.Uint32(got[4*i:]), "rank %d, element %d", r, i)
			}
		}
		require.NoError(t, graph.Destroy())
	}
}

// TestWaitingFigures prints what the two protocols cost where ranks of one GPU use them, in a replayed graph of 20 calls.
func TestWaitingFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("prints figures of a GPU, not with -short")
	}
	g := newRig(t, 8, 256<<20)
	for _, row := range []struct {
		how             protocol
		bytes           int
		blocks, threads [3]int // of 2, 4, 8 ranks
	}{
		{lines, 1 << 10, [3]int{2, 2, 1}, [3]int{64, 64, 128}},
		{lines, 8 << 10, [3]int{8, 8, 8}, [3]int{128, 128, 128}},
		{lines, 64 << 10, [3]int{32, 32, 32}, [3]int{256, 256, 256}},
		{barriers, 64 << 10, [3]int{16, 16, 8}, [3]int{128, 128, 128}},
		{barriers, 1 << 20, [3]int{64, 32, 16}, [3]int{128, 256, 256}},
		{barriers, 16 << 20, [3]int{64, 64, 32}, [3]int{256, 256, 256}},
		{barriers, 256 << 20, [3]int{64, 64, 32}, [3]int{256, 256, 256}},
	} {
		line := fmt.Sprintf("%-8s %9d bytes, µs at 2, 4, 8 ranks:", [...]string{"lines", "barriers"}[row.how], row.bytes)
		for i, ranks := range []int{2, 4, 8} {
			w := newWaiters(g, ranks)
			call := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: row.bytes / 4, Stream: g.streams[0]}
			if row.how == barriers {
				call.Algorithm = "twoshot"
			}
			calls := make([]Call, ranks)
			for r := range calls {
				calls[r] = call
				calls[r].Src, calls[r].Dst = g.src[r].Ptr, g.dst[r].Ptr
			}
			calledIn := 20
			if row.bytes > 1<<20 {
				calledIn = 2
			}
			graph, err := g.d.Capture(g.streams[0], func() error {
				for range calledIn {
					if err := w.run(calls, everybody(ranks), row.how, row.blocks[i], row.threads[i]); err != nil {
						return err
					}
				}
				return nil
			})
			require.NoError(t, err)
			best := time.Hour
			for range 5 {
				start := time.Now()
				for range 10 {
					require.NoError(t, graph.Launch(g.streams[0]))
				}
				g.waitAll()
				best = min(best, time.Since(start)/time.Duration(10*calledIn))
			}
			require.NoError(t, graph.Destroy())
			line += fmt.Sprintf(" %.2f", float64(best.Nanoseconds())/1e3)
		}
		t.Log(line)
	}
}
