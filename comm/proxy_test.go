package comm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// apartWorld is a deviceWorld of ranks that take each other to be on other hosts, so that what they tell each other goes by way of host memory. They
// have GPUs of their own where there are as many; ranks that share one wait in other places.
func apartWorld(t *testing.T, ranks int, room int64, edit func(int, *comm.Config)) *deviceWorld {
	w := &deviceWorld{t: t, d: needGPU(t)}
	n, err := cuda.Count()
	require.NoError(t, err)
	for r := range ranks {
		d, err := cuda.Open(r % n)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		w.devices = append(w.devices, d)
	}
	w.comms = world(t, ranks, func(r int, c *comm.Config) {
		c.HostID, c.Device = fmt.Sprintf("host %d", r), w.devices[r].Device()
		if edit != nil {
			edit(r, c)
		}
	})
	return w.more(room)
}

// proxyKinds are what a rank's result of n elements a block has to be, where rank r's input is input(r, i).
var proxyKinds = []struct {
	kind    comm.Kind
	in, out func(ranks int) int // blocks
	want    func(ranks, r, n, i int) float32
}{
	{comm.KindAllReduce, one, one, func(ranks, _, _, i int) float32 { return sumOf(ranks, i) }},
	{comm.KindAllGather, one, all, func(_, _, n, i int) float32 { return input(i/n, i%n) }},
	{comm.KindReduceScatter, all, one, func(ranks, r, n, i int) float32 { return sumOf(ranks, r*n+i) }},
	{comm.KindBroadcast, one, one, func(ranks, _, _, i int) float32 { return input(ranks-1, i) }},
	{comm.KindReduce, one, one, func(ranks, r, _, i int) float32 {
		if r != ranks-1 {
			return -1
		}
		return sumOf(ranks, i)
	}},
	{comm.KindAllToAll, all, all, func(_, r, n, i int) float32 { return input(i/n, r*n+i%n) }},
}

func one(int) int            { return 1 }
func all(ranks int) int      { return ranks }
func input(r, i int) float32 { return float32((r*7919 + i) % 1021) }
func sumOf(ranks, i int) (s float32) {
	for r := range ranks {
		s += input(r, i)
	}
	return s
}

// TestDeviceProxyKinds: ranks on several hosts: every kind, of lengths about those of a round, also in place, queued one behind the other.
func TestDeviceProxyKinds(t *testing.T) {
	for _, ranks := range []int{2, 3} {
		w := apartWorld(t, ranks, 8<<20, nil)
		for _, n := range []int{0, 1, 1000, 1<<18 - 1, 1<<18 + 65, 1300000} {
			for _, k := range proxyKinds {
				rows := max(k.in(ranks), k.out(ranks))
				count := n / rows
				for _, inPlace := range []bool{false, true} {
					if inPlace && k.kind == comm.KindAllToAll {
						continue
					}
					what := fmt.Sprintf("%v of %d, %d ranks, in place %v", k.kind, count, ranks, inPlace)
					calls := make([]comm.Call, ranks)
					for r := range calls {
						in, out := make([]float32, k.in(ranks)*count), make([]float32, k.out(ranks)*count)
						for i := range in {
							in[i] = input(r, i)
						}
						for i := range out {
							out[i] = -1
						}
						c := comm.Call{Kind: k.kind, Count: count, DType: kernels.Float32, Stream: w.streams[r], Src: w.src[r], Dst: w.dst[r]}
						if k.kind == comm.KindBroadcast || k.kind == comm.KindReduce {
							c.Root = ranks - 1
						}
						if inPlace {
							switch k.kind {
							case comm.KindAllGather:
								c.Src.Ptr = unsafe.Add(c.Dst.Ptr, r*count*4)
							case comm.KindReduceScatter:
								c.Dst.Ptr = unsafe.Add(c.Src.Ptr, r*count*4)
							default:
								c.Dst = c.Src
							}
							c.Src.Bytes, c.Dst.Bytes = int64(4*len(in)), int64(4*len(out))
						}
						calls[r] = c
						if count > 0 {
							require.NoError(t, w.on(r).CopyAny(w.streams[r], c.Dst.Ptr, unsafe.Pointer(&out[0]), int64(4*len(out))))
							require.NoError(t, w.on(r).CopyAny(w.streams[r], c.Src.Ptr, unsafe.Pointer(&in[0]), int64(4*len(in))))
						}
					}
					each(ranks, func(r int) {
						if err := w.comms[r].Do(context.Background(), calls[r]); err != nil {
							t.Errorf("%s: %v", what, err)
						}
					})
					for r := range calls {
						got := make([]float32, k.out(ranks)*count)
						if count == 0 {
							continue
						}
						require.NoError(t, w.on(r).CopyAny(w.streams[r], unsafe.Pointer(&got[0]), calls[r].Dst.Ptr, int64(4*len(got))))
						require.NoError(t, w.on(r).Wait(w.streams[r]))
						for i, x := range got {
							want := k.want(ranks, r, count, i)
							if want == -1 && inPlace {
								want = input(r, i)
							}
							if x != want {
								t.Fatalf("%s: rank %d has %v at %d, want %v", what, r, x, i, want)
							}
						}
						require.NoError(t, w.comms[r].Err())
					}
				}
			}
		}
	}
}

