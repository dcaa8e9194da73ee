package comm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
)

var gpu0 = kernels.Device{Kind: kernels.CUDA}

// needGPU skips a test where there is no GPU; with GCCL_REQUIRE=cuda that is a failure.
func needGPU(t *testing.T) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(0)
	if errors.Is(err, errors.ErrUnsupported) && !slices.Contains(strings.Split(os.Getenv("GCCL_REQUIRE"), ","), "cuda") {
		t.Skipf("%v; make test-gpu has emulated ones", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// TestDeviceMemoryWithoutGPU: what cannot be is said by name, and the communicator is as before.
func TestDeviceMemoryWithoutGPU(t *testing.T) {
	if n, err := cuda.Count(); err == nil && n > 0 {
		t.Skip("there is a GPU")
	}
	_, err := comm.New(context.Background(), comm.Config{Size: 1, Device: gpu0})
	require.ErrorIs(t, err, comm.ErrUnsupported)
	require.ErrorContains(t, err, "libcuda.so.1")
	_, err = comm.New(context.Background(), comm.Config{Size: 1, Device: kernels.Device{Kind: 77}})
	require.ErrorIs(t, err, comm.ErrUnsupported)
	comms := world(t, 2, nil)
	each(2, func(r int) {
		if _, err := comms[r].AllocOn(gpu0, 100); !errors.Is(err, comm.ErrArgument) || !strings.Contains(err.Error(), "cuda:0") {
			t.Errorf("rank %d: %v, want ErrArgument that names the device", r, err)
		}
		m := kernels.Mem{Ptr: unsafe.Pointer(new(float32)), Bytes: 4, Device: gpu0}
		err := comms[r].Do(context.Background(), comm.Call{Kind: comm.KindAllReduce, Src: m, Dst: m, Count: 1, DType: kernels.Float32})
		if !errors.Is(err, comm.ErrUnsupported) || !strings.Contains(err.Error(), "Config.Device") {
			t.Errorf("rank %d: %v, want ErrUnsupported that says what to do", r, err)
		}
		if err := comms[r].Barrier(context.Background()); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
}

// deviceWorld is the ranks of one process on one GPU, each with a stream and two buffers.
type deviceWorld struct {
	t        *testing.T
	d        *cuda.Device
	devices  []*cuda.Device // of the ranks; nil: d of all
	comms    []*comm.Comm
	streams  []cuda.Stream
	src, dst []kernels.Mem
}

func newDeviceWorld(t *testing.T, ranks int, room int64, edit func(int, *comm.Config)) *deviceWorld {
	w := &deviceWorld{t: t, d: needGPU(t)}
	w.comms = world(t, ranks, func(r int, c *comm.Config) {
		c.Device = gpu0
		if edit != nil {
			edit(r, c)
		}
	})
	return w.more(room)
}

// more is the same ranks with other streams and buffers. It fills what w lacks.
func (w *deviceWorld) more(room int64) *deviceWorld {
	t, v := w.t, w
	if w.streams != nil {
		v = &deviceWorld{t: t, d: w.d, devices: w.devices, comms: w.comms}
	}
	for r, c := range w.comms {
		s, err := w.on(r).NewStream()
		require.NoError(t, err)
		v.streams = append(v.streams, s)
		for _, list := range []*[]kernels.Mem{&v.src, &v.dst} {
			m, err := c.AllocOn(w.on(r).Device(), room)
			require.NoError(t, err)
			*list = append(*list, m)
		}
	}
	t.Cleanup(func() {
		for r, s := range v.streams {
			require.NoError(t, w.on(r).Wait(s))
			require.NoError(t, w.on(r).DestroyStream(s))
		}
	})
	return v
}

// on is a rank's GPU.
func (w *deviceWorld) on(r int) *cuda.Device {
	if w.devices == nil {
		return w.d
	}
	return w.devices[r]
}

func (w *deviceWorld) up(r int, x []float32) {
	require.NoError(w.t, w.on(r).CopyAny(w.streams[r], w.src[r].Ptr, unsafe.Pointer(&x[0]), int64(4*len(x))))
}

func (w *deviceWorld) down(r, n int) []float32 { return w.read(r, w.dst[r], n) }

func (w *deviceWorld) read(r int, m kernels.Mem, n int) []float32 {
	x := make([]float32, n)
	require.NoError(w.t, w.on(r).CopyAny(w.streams[r], unsafe.Pointer(&x[0]), m.Ptr, int64(4*n)))
	require.NoError(w.t, w.on(r).Wait(w.streams[r]))
	return x
}

// call is an all_reduce of n floats of rank r.
func (w *deviceWorld) call(r, n int) comm.Call {
	return comm.Call{Comm: w.comms[r], Kind: comm.KindAllReduce, Src: w.src[r], Dst: w.dst[r], Count: n, DType: kernels.Float32, Stream: w.streams[r]}
}

// fill gives every rank fresh data, and returns the sum.
func (w *deviceWorld) fill(n, round int) []float32 {
	sum := make([]float32, n)
	for r := range w.comms {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32((i*7+r*13+round)%61 - 30)
			sum[i] += x[i]
		}
		w.up(r, x)
	}
	return sum
}

// passed checks that every rank has what fill gave the one so far before it.
func (w *deviceWorld) passed(n, round, away int) {
	w.t.Helper()
	for r := range w.comms {
		got, from := w.down(r, n), (r+len(w.comms)-away)%len(w.comms)
		for i := range got {
			if want := float32((i*7+from*13+round)%61 - 30); got[i] != want {
				w.t.Fatalf("round %d: element %d at rank %d is %v, want %v", round, i, r, got[i], want)
			}
		}
	}
}

func (w *deviceWorld) check(want []float32) {
	w.t.Helper()
	for r := range w.comms {
		require.Equal(w.t, want, w.down(r, len(want)), "rank %d", r)
	}
}

func TestDeviceAllReduce(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			w := newDeviceWorld(t, ranks, 4<<20, nil)
			for round, n := range []int{1, 7, 1000, 65537, 1 << 20} {
				want := w.fill(n, round)
				each(ranks, func(r int) { // a goroutine a rank
					if err := w.comms[r].Do(context.Background(), w.call(r, n)); err != nil {
						t.Errorf("rank %d: %v", r, err)
					}
				})
				w.check(want)
				want = w.fill(n, round+100)
				var calls []comm.Call
				for r := range ranks {
					calls = append(calls, w.call(r, n))
				}
				require.NoError(t, comm.Group(context.Background(), calls...)) // all from one goroutine
				w.check(want)
			}
		})
	}
}

