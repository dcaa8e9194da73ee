package comm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// TestDeviceSeveralGPUs: ranks of one process on all GPUs in turn, one or more on each: all-reduces of all lengths, from a goroutine a rank
// and from one for all; then a rank that never calls is named, and the others go on without it.
func TestDeviceSeveralGPUs(t *testing.T) {
	needGPU(t)
	n, err := cuda.Count()
	require.NoError(t, err)
	if n < 2 {
		t.Skip("there is one GPU")
	}
	for _, ranks := range []int{n, 2*n + 1} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			const room = 32 << 20
			patience := time.Second
			lengths := []int{1, 7, 1000, 65537, 1 << 20, 3 << 20, room / 4}
			if testing.Short() { // on emulated GPUs
				patience, lengths = 10*time.Second, []int{1, 7, 1000, 65537}
			}
			at := func(r int) kernels.Device { return kernels.Device{Kind: kernels.CUDA, Ordinal: int32(r % n)} }
			comms := world(t, ranks, func(r int, c *comm.Config) { c.Device, c.CallTimeout = at(r), patience })
			devices := make([]*cuda.Device, n)
			for i := range devices {
				devices[i], err = cuda.Open(i)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, devices[i].Close()) })
			}
			var streams []cuda.Stream
			var src, dst []kernels.Mem
			for r, c := range comms {
				s, err := devices[r%n].NewStream()
				require.NoError(t, err)
				a, err := c.AllocOn(at(r), room)
				require.NoError(t, err)
				b, err := c.AllocOn(at(r), room)
				require.NoError(t, err)
				streams, src, dst = append(streams, s), append(src, a), append(dst, b)
			}
			t.Cleanup(func() {
				for r, s := range streams {
					require.NoError(t, devices[r%n].Wait(s))
					require.NoError(t, devices[r%n].DestroyStream(s))
				}
			})
			call := func(on []*comm.Comm, r, count int) comm.Call {
				return comm.Call{Comm: on[r], Kind: comm.KindAllReduce, Src: src[r], Dst: dst[r], Count: count, DType: kernels.Float32, Stream: streams[r]}
			}
			check := func(on []*comm.Comm, count, round int, do func()) {
				want := make([]float32, count)
				for r := range on {
					x := make([]float32, count)
					for i := range x {
						x[i] = float32((i*7+r*13+round)%61 - 30)
						want[i] += x[i]
					}
					require.NoError(t, devices[r%n].CopyAny(streams[r], src[r].Ptr, unsafe.Pointer(&x[0]), int64(4*count)))
				}
				do()
				got := make([]float32, count)
				for r := range on {
					require.NoError(t, devices[r%n].CopyAny(streams[r], unsafe.Pointer(&got[0]), dst[r].Ptr, int64(4*count)))
					require.NoError(t, devices[r%n].Wait(streams[r]))
					require.True(t, slices.Equal(want, got), "rank %d, %d elements", r, count)
				}
			}
			for round, count := range lengths {
				check(comms, count, round, func() {
					each(ranks, func(r int) {
						for range 3 {
							if err := comms[r].Do(context.Background(), call(comms, r, count)); err != nil {
								t.Errorf("rank %d: %v", r, err)
							}
						}
					})
				})
				check(comms, count, round+100, func() {
					var calls []comm.Call
					for r := range ranks {
						calls = append(calls, call(comms, r, count))
					}
					require.NoError(t, comm.Group(context.Background(), calls...))
				})
			}
			if ranks == 2 { // nobody would be left to agree with
				for _, c := range comms { // what they share stays until the last one has left
					require.NoError(t, c.Close())
				}
				return
			}
			each(ranks, func(r int) {
				if r == ranks-1 {
					return
				}
				err := comms[r].Do(context.Background(), call(comms, r, 1000))
				var e *comm.Error
				if !errors.Is(err, comm.ErrTimeout) || !errors.As(err, &e) || !slices.Equal(e.Ranks, []int{ranks - 1}) {
					t.Errorf("rank %d: %v, want a timeout that names rank %d", r, err, ranks-1)
				}
			})
			require.ErrorIs(t, comms[ranks-1].Do(context.Background(), call(comms, ranks-1, 1000)), comm.ErrAborted, "it is too late")
			smaller := make([]*comm.Comm, ranks)
			each(ranks, func(r int) {
				var err error
				if smaller[r], err = comms[r].Shrink(context.Background()); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			})
			require.False(t, t.Failed())
			defer each(ranks, func(r int) { smaller[r].Close() })
			check(smaller, 1000, 5, func() {
				each(ranks, func(r int) {
					for range 100 {
						if err := smaller[r].Do(context.Background(), call(smaller, r, 1000)); err != nil {
							t.Errorf("rank %d: %v", r, err)
							return
						}
					}
				})
			})
		})
	}
}

// TestDeviceSeveralGPUsLateStream: a rank whose stream does not come to a call for which another GPU's kernel waits is warned of by name, and past the time for
// a call it is an error; then the streams go on.
func TestDeviceSeveralGPUsLateStream(t *testing.T) {
	const ranks, n = 2, 1000
	needGPU(t)
	if have, err := cuda.Count(); err != nil || have < ranks {
		t.Skip("there is one GPU")
	}
	var log logLines
	w := &deviceWorld{t: t}
	for r := range ranks {
		d, err := cuda.Open(r)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		w.devices = append(w.devices, d)
	}
	w.comms = world(t, ranks, func(r int, c *comm.Config) {
		c.Device = kernels.Device{Kind: kernels.CUDA, Ordinal: int32(r)}
		c.WarnAfter, c.CallTimeout = 50*time.Millisecond, 3*time.Second
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	w.more(4 * n)
	stall := cudatest.NewStall(t, w.devices[1])
	stall.Begin(w.streams[1])
	each(ranks, func(r int) {
		if err := w.comms[r].Do(context.Background(), w.call(r, n)); err != nil {
			t.Errorf("rank %d: a call that is queued: %v", r, err)
		}
	})
	require.Eventually(t, func() bool {
		return strings.Contains(log.String(), "ranks=[1] because=\"their streams have not come to it")
	}, time.Minute, time.Millisecond)
	require.NoError(t, w.devices[0].Wait(w.streams[0]))
	for r := range ranks {
		require.Eventually(t, func() bool { return accuses(w.comms[r].Err(), comm.ErrTimeout, 1) }, time.Minute, time.Millisecond, "rank %d", r)
	}
	stall.End()
	require.NoError(t, w.devices[1].Wait(w.streams[1]))
}
