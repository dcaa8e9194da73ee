package comm_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// apartWorld is a deviceWorld of ranks that take each other to be on other hosts, so that what they tell each other goes by way of host memory. They
// have GPUs of their own where there are as many; ranks that share one wait in other places. With GCCL_TEST_LINKED they are on one host, and
// their GPUs linked, as if each rank had a process to itself.
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
	comm.PartsAnyway(t, linked())
	w.comms = world(t, ranks, func(r int, c *comm.Config) {
		if c.Device = w.devices[r].Device(); !linked() {
			c.HostID = fmt.Sprintf("host %d", r)
		}
		if edit != nil {
			edit(r, c)
		}
	})
	return w.more(room)
}

// share reports whether ranks wait on the host, for they have one GPU and no kernels that wait.
func (w *deviceWorld) share() bool { return w.on(0).Device() == w.on(1).Device() && !linked() }

func linked() bool { return os.Getenv("GCCL_TEST_LINKED") != "" }

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
			w.passed(n, round, away)
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
