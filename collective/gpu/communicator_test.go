package gpu

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

func newCommunicator(t testing.TB, d *cuda.Device, ranks int) *Communicator {
	t.Helper()
	c, err := New(slices.Repeat([]*cuda.Device{d}, ranks))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// redops of a kind: one where nothing is reduced.
func redops(k collective.Kind) []kernels.RedOp {
	if k.Reduces() && k != collective.Barrier {
		return kernels.RedOps()
	}
	return []kernels.RedOp{kernels.Sum}
}

// TestUC78_EveryKindTypeAndOperatorOnGPU is every kind × type × operator × ranks at short counts, to the bit, with places and
// alignments in turn.
func TestUC78_EveryKindTypeAndOperatorOnGPU(t *testing.T) {
	const most = 8
	g := newRig(t, most, 1<<20)
	variant, run := 0, 0
	for ranks := 1; ranks <= most; ranks++ {
		c := newCommunicator(t, g.d, ranks)
		for _, kind := range collective.Kinds() {
			for _, dtype := range kernels.DTypes() {
				for _, op := range redops(kind) {
					for _, count := range []int{0, 1, 7, 1000} {
						variant++
						call := Call{Kind: kind, DType: dtype, RedOp: op, Count: count}
						if kind == collective.Barrier {
							call.Count = 0
						}
						if kind.Rooted() {
							call.Root = variant % ranks
						}
						s := sampleOf(call, ranks, variant)
						calls := s.lay(g)
						require.NoError(t, c.Group(calls), "%s", s)
						s.check(g, calls)
						run++
					}
				}
			}
		}
	}
	t.Logf("%d collectives", run)
}

// Every algorithm that lowers gives the kind's result, where the tree of sums is that of the plan: in integers they all agree.
func TestAlgorithmsOnGPU(t *testing.T) {
	g := newRig(t, 8, 1<<20)
	for _, ranks := range []int{2, 3, 5, 8} {
		c := newCommunicator(t, g.d, ranks)
		for _, kind := range collective.Kinds() {
			if kind == collective.Barrier {
				continue
			}
			for _, a := range collective.Catalog(kind) {
				for variant := range 4 {
					s := sampleOf(Call{Kind: kind, DType: kernels.Int32, Count: 1777, Algorithm: a.Name}, ranks, variant)
					calls := s.lay(g)
					err := c.Group(calls)
					if errors.Is(err, errors.ErrUnsupported) {
						continue
					}
					require.NoError(t, err)
					s.check(g, calls)
				}
			}
		}
	}
}

// An algorithm that does not lower is an error before anybody waits, which lists those that do; whose calls are in place makes no difference.
func TestAlgorithmsAdmitted(t *testing.T) {
	for ranks := 1; ranks <= 9; ranks++ {
		c := &Communicator{ranks: ranks, moves: map[shape]*Moves{}}
		for _, kind := range collective.Kinds() {
			for _, a := range collective.Catalog(kind) {
				call := Call{Kind: kind, DType: kernels.Float32, Algorithm: a.Name}
				admitted := c.check(0, &call)
				for _, places := range []uint64{0, 1, 1<<ranks - 1, 0x55 & (1<<ranks - 1)} {
					_, err := c.lookup(shape{kind: kind, algorithm: a.Name, inPlace: places})
					require.Equal(t, err == nil, admitted == nil, "%v by %s of %d ranks, in place %#x: %v, but %v", kind, a.Name, ranks, places, err, admitted)
				}
				if admitted != nil {
					require.ErrorIs(t, admitted, errors.ErrUnsupported)
					require.Regexp(t, `want one of \[.*(direct|oneshot).*\]`, admitted.Error())
				}
			}
			call := Call{Kind: kind, DType: kernels.Float32, Algorithm: "none such"}
			require.ErrorContains(t, c.check(0, &call), "want one of [", kind)
		}
	}
}

// More than 2^31 elements, on repeated patterns, in windows, with equal bits on all ranks.
func TestHugeOnGPU(t *testing.T) {
	if testing.Short() {
		t.Skip("takes tens of GiB, not with -short")
	}
	for _, row := range []struct {
		ranks, count int
		dtype        kernels.DType
	}{{2, 1<<31 + 12345, kernels.Int8}} {
		t.Run(fmt.Sprintf("%d×%d %v", row.ranks, row.count, row.dtype), func(t *testing.T) {
			size := row.dtype.Size()
			g := newRig(t, row.ranks, int64(row.count)*int64(size)+4096)
			c := newCommunicator(t, g.d, row.ranks)
			const period = 999983 // a prime: no offset that is wrong hits a like place
			s := newSample(Call{Kind: collective.AllReduce, DType: row.dtype, Count: period}, row.ranks, 5)
			calls := make([]Call, row.ranks)
			for r := range calls {
				g.up(r, g.src[r].Ptr, s.inputs[r])
				total, done := int64(row.count*size), int64(period*size)
				for done < total { // twice as much each time; a multiple of the period until the last
					n := min(done, total-done)
					require.NoError(t, g.d.CopyAny(g.streams[r], unsafe.Add(g.src[r].Ptr, done), g.src[r].Ptr, n))
					done += n
				}
				require.NoError(t, g.d.Fill(g.streams[r], g.dst[r].Ptr, 0xE7, total))
				calls[r] = Call{Kind: collective.AllReduce, DType: row.dtype, Count: row.count, Src: g.src[r].Ptr, Dst: g.dst[r].Ptr, Stream: g.streams[r]}
			}
			require.NoError(t, c.Group(calls))
			g.waitAll()
			want := s.want(0)
			rng := rand.New(rand.NewPCG(7, uint64(row.count)))
			for i := range 64 {
				n := 2048
				at := rng.IntN(row.count - n)
				switch i {
				case 0:
					at = 0
				case 1:
					at = row.count - n
				}
				expected := make([]byte, 0, n*size)
				for e := range n {
					o := (at + e) % period * size
					expected = append(expected, want[o:o+size]...)
				}
				for r := range calls {
					require.Equal(t, expected, g.down(r, unsafe.Add(g.dst[r].Ptr, at*size), n*size), "rank %d, window at %d", r, at)
				}
			}
		})
	}
}

// A graph that was captured once is replayed a thousand times on fresh data.
func TestGraphOnGPU(t *testing.T) {
	for _, oneStream := range []bool{true, false} {
		g := newRig(t, 8, 1<<20)
		c := newCommunicator(t, g.d, 8)
		call := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 2048}
		s := newSample(call, 8, 0)
		calls := s.lay(g)
		g.waitAll()
		if oneStream {
			for r := range calls {
				calls[r].Stream = g.streams[0]
			}
		}
		fork, err := g.d.NewEvent(false)
		require.NoError(t, err)
		graph, err := g.d.Capture(g.streams[0], func() error {
			if !oneStream { // all streams take part in the capture
				require.NoError(t, g.d.Record(fork, g.streams[0]))
				for _, other := range g.streams[1:] {
					require.NoError(t, g.d.WaitEvent(other, fork))
				}
			}
			if err := c.Group(calls); err != nil {
				return err
			}
			if !oneStream {
				for _, other := range g.streams[1:] {
					join, err := g.d.NewEvent(false)
					require.NoError(t, err)
					require.NoError(t, g.d.Record(join, other))
					require.NoError(t, g.d.WaitEvent(g.streams[0], join))
				}
			}
			return nil
		})
		require.NoError(t, err)
		for i := range 1000 {
			s = newSample(call, 8, uint64(i))
			for r := range calls {
				require.NoError(t, g.d.CopyAny(g.streams[0], calls[r].Src, unsafe.Pointer(&s.inputs[r][0]), int64(len(s.inputs[r]))))
			}
			require.NoError(t, graph.Launch(g.streams[0]))
			if i%50 == 0 || i > 990 {
				s.check(g, calls)
			}
		}
		g.waitAll()
		require.NoError(t, graph.Destroy())
	}
}

