package comm_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// TestDeviceProxyContextEnds: while others are waited for, the end of a context ends the call where the caller waits, and so does Close.
func TestDeviceProxyContextEnds(t *testing.T) {
	const ranks, n = 2, 1000
	for _, closes := range []bool{false, true} {
		w := apartWorld(t, ranks, 4*n, nil)
		w.fill(n, 1)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		if closes {
			time.AfterFunc(100*time.Millisecond, func() { w.comms[1].Close() })
		}
		began := time.Now()
		err := w.comms[0].Do(ctx, w.call(0, n))
		if w.share() {
			require.ErrorIs(t, err, comm.ErrAborted)
		} else {
			require.NoError(t, err) // it is queued
			w.comms[0].Abort(context.Canceled)
		}
		require.NoError(t, w.on(0).Wait(w.streams[0]))
		require.Less(t, time.Since(began), 30*time.Second)
		require.ErrorIs(t, w.comms[0].Err(), comm.ErrAborted)
		cancel()
	}
}

// TestDeviceProxyLateRank: a rank that never calls is named, the streams go on, and the others do without it.
func TestDeviceProxyLateRank(t *testing.T) {
	const ranks, n = 3, 1000
	w := apartWorld(t, ranks, 4*n, func(_ int, c *comm.Config) { c.CallTimeout = 2 * time.Second })
	w.fill(n, 1)
	each(ranks, func(r int) {
		if r == 2 {
			return
		}
		if err := w.comms[r].Do(context.Background(), w.call(r, n)); err != nil && !errors.Is(err, comm.ErrTimeout) { // where the GPU is shared, at once
			t.Errorf("rank %d: %v", r, err)
		}
		if err := w.on(r).Wait(w.streams[r]); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
		var e *comm.Error
		if err := w.comms[r].Err(); !errors.Is(err, comm.ErrTimeout) || !errors.As(err, &e) || !slices.Equal(e.Ranks, []int{2}) {
			t.Errorf("rank %d: %v, want a timeout that names rank 2", r, err)
		}
		if err := w.comms[r].Do(context.Background(), w.call(r, n)); !errors.Is(err, comm.ErrAborted) || !errors.Is(err, comm.ErrTimeout) {
			t.Errorf("rank %d: %v, want what Err said", r, err)
		}
	})
	smaller := make([]*comm.Comm, ranks)
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
	each(ranks, func(r int) { require.NoError(t, smaller[r].Close()) })
	w.comms = old
}

// TestDeviceProxyLateStream: a rank whose stream does not come to its call is named, and that this is why.
func TestDeviceProxyLateStream(t *testing.T) {
	const ranks, n = 2, 1000
	w := apartWorld(t, ranks, 4*n, func(_ int, c *comm.Config) { c.CallTimeout = 2 * time.Second })
	w.fill(n, 1)
	word, err := w.on(1).AllocPinned(4096)
	require.NoError(t, err)
	at := (*atomic.Uint32)(word.Host)
	at.Store(0)
	require.NoError(t, w.on(1).Until(w.streams[1], word.Device, 1))
	each(ranks, func(r int) {
		if err := w.comms[r].Do(context.Background(), w.call(r, n)); err != nil && !errors.Is(err, comm.ErrTimeout) {
			t.Errorf("rank %d: %v", r, err)
		}
		if r != 0 {
			return
		}
		if err := w.on(r).Wait(w.streams[r]); err != nil {
			t.Error(err)
		}
		var e *comm.Error
		if err := w.comms[r].Err(); !errors.Is(err, comm.ErrTimeout) || !errors.As(err, &e) || !slices.Equal(e.Ranks, []int{1}) || !strings.Contains(err.Error(), "stream has not come") && !strings.Contains(err.Error(), "stream does not come") {
			t.Errorf("%v, want a timeout that names rank 1 and its stream", err)
		}
	})
	at.Store(1)
	require.NoError(t, w.on(1).Wait(w.streams[1]))
	require.NoError(t, w.on(1).FreePinned(word))
}

// TestDeviceProxyMismatch: ranks that call otherwise hear both ways, whether the first pieces are alike or not, and after some good calls.
func TestDeviceProxyMismatch(t *testing.T) {
	const ranks, n = 3, 600000
	for name, edit := range map[string]func(*comm.Call){
		"last piece":  func(c *comm.Call) { c.Count-- },
		"whole piece": func(c *comm.Call) { c.Count = 1 << 18 },
		"redop":       func(c *comm.Call) { c.RedOp = kernels.Max },
		"kind":        func(c *comm.Call) { c.Kind = comm.KindBroadcast },
		"nothing":     func(c *comm.Call) { c.Count = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			w := apartWorld(t, ranks, 4*n, nil)
			want := w.fill(n, 1)
			each(ranks, func(r int) {
				call := w.call(r, n)
				err := w.comms[r].Do(context.Background(), call)
				if r == 1 {
					edit(&call)
				}
				if err == nil {
					err = w.comms[r].Do(context.Background(), call)
				}
				if err == nil && call.Count == 0 { // of which it waits for nobody
					err = w.comms[r].Do(context.Background(), w.call(r, n))
				}
				if err == nil {
					err = w.on(r).Wait(w.streams[r])
				}
				if err == nil {
					err = w.comms[r].Err()
				}
				var e *comm.Error
				if !errors.Is(err, comm.ErrMismatch) || !errors.As(err, &e) || !slices.Equal(e.Ranks, []int{1}) {
					t.Errorf("rank %d: %v, want a mismatch that names rank 1", r, err)
				}
			})
			_ = want
		})
	}
}