// TestUC69_DeviceByStaging: where network adapters do not reach GPU memory a job runs all the same, and the log says so and why.
func TestUC69_DeviceByStaging(t *testing.T) {
	var log strings.Builder
	var mu sync.Mutex
	w := apartWorld(t, 2, 4000, func(r int, c *comm.Config) {
		if r == 0 {
			c.Logger = slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				return log.Write(b)
			}), nil))
		}
	})
	mu.Lock()
	require.Contains(t, log.String(), "GPUDirect is off")
	require.Contains(t, log.String(), "rank 1 runs in another process")
	mu.Unlock()
	want := w.fill(1000, 1)
	each(2, func(r int) {
		if err := w.comms[r].Do(context.Background(), w.call(r, 1000)); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
	w.check(want)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestDeviceProxyMessages: rings of messages of several rounds, from a goroutine a rank and from one for all, and to itself.
func TestDeviceProxyMessages(t *testing.T) {
	const n = 200001
	for _, ranks := range []int{2, 5} {
		w := apartWorld(t, ranks, 4*n, nil)
		for round := range 8 {
			away := round % ranks // how far messages go: sometimes to the rank itself
			ring := func(r int) []comm.Call {
				return []comm.Call{w.message(r, comm.KindSend, (r+away)%ranks, w.src[r], n), w.message(r, comm.KindRecv, (r+ranks-away)%ranks, w.dst[r], n)}
			}
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
			for r := range ranks {
				got, from := w.down(r, n), (r+ranks-away)%ranks
				for i := range got {
					if want := float32((i*7+from*13+round)%61 - 30); got[i] != want {
						t.Fatalf("round %d: element %d at rank %d is %v, want %v", round, i, r, got[i], want)
					}
				}
			}
		}
	}
}

// TestDeviceProxyGroups: what one rank groups another makes call by call, calls of a group that need others' results have them, and streams that
// differ keep the order.
func TestDeviceProxyGroups(t *testing.T) {
	const ranks, n, m = 2, 700000, 300000
	w := apartWorld(t, ranks, 4*n, nil)
	v := w.more(4 * n)
	ctx := context.Background()
	for round := range 6 {
		sum := w.fill(n, round)
		twice := make([]float32, n)
		for i := range twice {
			twice[i] = ranks * sum[i]
		}
		each(ranks, func(r int) {
			first := w.call(r, n) // src -> dst
			then := w.call(r, n)  // dst -> v, the sum of sums
			then.Src, then.Dst = w.dst[r], v.src[r]
			short := w.call(r, m)
			short.Dst = v.dst[r]
			calls := []comm.Call{first, then, short}
			if round%2 == 1 {
				then.Stream = v.streams[r] // behind what is on another stream
				calls[1] = then
			}
			var err error
			if round%3 == r {
				for _, c := range calls {
					if err == nil {
						err = w.comms[r].Do(ctx, c)
					}
				}
			} else {
				err = comm.Group(ctx, calls...)
			}
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		for r := range ranks {
			require.NoError(t, w.on(r).Wait(v.streams[r]))
		}
		w.check(sum)
		for r := range ranks {
			require.Equal(t, twice, w.read(r, v.src[r], n), "rank %d", r)
			require.Equal(t, sum[:m], w.read(r, v.dst[r], m), "rank %d", r)
		}
	}
}

// TestDeviceProxyDependentGroups: of calls of one Group that need others' results, on two communicators and of several ranks of this process.
func TestDeviceProxyDependentGroups(t *testing.T) {
	const ranks, n = 2, 700000
	w := apartWorld(t, ranks, 4*n, nil)
	v := w.more(4 * n)
	split := make([]*comm.Comm, ranks)
	each(ranks, func(r int) {
		var err error
		if split[r], err = w.comms[r].Split(context.Background(), 0, r); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
	if t.Failed() {
		return
	}
	for round := range 6 {
		m := []int{1000, n}[round%2]
		sum := w.fill(m, round)
		twice := make([]float32, m)
		for i := range twice {
			twice[i] = ranks * sum[i]
		}
		group := func(r int) []comm.Call {
			first, then := w.call(r, m), w.call(r, m)
			then.Src, then.Dst = w.dst[r], v.dst[r]
			if round%3 == 0 {
				then.Comm = split[r]
			}
			return []comm.Call{first, then}
		}
		if round < 3 {
			each(ranks, func(r int) {
				if err := comm.Group(context.Background(), group(r)...); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			})
		} else {
			require.NoError(t, comm.Group(context.Background(), append(group(0), group(1)...)...))
		}
		w.check(sum)
		for r := range ranks {
			require.Equal(t, twice, w.read(r, v.dst[r], m), "round %d, rank %d", round, r)
		}
	}
	each(ranks, func(r int) { require.NoError(t, split[r].Close()) })
}

// TestDeviceProxyUnlikeGroups: what one rank has in a group, another one has in calls that wait for each other, longer than what is under way at once.
func TestDeviceProxyUnlikeGroups(t *testing.T) {
	const ranks, n = 3, 600000
	w := apartWorld(t, ranks, 4*n, nil)
	v := w.more(4 * n)
	for round := range 3 {
		w.fill(n, round)
		each(ranks, func(r int) {
			switch r {
			case 0:
				other := w.message(0, comm.KindRecv, 2, v.dst[0], n)
				other.Stream = []cuda.Stream{w.streams[0], v.streams[0]}[round%2]
				if err := comm.Group(context.Background(), w.message(0, comm.KindRecv, 1, w.dst[0], n), other); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			case 1:
				w.oneByOne(w.message(1, comm.KindSend, 0, w.src[1], n), w.message(1, comm.KindSend, 2, w.src[1], n))
			case 2:
				w.oneByOne(w.message(2, comm.KindRecv, 1, w.dst[2], n), w.message(2, comm.KindSend, 0, w.src[2], n))
			}
		})
		require.NoError(t, w.on(0).Wait(v.streams[0]))
		require.Equal(t, w.read(1, w.src[1], n), w.read(0, w.dst[0], n))
		require.Equal(t, w.read(2, w.src[2], n), w.read(0, v.dst[0], n))
		require.Equal(t, w.read(1, w.src[1], n), w.read(2, w.dst[2], n))
	}
}

// TestDeviceProxyUnlikeLong is the same of messages longer than what a stream takes at once.
func TestDeviceProxyUnlikeLong(t *testing.T) {
	const ranks, n = 2, 14 << 20
	w := apartWorld(t, ranks, 4*n, nil)
	w.fill(n, 1)
	each(ranks, func(r int) {
		send, recv := w.message(r, comm.KindSend, 1-r, w.src[r], n), w.message(r, comm.KindRecv, 1-r, w.dst[r], n)
		if r == 1 {
			w.oneByOne(recv, send)
		} else if err := comm.Group(context.Background(), send, recv); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
	for r := range ranks {
		require.Equal(t, w.read(1-r, w.src[1-r], n), w.read(r, w.dst[r], n))
	}
}

// TestDeviceProxyGroupsOfSeveral: calls of two communicators in one Group, which ranks make in different orders, or one by one.
func TestDeviceProxyGroupsOfSeveral(t *testing.T) {
	const ranks, most = 2, 2 << 20
	w := apartWorld(t, ranks, 4*most, nil)
	v := w.more(4 * most)
	split := make([]*comm.Comm, ranks)
	each(ranks, func(r int) {
		var err error
		if split[r], err = w.comms[r].Split(context.Background(), 0, r); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	})
	for _, n := range []int{100, 300000, most} {
		for round := range 4 {
			want := w.fill(n, round)
			each(ranks, func(r int) {
				x, y := w.call(r, n), w.call(r, n)
				y.Comm, y.Dst = split[r], v.dst[r]
				switch {
				case round == 0 && r == 1:
					w.oneByOne(x, y)
					return
				case round%2 == 1 && r == 1:
					x, y = y, x
				}
				if err := comm.Group(context.Background(), x, y); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			})
			w.check(want)
			for r := range ranks {
				require.Equal(t, want, w.read(r, v.dst[r], n))
			}
		}
	}
	each(ranks, func(r int) { require.NoError(t, split[r].Close()) })
}

// message is a send from m or a receive to it.
func (w *deviceWorld) message(r int, kind comm.Kind, peer int, m kernels.Mem, n int) comm.Call {
	c := comm.Call{Comm: w.comms[r], Kind: kind, Count: n, DType: kernels.Float32, Peer: peer, Stream: w.streams[r]}
	if kind == comm.KindSend {
		c.Src = m
	} else {
		c.Dst = m
	}
	return c
}

// oneByOne makes calls without a Group.
func (w *deviceWorld) oneByOne(calls ...comm.Call) {
	for _, c := range calls {
		if err := c.Comm.Do(context.Background(), c); err != nil {
			w.t.Errorf("rank %d: %v", c.Comm.Rank(), err)
		}
	}
}

// TestDeviceProxyNumbersWrap: numbers of all kinds begin just below where they wrap.
func TestDeviceProxyNumbersWrap(t *testing.T) {
	const ranks = 2
	w := apartWorld(t, ranks, 8<<20, func(_ int, c *comm.Config) { c.FirstSeq = 1<<32 - 3 })
	for round := range 12 {
		n := []int{1000, 1300000}[round%2]
		want := w.fill(n, round)
		each(ranks, func(r int) {
			if err := w.comms[r].Do(context.Background(), w.call(r, n)); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		w.check(want)
	}
}

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
		if w.on(0).Device() == w.on(1).Device() {
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

// TestDeviceProxyManyCalls: ranks run ahead of their streams by more than those take, two ranks a host, all from one goroutine or each from its own.
func TestDeviceProxyManyCalls(t *testing.T) {
	const ranks, n, calls = 4, 1000, 600
	w := apartWorld(t, ranks, 4*n, func(r int, c *comm.Config) { c.HostID = fmt.Sprint("host ", r/2) })
	want := w.fill(n, 1)
	each(ranks, func(r int) {
		for range calls {
			if err := w.comms[r].Do(context.Background(), w.call(r, n)); err != nil {
				t.Errorf("rank %d: %v", r, err)
				return
			}
		}
	})
	w.check(want)
	want = w.fill(n, 2)
	var group []comm.Call
	for r := range ranks {
		group = append(group, w.call(r, n))
	}
	for range calls {
		require.NoError(t, comm.Group(context.Background(), group...))
	}
	w.check(want)
}

// TestDeviceProxyLong: a group of all ranks, longer than a stream takes at once.
func TestDeviceProxyLong(t *testing.T) {
	const ranks, n = 2, 40 << 20
	w := apartWorld(t, ranks, 4*n, nil)
	want := w.fill(n, 1)
	require.NoError(t, comm.Group(context.Background(), w.call(0, n), w.call(1, n)))
	w.check(want)
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
		if err := w.comms[r].Err(); !errors.Is(err, comm.ErrTimeout) || !errors.As(err, &e) || !slices.Equal(e.Ranks, []int{1}) || !strings.Contains(err.Error(), "stream has not come") {
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

// TestDeviceProxyGraph: calls that each rank captures in a graph of its own, replayed with fresh data, between calls of all lengths that are not.
// Where ranks share a GPU, and for what is too long, that is refused, and nothing is lost.
func TestDeviceProxyGraph(t *testing.T) {
	const ranks, n, long = 2, 5000, 700000
	w := apartWorld(t, ranks, 4*long, nil)
	v := w.more(4 * long)
	ctx := context.Background()
	shared := w.on(0).Device() == w.on(1).Device()
	graphs := make([]*cuda.Graph, ranks)
	each(ranks, func(r int) {
		exchange := comm.Call{Comm: w.comms[r], Kind: comm.KindAllToAll, Src: w.dst[r], Dst: v.src[r], Count: n / 2, DType: kernels.Float32, Stream: w.streams[r]}
		send := comm.Call{Comm: w.comms[r], Kind: comm.KindSend, Src: w.src[r], Count: n, DType: kernels.Float32, Peer: 1 - r, Stream: w.streams[r]}
		recv := comm.Call{Comm: w.comms[r], Kind: comm.KindRecv, Dst: v.dst[r], Count: n, DType: kernels.Float32, Peer: 1 - r, Stream: w.streams[r]}
		g, err := w.on(r).Capture(w.streams[r], func() error {
			if err := w.comms[r].Do(ctx, w.call(r, long)); !errors.Is(err, comm.ErrUnsupported) || !strings.Contains(err.Error(), "graph") {
				return fmt.Errorf("a long call in a capture: %w", err)
			}
			if r == 0 { // the others need not capture as often
				g, err := w.on(r).Capture(v.streams[r], func() error {
					c := w.call(r, n)
					c.Stream = v.streams[r]
					if err := w.comms[r].Do(ctx, c); err != nil && !shared {
						return err
					}
					return nil
				})
				if err = errors.Join(err, g.Destroy()); err != nil {
					return err
				}
			}
			err := w.comms[r].Do(ctx, w.call(r, n))
			if err == nil {
				err = w.comms[r].Do(ctx, exchange)
			}
			if err == nil {
				err = comm.Group(ctx, send, recv)
			}
			if shared && errors.Is(err, comm.ErrUnsupported) {
				return nil
			}
			return err
		})
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
		graphs[r] = g
	})
	if t.Failed() {
		return
	}
	for round := range 30 {
		sum := w.fill(n, round)
		if !shared {
			each(ranks, func(r int) {
				if err := graphs[r].Launch(w.streams[r]); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			})
			w.check(sum)
			for r := range ranks {
				half := sum[r*n/2 : (r+1)*n/2]
				require.Equal(t, slices.Concat(half, half), w.read(r, v.src[r], n), "round %d, rank %d", round, r)
				require.Equal(t, w.read(1-r, w.src[1-r], n), w.read(r, v.dst[r], n), "round %d, rank %d", round, r)
			}
		}
		m := []int{1, n, long}[round%3]
		sum = w.fill(m, round+7)
		each(ranks, func(r int) {
			for range 2 {
				if err := w.comms[r].Do(ctx, w.call(r, m)); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
		w.check(sum)
		each(ranks, func(r int) {
			if err := errors.Join(w.comms[r].Barrier(ctx), w.comms[r].Err()); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	for _, g := range graphs {
		require.NoError(t, g.Destroy())
	}
}

// TestDeviceProxyFactors: sums of inputs that are multiplied by factors, which the host knows or which lie in GPU memory, of lengths for both ways.
func TestDeviceProxyFactors(t *testing.T) {
	const ranks, n = 2, 700000
	w := apartWorld(t, ranks, 4*n, nil)
	v := w.more(16)
	for round, m := range []int{1, 5000, n} {
		for _, at := range []bool{false, true} {
			inputs, want := make([][]float32, ranks), make([]float32, m)
			for r := range inputs {
				inputs[r] = make([]float32, m)
				for i := range inputs[r] {
					inputs[r][i] = float32((i*7+r*13+round)%61 - 30)
					want[i] += inputs[r][i] * float32(r+2)
				}
				w.up(r, inputs[r])
				factor := []float32{float32(r + 2)}
				require.NoError(t, w.on(r).CopyAny(w.streams[r], v.src[r].Ptr, unsafe.Pointer(&factor[0]), 4))
			}
			each(ranks, func(r int) {
				c := w.call(r, m)
				c.Factor = kernels.FactorOf(float64(r + 2))
				if at {
					c.Factor = kernels.FactorAt(v.src[r].Ptr)
				}
				if err := w.comms[r].Do(context.Background(), c); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			})
			w.check(want)
		}
	}
}

// TestDeviceProxyFactorOfGroup: a factor is what an earlier call of the Group makes of it.
func TestDeviceProxyFactorOfGroup(t *testing.T) {
	const ranks, n = 2, 100000
	w := apartWorld(t, ranks, 4*n, nil)
	v := w.more(16)
	for round := range 5 {
		want := w.fill(n, round)
		each(ranks, func(r int) {
			one := []float32{float32(round + 1)}
			if err := w.on(r).CopyAny(w.streams[r], v.src[r].Ptr, unsafe.Pointer(&one[0]), 4); err != nil {
				t.Error(err)
			}
			factor, scaled := w.call(r, 1), w.call(r, n)
			factor.Src, factor.Dst = v.src[r], v.dst[r]
			scaled.Factor = kernels.FactorAt(v.dst[r].Ptr)
			if err := comm.Group(context.Background(), factor, scaled); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		for i := range want {
			want[i] *= float32(ranks * (round + 1))
		}
		w.check(want)
	}
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