// A rank whose stream is captured apart from the others' is refused, and the streams are usable afterwards.
func TestCaptureApartIsRefused(t *testing.T) {
	g := newRig(t, 2, 1<<20)
	c := newCommunicator(t, g.d, 2)
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 2048}, 2, 0)
	calls := s.lay(g)
	g.waitAll()
	_, err := g.d.Capture(g.streams[0], func() error { return c.Group(calls) })
	require.ErrorContains(t, err, "CUDA_ERROR_STREAM_CAPTURE")
	require.NoError(t, c.Group(calls))
	s.check(g, calls)
}

// Ranks that are goroutines meet: two communicators over the same streams, a busy third stream, memory freed between calls.
func TestGoroutinesMeetOnGPU(t *testing.T) {
	const ranks = 8
	rounds := 10000
	if testing.Short() {
		rounds = 2000
	}
	g := newRig(t, ranks, 1<<20)
	a, b := newCommunicator(t, g.d, ranks), newCommunicator(t, g.d, ranks)
	sa, sb := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 2048}, ranks, 1), newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 100}, ranks, 2)
	callsA := sa.lay(g)
	callsB := make([]Call, ranks)
	for r := range callsB {
		callsB[r] = sb.Call
		callsB[r].Stream = g.streams[r]
		callsB[r].Src, callsB[r].Dst = unsafe.Add(g.src[r].Ptr, 64<<10), unsafe.Add(g.dst[r].Ptr, 64<<10)
		g.up(r, callsB[r].Src, sb.inputs[r])
		require.NoError(t, g.d.Fill(g.streams[r], unsafe.Add(callsB[r].Dst, -64), 0xE7, 1024))
	}
	g.waitAll()
	busy, err := g.d.NewStream()
	require.NoError(t, err)
	stop, idle := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				idle <- g.d.Wait(busy)
				return
			default:
				if err := g.d.Fill(busy, unsafe.Add(g.src[0].Ptr, 512<<10), 1, 256<<10); err != nil {
					idle <- err
					return
				}
				if i%1024 != 0 {
					time.Sleep(20 * time.Microsecond) // the driver's lock is for others too
					continue
				}
				m, err := g.d.AllocPinned(1)
				if err == nil {
					err = g.d.FreePinned(m) // waits for all kernels
				}
				if err != nil {
					idle <- err
					return
				}
			}
		}
	}()
	start := time.Now()
	var wg sync.WaitGroup
	errs := make([]error, ranks)
	for r := range ranks {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			for i := range rounds {
				if errs[r] = a.Do(ctx, r, callsA[r]); errs[r] != nil {
					return
				}
				if i%1024 == 128*r { // between its calls, while the others make theirs
					_, free, err := cudatest.Foreign(g.d, 1)
					if err == nil {
						err = free()
					}
					if errs[r] = err; err != nil {
						return
					}
				}
				if errs[r] = b.Do(ctx, r, callsB[r]); errs[r] != nil {
					return
				}
			}
			errs[r] = g.d.Wait(g.streams[r])
		})
	}
	wg.Wait()
	t.Logf("%d rounds of two calls by %d goroutines, %v a call", rounds, ranks, time.Since(start)/time.Duration(2*rounds))
	close(stop)
	require.NoError(t, <-idle)
	require.NoError(t, g.d.DestroyStream(busy))
	require.NoError(t, errors.Join(errs...))
	sa.check(g, callsA)
	sb.check(g, callsB)
}