// TestDeviceManyCalls: ranks run ahead of the GPU, on two communicators at once.
func TestDeviceManyCalls(t *testing.T) {
	const ranks, n, calls = 8, 2048, 2000
	w := newDeviceWorld(t, ranks, 4*n, nil)
	v := newDeviceWorld(t, ranks, 4*n, nil)
	want, want2 := w.fill(n, 1), v.fill(n, 2)
	each(2*ranks, func(k int) {
		on := []*deviceWorld{w, v}[k%2]
		for range calls {
			if err := on.comms[k/2].Do(context.Background(), on.call(k/2, n)); err != nil {
				t.Errorf("rank %d: %v", k/2, err)
				return
			}
		}
	})
	w.check(want)
	v.check(want2)
}

// TestDeviceLateRank: a rank that never calls is named, and the others go on without it.
func TestDeviceLateRank(t *testing.T) {
	const ranks, n = 4, 1000
	w := newDeviceWorld(t, ranks, 4*n, func(_ int, c *comm.Config) { c.CallTimeout = time.Second })
	smaller := make([]*comm.Comm, ranks)
	each(ranks, func(r int) {
		if r == 2 {
			return
		}
		start := time.Now()
		err := w.comms[r].Do(context.Background(), w.call(r, n))
		var e *comm.Error
		if !errors.Is(err, comm.ErrAborted) || !errors.Is(err, comm.ErrTimeout) || !errors.As(err, &e) || !slices.Equal(e.Ranks, []int{2}) || time.Since(start) > 5*time.Second {
			t.Errorf("rank %d, after %v: %v, want a timeout that names rank 2", r, time.Since(start), err)
			return
		}
	})
	// Rank 2 is alive, and so agrees with the rest on who is: all are.
	each(ranks, func(r int) {
		var err error
		if smaller[r], err = w.comms[r].Shrink(context.Background()); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
	if t.Failed() {
		return
	}
	old := w.comms
	w.comms = smaller
	defer each(ranks, func(r int) { smaller[r].Close() })
	want := w.fill(n, 3)
	each(ranks, func(r int) {
		for range 100 {
			if err := smaller[r].Do(context.Background(), w.call(r, n)); err != nil {
				t.Errorf("rank %d: %v", r, err)
				return
			}
		}
	})
	w.check(want)
	w.comms = old
}

func TestDeviceMismatch(t *testing.T) {
	const ranks, n = 4, 1000
	w := newDeviceWorld(t, ranks, 4*n, nil)
	each(ranks, func(r int) {
		call := w.call(r, n)
		if r == 2 {
			call.Count--
		}
		err := w.comms[r].Do(context.Background(), call)
		var e *comm.Error
		if !errors.Is(err, comm.ErrMismatch) || !errors.As(err, &e) || !slices.Equal(e.Ranks, []int{2}) || !strings.Contains(err.Error(), "999") || !strings.Contains(err.Error(), "1000") {
			t.Errorf("rank %d: %v, want a mismatch that names rank 2 and both counts", r, err)
		}
	})
}

// TestDeviceGraph: a captured group, replayed with fresh data.
func TestDeviceGraph(t *testing.T) {
	const ranks, n = 8, 2048
	w := newDeviceWorld(t, ranks, 4*n, nil)
	calls := make([]comm.Call, ranks)
	for r := range calls {
		calls[r] = w.call(r, n)
	}
	w.fill(n, 0)
	require.NoError(t, comm.Group(context.Background(), calls...))
	require.NoError(t, w.d.Synchronize())
	fork, err := w.d.NewEvent(false)
	require.NoError(t, err)
	join, err := w.d.NewEvent(false)
	require.NoError(t, err)
	g, err := w.d.Capture(w.streams[0], func() error {
		if err := w.d.Record(fork, w.streams[0]); err != nil {
			return err
		}
		for _, s := range w.streams[1:] {
			if err := w.d.WaitEvent(s, fork); err != nil {
				return err
			}
		}
		if err := comm.Group(context.Background(), calls...); err != nil {
			return err
		}
		for _, s := range w.streams[1:] {
			if err := w.d.Record(join, s); err != nil {
				return err
			}
			if err := w.d.WaitEvent(w.streams[0], join); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, err)
	defer g.Destroy()
	for round := range 100 {
		want := w.fill(n, round)
		require.NoError(t, w.d.Synchronize())
		require.NoError(t, g.Launch(w.streams[0]))
		require.NoError(t, w.d.Synchronize())
		w.check(want)
	}
}

// TestDeviceMessages: a ring of messages, from a goroutine a rank and from one for all; several in flight; to itself.
func TestDeviceMessages(t *testing.T) {
	const n = 70001
	for _, ranks := range []int{1, 2, 5} {
		w := newDeviceWorld(t, ranks, 4*n, nil)
		ring := func(r int) []comm.Call {
			send := comm.Call{Comm: w.comms[r], Kind: comm.KindSend, Src: w.src[r], Count: n, DType: kernels.Float32, Peer: (r + 1) % ranks, Stream: w.streams[r]}
			recv := send
			recv.Kind, recv.Src, recv.Dst, recv.Peer = comm.KindRecv, kernels.Mem{}, w.dst[r], (r+ranks-1)%ranks
			return []comm.Call{send, recv}
		}
		for round := range 20 {
			w.fill(n, round)
			if round%2 == 0 {
				each(ranks, func(r int) {
					if err := comm.Group(context.Background(), ring(r)...); err != nil {
						t.Errorf("rank %d: %v", r, err)
					}
				})
			} else {
				var calls []comm.Call
				for r := range ranks {
					calls = append(calls, ring(r)...)
				}
				require.NoError(t, comm.Group(context.Background(), calls...))
			}
			w.passed(n, round, 1)
		}
	}
}

// TestDeviceStarted: several calls in flight, waited for in another order.
func TestDeviceStarted(t *testing.T) {
	const ranks, n = 3, 1000
	w := newDeviceWorld(t, ranks, 4*n, nil)
	want := w.fill(n, 7)
	each(ranks, func(r int) {
		var pending []*comm.Pending
		for range 10 {
			pending = append(pending, w.comms[r].Start(w.call(r, n)))
		}
		for i := range pending {
			if err := pending[(i*7+r)%10].Wait(context.Background()); err != nil {
				t.Errorf("rank %d, call %d: %v", r, i, err)
			}
		}
	})
	w.check(want)
}

func TestDeviceMessageMismatch(t *testing.T) {
	w := newDeviceWorld(t, 2, 4000, nil)
	each(2, func(r int) {
		call := comm.Call{Kind: comm.KindSend, Src: w.src[r], Count: 1000, DType: kernels.Float32, Peer: 1 - r, Stream: w.streams[r]}
		if r == 1 {
			call.Kind, call.Src, call.Dst, call.Count = comm.KindRecv, kernels.Mem{}, w.dst[r], 999
		}
		err := w.comms[r].Do(context.Background(), call)
		if !errors.Is(err, comm.ErrMismatch) || !strings.Contains(err.Error(), "999") || !strings.Contains(err.Error(), "1000") {
			t.Errorf("rank %d: %v, want a mismatch with both counts", r, err)
		}
	})
}

// TestDeviceFused: several different calls of each rank in one Group, from one goroutine and from one a rank; some touch what others write.
func TestDeviceFused(t *testing.T) {
	const ranks, n = 4, 5000
	w := newDeviceWorld(t, ranks, 8*4*n, nil)
	part := func(m kernels.Mem, at, count int) kernels.Mem {
		return kernels.Mem{Ptr: unsafe.Add(m.Ptr, 4*at), Bytes: int64(4 * count), Device: m.Device}
	}
	group := func(r int) []comm.Call {
		sum := comm.Call{Comm: w.comms[r], Kind: comm.KindAllReduce, Count: n, DType: kernels.Float32, Src: part(w.src[r], 0, n), Dst: part(w.dst[r], 0, n), Stream: w.streams[r]}
		twice := sum // of the first one's result
		twice.Src, twice.Dst = sum.Dst, part(w.dst[r], n, n)
		gather := sum
		gather.Kind, gather.Count, gather.Dst = comm.KindAllGather, n, part(w.dst[r], 2*n, ranks*n)
		send := sum
		send.Kind, send.Dst, send.Peer = comm.KindSend, kernels.Mem{}, (r+1)%ranks
		recv := sum
		recv.Kind, recv.Src, recv.Dst, recv.Peer = comm.KindRecv, kernels.Mem{}, part(w.dst[r], 7*n, n), (r+ranks-1)%ranks
		return []comm.Call{sum, twice, gather, send, recv}
	}
	for round := range 10 {
		sum := w.fill(n, round)
		if round%2 == 0 {
			each(ranks, func(r int) {
				if err := comm.Group(context.Background(), group(r)...); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			})
		} else {
			var calls []comm.Call
			for r := range ranks {
				calls = append(calls, group(r)...)
			}
			require.NoError(t, comm.Group(context.Background(), calls...))
		}
		for r := range ranks {
			got := w.down(r, 8*n)
			for i := range n {
				input := func(q int) float32 { return float32((i*7+q*13+round)%61 - 30) }
				require.Equal(t, sum[i], got[i], "sum of element %d", i)
				require.Equal(t, ranks*sum[i], got[n+i], "sum of sums of element %d", i)
				for q := range ranks {
					require.Equal(t, input(q), got[(2+q)*n+i], "element %d of rank %d", i, q)
				}
				require.Equal(t, input((r+ranks-1)%ranks), got[7*n+i], "message, element %d", i)
			}
		}
	}
}

// TestDeviceFactor: each rank's own factor, known to the host or in GPU memory.
func TestDeviceFactor(t *testing.T) {
	const ranks, n = 3, 1000
	w := newDeviceWorld(t, ranks, 4*n+4, nil)
	for round := range 4 {
		w.fill(n, round)
		each(ranks, func(r int) {
			call := w.call(r, n)
			call.Factor = kernels.FactorOf(float64(r + 1))
			if round%2 == 1 {
				at, x := unsafe.Add(w.src[r].Ptr, 4*n), float32(r+1)
				if err := w.d.CopyAny(w.streams[r], at, unsafe.Pointer(&x), 4); err != nil {
					t.Error(err)
				}
				call.Factor = kernels.FactorAt(at)
			}
			if err := w.comms[r].Do(context.Background(), call); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		want := make([]float32, n)
		for i := range want {
			for r := range ranks {
				want[i] += float32(r+1) * float32((i*7+r*13+round)%61-30)
			}
		}
		w.check(want)
	}
	call := w.call(0, n)
	call.Factor, call.RedOp = kernels.FactorOf(2), kernels.Max
	require.ErrorIs(t, w.comms[0].Do(context.Background(), call), comm.ErrArgument)
}

// TestDeviceAllocateClosed: after the last Close nobody gets memory any more, and the error says why.
func TestDeviceAllocateClosed(t *testing.T) {
	needGPU(t)
	allocate := func(c *comm.Comm) error {
		if _, err := comm.AllocSlice[float32](c, 10); err != nil {
			return err
		}
		m, err := c.AllocOn(gpu0, 100)
		if err != nil {
			return err
		}
		return c.Free(m)
	}
	for _, ranks := range []int{1, 2} {
		comms := world(t, ranks, func(_ int, c *comm.Config) { c.Device = gpu0 })
		split := make([]*comm.Comm, ranks)
		each(ranks, func(r int) {
			c := comms[r]
			m, err := c.AllocOn(gpu0, 100)
			if err == nil {
				split[r], err = c.Split(context.Background(), 0, 0)
			}
			if err == nil {
				err = errors.Join(c.Close(), allocate(c), allocate(split[r]), split[r].Close()) // what was split from it has the memory still
			}
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
				return
			}
			_, host := comm.AllocSlice[float32](c, 10)
			_, device := split[r].AllocOn(gpu0, 100)
			for i, err := range []error{host, device, c.Free(m)} {
				if !errors.Is(err, comm.ErrClosed) {
					t.Errorf("rank %d, %d: %v, want ErrClosed", r, i, err)
				}
			}
		})
	}
}

// TestDeviceAlgorithm: Config.Algorithm is that of calls on GPU memory that name none, too, as far as they are of a kind that has it; one that cannot be had is
// refused before anything is queued.
func TestDeviceAlgorithm(t *testing.T) {
	const ranks, n = 3, 1000
	bits := func(w *deviceWorld, algorithm string) []float32 {
		for r := range ranks {
			x := make([]float32, n)
			for i := range x {
				x[i] = [ranks]float32{1 << 25, 1, -1 << 25}[r] // what comes of the 1 tells the order
			}
			w.up(r, x)
		}
		each(ranks, func(r int) {
			call := w.call(r, n)
			call.Algorithm = algorithm
			if err := w.comms[r].Do(context.Background(), call); err != nil {
				t.Errorf("rank %d by %q: %v", r, algorithm, err)
			}
		})
		return w.down(0, n)
	}
	w := newDeviceWorld(t, ranks, 4*n, func(_ int, c *comm.Config) { c.Algorithm = "ring" })
	ring, oneshot := bits(w, "ring"), bits(w, "oneshot")
	require.NotEqual(t, ring, oneshot)
	require.Equal(t, ring, bits(w, ""))
	each(ranks, func(r int) {
		call := w.call(r, 1)
		if call.Kind = comm.KindBroadcast; r != 0 {
			call.Src = kernels.Mem{Device: gpu0}
		}
		if err := w.comms[r].Do(context.Background(), call); err != nil {
			t.Errorf("rank %d: a broadcast, of which there is none by ring: %v", r, err)
		}
	})
	v := newDeviceWorld(t, ranks, 4*n, func(_ int, c *comm.Config) { c.Algorithm = "tree" })
	each(ranks, func(r int) {
		for _, name := range []string{"", "doubling", "none such"} {
			call := v.call(r, n)
			call.Algorithm = name
			err := v.comms[r].Do(context.Background(), call)
			if !errors.Is(err, comm.ErrArgument) || !strings.Contains(err.Error(), "want one of [ring oneshot twoshot") || strings.Contains(err.Error(), "Config.Algorithm") != (name == "") {
				t.Errorf("rank %d by %q: %v, want ErrArgument that lists the algorithms", r, name, err)
			}
		}
	})
	require.Equal(t, ring, bits(v, "ring"), "the communicator is as before")
}

// TestUC02_DeviceWatchdog: a rank that does not call, and one whose stream does not come to what it has called, are warned of by name,
// and past the time for a call they are an error.
func TestUC02_DeviceWatchdog(t *testing.T) {
	const ranks, n = 4, 1000
	var log logLines
	w := newDeviceWorld(t, ranks, 4*n, func(_ int, c *comm.Config) {
		c.WarnAfter, c.CallTimeout = 50*time.Millisecond, 3*time.Second
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	want := w.fill(n, 1)
	each(ranks, func(r int) {
		if r == 1 {
			for began := time.Now(); !strings.Contains(log.String(), "ranks=[1] because=\"they have not called it\"") && time.Since(began) < 2*time.Second; {
				time.Sleep(time.Millisecond)
			}
		}
		if err := w.comms[r].Do(context.Background(), w.call(r, n)); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
	require.True(t, strings.Contains(log.String(), "ranks=[1] because=\"they have not called it\""))
	w.check(want)

	// A kernel on rank 2's stream that waits in vain, until it is told to give up.
	stall := cudatest.NewStall(t, w.d)
	stall.Begin(w.streams[2])
	each(ranks, func(r int) {
		if err := w.comms[r].Do(context.Background(), w.call(r, n)); err != nil {
			t.Errorf("rank %d: a call that is queued: %v", r, err)
		}
	})
	require.Eventually(t, func() bool {
		return strings.Contains(log.String(), "ranks=[2] because=\"their streams have not come to it")
	}, time.Minute, time.Millisecond)
	each(ranks, func(r int) {
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(100 * time.Millisecond) { // the driver queues so many and no more
			err := w.comms[r].Do(context.Background(), w.call(r, n))
			if err == nil {
				continue
			}
			var e *comm.Error
			if !errors.Is(err, comm.ErrAborted) || !errors.Is(err, comm.ErrTimeout) || !errors.As(err, &e) || !slices.Equal(e.Ranks, []int{2}) {
				t.Errorf("rank %d: %v, want a timeout that names rank 2", r, err)
			}
			return
		}
		t.Errorf("rank %d: no error", r)
	})
	stall.End()
	for r := range ranks { // the streams are usable
		require.NoError(t, w.d.Wait(w.streams[r]))
	}
	w.check(want)
}

// TestDeviceCallsDoNotAllocate: what a call of one rank, and a Group of all ranks', costs the collector, also where shapes change.
func TestDeviceCallsDoNotAllocate(t *testing.T) {
	for _, ranks := range []int{1, 8} {
		w := newDeviceWorld(t, ranks, 4000, func(_ int, c *comm.Config) { c.WarnAfter = 20 * time.Millisecond })
		var calls [2][]comm.Call
		for r := range ranks {
			calls[0], calls[1] = append(calls[0], w.call(r, 1000)), append(calls[1], w.call(r, 500))
		}
		turn := 0
		call := func() {
			turn++
			if err := comm.Group(context.Background(), calls[turn/2%2]...); err != nil {
				panic(err)
			}
		}
		for range 100 { // until the watchdog can tell launches apart
			call()
			time.Sleep(time.Millisecond)
		}
		require.Zero(t, testing.AllocsPerRun(100, call), "%d ranks", ranks)
	}
}

// TestUC12_DeviceWorlds: worlds with a GPU that come and go leave no memory on it, no descriptor and no goroutine.
func TestUC12_DeviceWorlds(t *testing.T) {
	const ranks, n = 4, 1000
	d := needGPU(t) // stays open, and so does its context
	count := func() (goroutines, files int, free int64) {
		all, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		free, _, err = d.MemInfo()
		require.NoError(t, err)
		return runtime.NumGoroutine(), len(all), free
	}
	world := func(t *testing.T) {
		w := newDeviceWorld(t, ranks, 4*n, nil)
		want := w.fill(n, 1)
		var calls []comm.Call
		for r := range ranks {
			calls = append(calls, w.call(r, n))
		}
		require.NoError(t, comm.Group(context.Background(), calls...))
		w.check(want)
	}
	t.Run("first", world)
	goroutines, files, free := count()
	for range 20 {
		t.Run("next", world)
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		g, f, left := count()
		if g <= goroutines && f <= files && left >= free-32<<20 {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("%d goroutines, %d descriptors and %d bytes free, before %d, %d and %d", g, f, left, goroutines, files, free)
		}
	}
}
