package gpu

import (
	"errors"
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
	s := shape{kind: calls[0].Kind, root: calls[0].Root, algorithm: calls[0].algorithm(), scale: calls[0].scales()}
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
	return w.d.Launch(ps, w.streams[0], w.streams[1:len(calls)], w.c.join)
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
	done, refused := 0, 0
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
							refused++
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
	t.Logf("%d collectives, %d refused", done, refused)
	require.Greater(t, done, 5*refused)
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