// TestUC02_MissingRankOnGPU: a rank that does not call is named, and the others get on with a smaller communicator.
func TestUC02_MissingRankOnGPU(t *testing.T) {
	g := newRig(t, 4, 1<<20)
	c := newCommunicator(t, g.d, 4)
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000}, 4, 1)
	calls := s.lay(g)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for _, r := range []int{0, 1, 3} {
		wg.Go(func() { errs[r] = c.Do(ctx, r, calls[r]) })
	}
	require.Eventually(t, func() bool {
		missing, call := c.Missing()
		return len(missing) == 1 && missing[0] == 2 && call.Count == 1000
	}, time.Minute, time.Millisecond)
	wg.Wait()
	for _, r := range []int{0, 1, 3} {
		var missing *MissingError
		require.ErrorAs(t, errs[r], &missing)
		require.Equal(t, []int{2}, missing.Ranks)
		require.ErrorIs(t, errs[r], context.DeadlineExceeded)
	}
	require.ErrorIs(t, c.Do(t.Context(), 2, calls[2]), context.DeadlineExceeded, "it is too late")
	small := newCommunicator(t, g.d, 3)
	s3 := newSample(s.Call, 3, 2)
	calls = s3.lay(g)
	for range 100 {
		require.NoError(t, small.Group(calls))
	}
	s3.check(g, calls)
}

func TestUC01_MismatchOnGPU(t *testing.T) {
	g := newRig(t, 2, 1<<20)
	c := newCommunicator(t, g.d, 2)
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000}, 2, 1)
	calls := s.lay(g)
	calls[1].Count = 999
	var mismatch *MismatchError
	require.ErrorAs(t, c.Group(calls), &mismatch)
	require.ErrorContains(t, mismatch, "999")
	calls[1].Count = 1000
	require.NoError(t, c.Group(calls))
	s.check(g, calls)
	require.Error(t, c.Group(calls[:1]))
	require.Error(t, c.Group([]Call{{Kind: collective.Barrier, Count: 1}, {Kind: collective.Barrier, Count: 1}}))
	calls[0].Root = 5
	require.Error(t, c.Group(calls))
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.Group(calls), ErrClosed)
	require.ErrorIs(t, c.Do(t.Context(), 0, calls[0]), ErrClosed)
}

