package comm_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// linkedWorld is an apartWorld of ranks with a GPU each, as far as there are, which are linked.
func linkedWorld(t *testing.T, ranks int) *deviceWorld {
	t.Setenv("GCCL_TEST_LINKED", "1")
	return apartWorld(t, ranks, 16<<20, func(_ int, c *comm.Config) { c.WarnAfter, c.CallTimeout = time.Second, 3*time.Second })
}

// wait waits for a rank's stream and returns what the communicator says then, which it may only say soon.
func (w *deviceWorld) wait(r int) error {
	if err := w.on(r).Wait(w.streams[r]); err != nil {
		return err
	}
	return w.comms[r].Err()
}

// accuses checks an error for its kind, and that it names these ranks.
func accuses(err, kind error, ranks ...int) bool {
	var e *comm.Error
	return errors.Is(err, kind) && errors.As(err, &e) && slices.Equal(e.Ranks, ranks)
}

// capture captures calls of a rank.
func (w *deviceWorld) capture(r int, calls ...comm.Call) *cuda.Graph {
	g, err := w.on(r).Capture(w.streams[r], func() error {
		for _, c := range calls {
			if err := w.comms[r].Do(context.Background(), c); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, g.Destroy()) })
	return g
}

// TestDeviceLinksReplaysAndCalls: one rank replays what others call, and calls on host memory are in step all the same.
func TestDeviceLinksReplaysAndCalls(t *testing.T) {
	const ranks, n = 2, 1000
	w := linkedWorld(t, ranks)
	sum := w.fill(n, 1)
	g := w.capture(0, w.call(0, n))
	for range 3 {
		require.NoError(t, g.Launch(w.streams[0]))
		require.NoError(t, w.comms[1].Do(context.Background(), w.call(1, n)))
	}
	w.check(sum)
	each(ranks, func(r int) {
		if err := errors.Join(w.comms[r].Barrier(context.Background()), w.comms[r].Err()); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
}

// TestDeviceLinksGroupOrder: collectives of a Group that go by host memory and such that go over links stand in the order of calls, as others make them
// one by one, and messages behind them.
func TestDeviceLinksGroupOrder(t *testing.T) {
	const ranks, n, long = 2, 1000, 1 << 20
	w := linkedWorld(t, ranks)
	v := w.more(16 << 20)
	ctx := context.Background()
	sum := w.fill(long, 1)
	each(ranks, func(r int) {
		p, x := w.call(r, n), w.call(r, n)
		p.Algorithm, x.Src, x.Dst = "ring", w.dst[r], v.dst[r]
		var err error
		if r == 0 {
			err = comm.Group(ctx, w.message(0, comm.KindSend, 1, w.src[0], long), p, x)
		} else {
			err = errors.Join(w.comms[r].Do(ctx, p), w.comms[r].Do(ctx, x), w.comms[r].Do(ctx, w.message(1, comm.KindRecv, 0, v.src[1], long)))
		}
		if err = errors.Join(err, w.wait(r)); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
	require.False(t, t.Failed())
	w.check(sum[:n])
	for r := range ranks {
		for i, x := range w.read(r, v.dst[r], n) {
			require.Equal(t, 2*sum[i], x)
		}
	}
	require.Equal(t, w.read(0, w.src[0], long), w.read(1, v.src[1], long))
}

// TestDeviceLinksSwapped: long calls of two communicators on a stream each, which ranks queue in different orders.
func TestDeviceLinksSwapped(t *testing.T) {
	const ranks, n = 2, 100000
	w := linkedWorld(t, ranks)
	v := w.more(16 << 20)
	split := w.split()
	sum := w.fill(n, 1)
	for r := range ranks {
		require.NoError(t, w.on(r).Wait(w.streams[r]))
	}
	each(ranks, func(r int) {
		x, y := w.call(r, n), w.call(r, n)
		y.Comm, y.Dst, y.Stream = split[r], v.dst[r], v.streams[r]
		if r == 1 {
			x, y = y, x
		}
		err := errors.Join(x.Comm.Do(context.Background(), x), y.Comm.Do(context.Background(), y), w.wait(r), w.on(r).Wait(v.streams[r]), split[r].Err())
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
	w.check(sum)
	for r := range ranks {
		require.Equal(t, sum, w.read(r, v.dst[r], n))
	}
}

// TestDeviceLinksNoReplay: a rank that does not replay what others do is named when time is up.
func TestDeviceLinksNoReplay(t *testing.T) {
	const ranks, n = 2, 1000
	w := linkedWorld(t, ranks)
	w.fill(n, 1)
	require.NoError(t, w.capture(0, w.call(0, n)).Launch(w.streams[0]))
	err := w.wait(0)
	require.True(t, accuses(err, comm.ErrTimeout, 1), "%v", err)
}

// TestDeviceLinksCapturedOtherwise: graphs of calls that differ end when time is up.
func TestDeviceLinksCapturedOtherwise(t *testing.T) {
	const ranks, n = 2, 1000
	w := linkedWorld(t, ranks)
	w.fill(n+1, 1)
	for r := range ranks {
		require.NoError(t, w.capture(r, w.call(r, n+r)).Launch(w.streams[r]))
	}
	each(ranks, func(r int) {
		if err := w.wait(r); !errors.Is(err, comm.ErrTimeout) {
			t.Errorf("rank %d: %v, want a timeout", r, err)
		}
	})
}

// TestDeviceLinksCloses: a rank that closes without a call that others have made, or behind one that they made otherwise, is named soon.
func TestDeviceLinksCloses(t *testing.T) {
	const ranks, n = 2, 1000
	broadcast := func(c comm.Call) comm.Call {
		c.Kind, c.Root = comm.KindBroadcast, 1
		return c
	}
	for name, calls := range map[string]func(w *deviceWorld) (ours, theirs []comm.Call){
		"nothing": func(w *deviceWorld) (a, b []comm.Call) { return []comm.Call{w.call(0, n)}, nil },
		"a root's others": func(w *deviceWorld) (a, b []comm.Call) {
			return []comm.Call{broadcast(w.call(0, n))}, []comm.Call{broadcast(w.call(1, n+1))}
		},
		"nothing of it": func(w *deviceWorld) (a, b []comm.Call) { return []comm.Call{w.call(0, n)}, []comm.Call{w.call(1, 0)} },
	} {
		t.Run(name, func(t *testing.T) {
			w := linkedWorld(t, ranks)
			w.fill(n+1, 1)
			ours, theirs := calls(w)
			each(ranks, func(r int) {
				for _, c := range [][]comm.Call{ours, theirs}[r] {
					if err := w.comms[r].Do(context.Background(), c); err != nil {
						t.Errorf("rank %d: %v", r, err)
					}
				}
				if r == 1 {
					w.comms[1].Close()
					return
				}
				if err := w.wait(0); !errors.Is(err, comm.ErrAborted) || errors.Is(err, comm.ErrTimeout) || !accuses(err, comm.ErrAborted, 1) {
					t.Errorf("%v, want an error that names rank 1", err)
				}
			})
		})
	}
}

// TestDeviceLinksUnlikeWays: a call over links of some, where others' goes by host memory, is a mismatch, found at once.
func TestDeviceLinksUnlikeWays(t *testing.T) {
	for _, odd := range []int{0, 1, 2} {
		const ranks, n = 3, 1000
		w := linkedWorld(t, ranks)
		w.fill(n, 1)
		each(ranks, func(r int) {
			c := w.call(r, n)
			if r == odd {
				c.Algorithm = "ring"
			}
			err := w.comms[r].Do(context.Background(), c)
			if err == nil {
				err = w.wait(r)
			}
			if !accuses(err, comm.ErrMismatch, odd) || !strings.Contains(err.Error(), "host memory") {
				t.Errorf("rank %d: %v, want a mismatch that names rank %d", r, err, odd)
			}
		})
	}
}

// TestDeviceCallMeetsSplit: ranks that queue a collective on GPU memory while others are in a Split are told so, however the call goes.
func TestDeviceCallMeetsSplit(t *testing.T) {
	const ranks, n = 2, 1000
	for name, algorithm := range map[string]string{"links": "", "host memory": "ring"} {
		t.Run(name, func(t *testing.T) {
			w := linkedWorld(t, ranks)
			w.fill(n, 1)
			each(ranks, func(r int) {
				var err error
				if r == 0 {
					_, err = w.comms[0].Split(context.Background(), 0, 0)
				} else {
					c := w.call(1, n)
					c.Algorithm = algorithm
					if err = w.comms[1].Do(context.Background(), c); err == nil {
						err = w.wait(1)
					}
				}
				if !accuses(err, comm.ErrMismatch, 1) || !strings.Contains(err.Error(), "ranks [0] called split") {
					t.Errorf("rank %d: %v, want a mismatch that names rank 1", r, err)
				}
			})
		})
	}
}