// TestDeviceProxyRefuses: what cannot be is said before anything is queued, and the communicator is as before.
func TestDeviceProxyRefuses(t *testing.T) {
	const ranks, n = 2, 1000
	w := apartWorld(t, ranks, 4*n, nil)
	want := w.fill(n, 1)
	each(ranks, func(r int) {
		do := func(edit func(*comm.Call)) error {
			c := w.call(r, n)
			edit(&c)
			return w.comms[r].Do(context.Background(), c)
		}
		for what, c := range map[string]struct {
			edit func(*comm.Call)
			is   error
		}{
			"short":     {func(c *comm.Call) { c.Dst.Bytes-- }, comm.ErrArgument},
			"overlap":   {func(c *comm.Call) { c.Dst.Ptr = unsafe.Add(c.Src.Ptr, 4) }, comm.ErrArgument},
			"algorithm": {func(c *comm.Call) { c.Algorithm = "none such" }, comm.ErrArgument},
			"device":    {func(c *comm.Call) { c.Src.Device.Ordinal, c.Dst.Device.Ordinal = 7, 7 }, comm.ErrArgument},
			"factor":    {func(c *comm.Call) { c.Factor, c.RedOp = kernels.FactorAt(c.Src.Ptr), kernels.Max }, comm.ErrArgument},
		} {
			if err := do(c.edit); !errors.Is(err, c.is) {
				t.Errorf("rank %d: %s: %v, want %v", r, what, err, c.is)
			}
		}
	})
	each(ranks, func(r int) {
		if err := w.comms[r].Do(context.Background(), w.call(r, n)); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
	w.check(want)
}

// TestDeviceProxyAbortsWhatWaits: a message that nobody sends waits on the stream or in the caller, long enough for everything to sleep; then an Abort
// here or elsewhere, or a Close, lets it go.
func TestDeviceProxyAbortsWhatWaits(t *testing.T) {
	const n = 100
	for _, how := range []string{"abort", "abort elsewhere", "abort of another that closed", "close elsewhere"} {
		w := apartWorld(t, 2, 4*n, nil)
		time.AfterFunc(500*time.Millisecond, func() {
			switch how {
			case "abort":
				w.comms[0].Abort(errors.New("enough"))
			case "abort elsewhere":
				w.comms[1].Abort(errors.New("enough"))
			case "abort of another that closed":
				w.comms[0].Abort(fmt.Errorf("another one: %w", comm.ErrClosed))
			default:
				w.comms[1].Close()
			}
		})
		began := time.Now()
		if err := w.comms[0].Do(context.Background(), w.message(0, comm.KindRecv, 1, w.dst[0], n)); err != nil {
			require.ErrorIs(t, err, comm.ErrAborted, how)
		}
		require.NoError(t, w.on(0).Wait(w.streams[0]), how)
		require.ErrorIs(t, w.comms[0].Err(), comm.ErrAborted, how)
		require.Less(t, time.Since(began), 30*time.Second, how)
	}
}

// TestDeviceProxyCloses: Close has done what was queued, and Abort gives it up: either way the streams go on, and nothing is left.
func TestDeviceProxyCloses(t *testing.T) {
	const ranks, n = 2, 600000
	before := runtime.NumGoroutine()
	for round := range 6 {
		w := apartWorld(t, ranks, 4*n, nil)
		for r := range w.dst { // memory that outlives the communicator
			m, err := w.on(r).Alloc(4 * n)
			require.NoError(t, err)
			w.dst[r] = m
		}
		want := w.fill(n, round)
		each(ranks, func(r int) {
			for range 3 {
				if err := w.comms[r].Do(context.Background(), w.call(r, n)); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
			if round%2 == 0 {
				return
			}
			if r == 0 { // in vain
				enough := errors.New("we have had enough")
				time.AfterFunc(20*time.Millisecond, func() { w.comms[r].Abort(enough) })
				if err := w.comms[r].Do(context.Background(), w.call(r, n)); err != nil && !errors.Is(err, comm.ErrAborted) {
					t.Errorf("rank %d: %v", r, err)
				}
			}
			if err := w.on(r).Wait(w.streams[r]); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		each(ranks, func(r int) {
			if err := w.comms[r].Close(); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
			if err := w.comms[r].Err(); !errors.Is(err, comm.ErrAborted) {
				t.Errorf("rank %d after Close: %v", r, err)
			}
		})
		if round%2 == 0 {
			w.check(want)
		}
		for r, m := range w.dst {
			require.NoError(t, w.on(r).Free(m))
		}
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, 10*time.Second, 10*time.Millisecond)
}