// Making and closing communicators leaves no device memory behind, and one holds little.
func TestUC12_CommunicatorsLeaveNothing(t *testing.T) {
	d := cudatest.Open(t)
	threads, files := runtime.NumGoroutine(), descriptors(t)
	before, _, err := d.MemInfo()
	require.NoError(t, err)
	var held []*Communicator
	for range 8 {
		held = append(held, newCommunicator(t, d, 8))
	}
	during, _, err := d.MemInfo()
	require.NoError(t, err)
	require.Less(t, (before-during)/8, int64(32<<20))
	for _, c := range held {
		require.NoError(t, c.Close())
	}
	for range 10000 {
		c, err := New(slices.Repeat([]*cuda.Device{d}, 8))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	after, _, err := d.MemInfo()
	require.NoError(t, err)
	require.GreaterOrEqual(t, after, before-32<<20)
	require.LessOrEqual(t, runtime.NumGoroutine(), threads)
	require.LessOrEqual(t, descriptors(t), files)
}

func descriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

func TestGroupDoesNotAllocate(t *testing.T) {
	g := newRig(t, 8, 1<<20)
	c := newCommunicator(t, g.d, 8)
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000}, 8, 1)
	calls := s.lay(g)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if c.Group(calls) != nil {
			panic("group")
		}
	}))
	s.check(g, calls)
}

// Ranks on several devices, which may be one GPU under several handles: every kind, places and alignments in turn.
func TestSeveralDevices(t *testing.T) {
	for _, row := range []struct{ handles, ranks int }{{2, 2}, {2, 5}, {4, 8}, {8, 8}} {
		g := newRigOn(t, several(t, row.handles, row.ranks), 1<<20)
		c, err := New(g.devices)
		require.NoError(t, err)
		variant := 0
		for _, kind := range collective.Kinds() {
			for _, a := range collective.Catalog(kind) {
				for _, dtype := range []kernels.DType{kernels.Float32, kernels.Int32, kernels.Bfloat16} {
					for _, op := range redops(kind) {
						variant++
						call := Call{Kind: kind, DType: dtype, RedOp: op, Count: 1777, Algorithm: a.Name}
						if !a.RankOrder {
							call.DType, call.RedOp = kernels.Int32, kernels.Sum // of which any order gives the same
						}
						if kind == collective.Barrier {
							call.Count = 0
						}
						s := sampleOf(call, row.ranks, variant)
						calls := s.lay(g)
						err := c.Group(calls)
						if errors.Is(err, errors.ErrUnsupported) {
							continue
						}
						require.NoError(t, err, "%s", s)
						s.check(g, calls)
					}
				}
			}
		}
		require.NoError(t, c.Close())
	}
}

// Messages between any ranks, many in one launch, on one device and several.
func TestTransfers(t *testing.T) {
	for _, devices := range [][]*cuda.Device{slices.Repeat([]*cuda.Device{cudatest.Open(t)}, 8), several(t, 3, 8)} {
		g := newRigOn(t, devices, 1<<20)
		c, err := New(devices)
		require.NoError(t, err)
		rng := rand.New(rand.NewPCG(1, 1))
		for range 30 {
			var ts []Transfer
			var want [][]byte
			var at [8]int
			for range rng.IntN(100) {
				n, from, to := rng.IntN(5000), rng.IntN(8), rng.IntN(8)
				b := random(kernels.Uint8, n, rng.Uint64())
				x := Transfer{From: from, To: to, Bytes: int64(n), FromStream: g.streams[from], ToStream: g.streams[to]}
				x.Src, x.Dst = unsafe.Add(g.src[from].Ptr, at[from]), unsafe.Add(g.dst[to].Ptr, at[to])
				at[from] += n + rng.IntN(3)
				at[to] = max(at[to], at[from]) + n // apart from all others, on both sides
				at[from] = at[to]
				if at[to] > 1<<19 {
					break
				}
				g.up(from, x.Src, b)
				ts, want = append(ts, x), append(want, b)
			}
			require.NoError(t, c.Transfers(ts))
			g.waitAll()
			for i, x := range ts {
				require.Equal(t, want[i], g.down(x.To, x.Dst, int(x.Bytes)), "transfer %d: %+v", i, x)
			}
		}
		require.ErrorIs(t, c.Transfers([]Transfer{{From: 0, To: 8}}), kernels.ErrInvalid)
		require.ErrorIs(t, c.Transfers([]Transfer{{From: 0, To: 1, ToStream: g.streams[1]}, {From: 1, To: 0, FromStream: g.streams[2]}}), kernels.ErrInvalid)
		require.NoError(t, c.Close())
		require.ErrorIs(t, c.Transfers(nil), ErrClosed)
	}
}
