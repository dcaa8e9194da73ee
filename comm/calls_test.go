package comm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport/mem"
)

var background = context.Background()

// simulated makes n ranks that share nothing with the real world: memory for a network, virtual time. It must be called
// in a synctest bubble.
func simulated(t *testing.T, n int, edit func(rank int, c *comm.Config)) []*comm.Comm {
	network := bootstraptest.New()
	root, err := bootstrap.ListenRoot(background, bootstrap.RootConfig{Address: "192.0.2.1:1", Network: network.Host("192.0.2.1")})
	require.NoError(t, err)
	var memory mem.Network
	comms, errs := make([]*comm.Comm, n), make([]error, n)
	each(n, func(r int) {
		cfg := comm.Config{Rank: r, Size: n, ID: root.ID(), Transport: "mem", Memory: &memory, Network: network.Host("192.0.2.1"), Driver: engine.NewSimulatedDriver()}
		if edit != nil {
			edit(r, &cfg)
		}
		comms[r], errs[r] = comm.New(background, cfg)
	})
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, root.Close())
	t.Cleanup(func() { each(n, func(r int) { comms[r].Close() }) })
	return comms
}

func fill(n, rank int) []int64 {
	s := make([]int64, n)
	for i := range s {
		s[i] = int64(rank*1_000_000 + i)
	}
	return s
}

// Every kind gives right values through the typed functions, in order, over every transport.
func TestTypedFunctions(t *testing.T) {
	for name, edit := range transports() {
		t.Run(name, func(t *testing.T) {
			const n, count = 3, 1000
			comms := world(t, n, edit)
			each(n, func(r int) {
				c := comms[r]
				check := func(err error, got []int64, want func(i int) int64) {
					if err != nil {
						t.Errorf("rank %d: %v", r, err)
						return
					}
					for i := range got {
						if got[i] != want(i) {
							t.Errorf("rank %d: element %d is %d, want %d", r, i, got[i], want(i))
							return
						}
					}
				}
				sum := func(i int) int64 { return int64(n*(n-1)/2*1_000_000 + n*i) }
				dst := make([]int64, count)
				check(comm.AllReduce(background, c, dst, fill(count, r), kernels.Sum), dst, sum)
				check(comm.AllReduce(background, c, dst, fill(count, r), kernels.Avg), dst, func(i int) int64 { return sum(i) / n })
				all := make([]int64, n*count)
				check(comm.AllGather(background, c, all, fill(count, r)), all, func(i int) int64 { return int64(i/count*1_000_000 + i%count) })
				check(comm.ReduceScatter(background, c, dst, fill(n*count, r), kernels.Sum), dst, func(i int) int64 { return sum(r*count + i) })
				src := fill(count, r)
				check(comm.Broadcast(background, c, dst, src, 2), dst, func(i int) int64 { return int64(2_000_000 + i) })
				err := comm.Reduce(background, c, dst, src, kernels.Max, 1)
				if r == 1 {
					check(err, dst, func(i int) int64 { return int64(2_000_000 + i) })
				}
				check(comm.AllToAll(background, c, all, fill(n*count, r)), all, func(i int) int64 { return int64(i/count*1_000_000 + r*count + i%count) })
				check(c.Barrier(background), nil, nil)
				// A ring of sends and receives, in one group.
				next, prev := (r+1)%n, (r+n-1)%n
				check(comm.Group(background,
					comm.Call{Comm: c, Kind: comm.KindSend, Src: kernels.MemOf(src), Count: count, DType: kernels.Int64, Peer: next},
					comm.Call{Comm: c, Kind: comm.KindRecv, Dst: kernels.MemOf(dst), Count: count, DType: kernels.Int64, Peer: prev},
				), dst, func(i int) int64 { return int64(prev*1_000_000 + i) })
			})
		})
	}
}

// A rank may send to itself, in a group with others, and alone.
func TestSendToSelf(t *testing.T) {
	for _, n := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			var log logLines
			comms := simulated(t, n, func(_ int, c *comm.Config) {
				c.CallTimeout, c.Logger = time.Minute, slog.New(slog.NewTextHandler(&log, nil))
			})
			each(n, func(r int) {
				c := comms[r]
				src, dst := fill(n*10, r), make([]int64, n*10)
				var calls []comm.Call
				for p := range n {
					calls = append(calls,
						comm.Call{Comm: c, Kind: comm.KindRecv, Dst: kernels.MemOf(dst[10*p : 10*p+10]), Count: 10, DType: kernels.Int64, Peer: p},
						comm.Call{Comm: c, Kind: comm.KindSend, Src: kernels.MemOf(src[10*p : 10*p+10]), Count: 10, DType: kernels.Int64, Peer: p})
				}
				if err := comm.Group(background, calls...); err != nil {
					t.Error(err)
					return
				}
				for i := range dst {
					if want := int64(i/10*1_000_000 + 10*r + i%10); dst[i] != want {
						t.Errorf("rank %d: element %d is %d, want %d", r, i, dst[i], want)
					}
				}
			})
			err := comm.Send(background, comms[0], make([]int64, 3), 0) // nobody receives
			require.ErrorIs(t, err, comm.ErrTimeout)
			require.ErrorContains(t, err, ", waiting for ranks [0]: ")
			require.ErrorContains(t, err, "not matched in 1m0s: begin the receive and the send by Start, or in one Group")
			require.Equal(t, 1, strings.Count(log.String(), `msg="a call waits"`), log.String())
			require.Contains(t, log.String(), "for=10s ranks=[0]")
		})
	}
}

// A message to oneself that is not what is received ends both calls as any other mismatch does.
func TestMismatchWithSelf(t *testing.T) {
	for _, n := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			c := simulated(t, n, func(int, *comm.Config) {})[0]
			first := c.Start(comm.Call{Kind: comm.KindSend, Count: 1, DType: kernels.Int64, Src: kernels.MemOf([]int64{1})})
			second := c.Do(background, comm.Call{Kind: comm.KindRecv, Count: 2, DType: kernels.Int64, Dst: kernels.MemOf([]int64{1, 2})})
			for _, err := range []error{first.Wait(background), second} {
				require.ErrorIs(t, err, comm.ErrAborted)
				require.ErrorIs(t, err, comm.ErrMismatch)
				var e *comm.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, []int{0}, e.Ranks)
				require.ErrorContains(t, err, ", because of ranks [0]: ")
			}
		})
	}
}

// After a mismatch all ranks' records say what the ranks found together, not only what each saw first: a message with another tag, or none.
func TestRecordOfAMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		comms := simulated(t, 3, func(int, *comm.Config) {})
		each(3, func(r int) {
			x := make([]int64, 8)
			call := comm.Call{Kind: comm.KindAllReduce, Count: 8, DType: kernels.Int64, Src: kernels.MemOf(x), Dst: kernels.MemOf(x)}
			if r == 1 {
				call = comm.Call{Kind: comm.KindBroadcast, Count: 8, DType: kernels.Int64, Src: kernels.MemOf(x), Dst: kernels.MemOf(x)}
			}
			if err := comms[r].Do(background, call); !errors.Is(err, comm.ErrMismatch) {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		for r, c := range comms {
			rec := c.Record()
			require.Equal(t, []int{1}, rec.Culprit, "rank %d", r)
			require.Contains(t, rec.Failure, "rank 1 called broadcast of 8 int64", "rank %d", r)
		}
	})
}

// A receive that nobody sends to is called one wherever it is spoken of, with the peer that it is from.
func TestReceiveIsCalledOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const call = "recv of 5 int64 (peer 2)"
		var log logLines
		c := simulated(t, 3, func(_ int, c *comm.Config) {
			c.CallTimeout, c.Logger = time.Minute, slog.New(slog.NewTextHandler(&log, nil))
		})[0]
		err := comm.Recv(background, c, make([]int64, 5), 2)
		require.ErrorIs(t, err, comm.ErrTimeout)
		require.ErrorContains(t, err, call+" (sequence 1) of rank 0 waited 1m0s for ranks [2]: rank 2 has not called send number 1 with us")
		require.Contains(t, log.String(), `call="`+call+`"`)
		rec := c.Record()
		require.Equal(t, []comm.RecordedCall{{Seq: 1, Call: call, Peer: 2}}, rec.Calls)
		require.Len(t, rec.Lanes, 1)
		require.Equal(t, call, rec.Lanes[0].Call)
	})
}

// What is asked of a communicator after its end is refused and leaves nothing in the driver, which may be the process's.
func TestCallsAfterCloseLeaveNothing(t *testing.T) {
	d := engine.NewDriver()
	comms := world(t, 3, func(_ int, c *comm.Config) { c.Transport, c.Driver = "shm", d })
	each(3, func(r int) { comms[r].Close() })
	require.Empty(t, d.Owners())
	x := []int64{1}
	for peer := range 3 {
		send := comm.Call{Comm: comms[0], Kind: comm.KindSend, Peer: peer, Count: 1, DType: kernels.Int64, Src: kernels.MemOf(x)}
		require.ErrorIs(t, comms[0].Do(background, send), comm.ErrAborted)
		recv := comm.Call{Comm: comms[0], Kind: comm.KindRecv, Peer: peer, Count: 1, DType: kernels.Int64, Dst: kernels.MemOf(x)}
		require.ErrorIs(t, comm.Group(background, send, recv), comm.ErrAborted)
	}
	require.Empty(t, d.Owners())
}

// Numbers on the wire wrap without anybody noticing.
func TestCountersNearTheirWrap(t *testing.T) {
	for name, edit := range transports() {
		for _, first := range []uint64{1<<32 - 3, 1<<64 - 3} {
			t.Run(fmt.Sprintf("%s-%d", name, first), func(t *testing.T) {
				comms := world(t, 3, func(r int, c *comm.Config) { edit(r, c); c.FirstSeq = first })
				each(3, func(r int) {
					for i := range 10 {
						buf := fill(1+i*3000, r)
						if err := comm.AllReduce(background, comms[r], buf, buf, kernels.Sum); err != nil {
							t.Error(err)
							return
						}
						if last := len(buf) - 1; buf[last] != int64(3_000_000+3*last) {
							t.Errorf("rank %d, call %d: %d", r, i, buf[last])
						}
					}
				})
			})
		}
	}
}

// Split gives communicators that work, ordered by key; they may outlive their parent, and one rank alone works, too.
func TestSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5
		comms := simulated(t, n, nil)
		ids := make([]uint64, n)
		each(n, func(r int) {
			color := r % 2 // 0 2 4 and 1 3
			if r == 4 {
				color = comm.NoColor
			}
			sub, err := comms[r].Split(background, color, -r)
			if r == 4 {
				if sub != nil || err != nil {
					t.Errorf("no colour: %v %v", sub, err)
				}
			} else {
				ids[r] = sub.ID()
				if err := comms[r].Close(); err != nil {
					t.Error(err)
				}
				want := 1 - r/2 // by descending rank
				if sub.Size() != 2 || sub.Rank() != want {
					t.Errorf("rank %d is %d of %d, want %d of 2", r, sub.Rank(), sub.Size(), want)
				}
				dst := make([]int64, 3)
				if err := comm.AllReduce(background, sub, dst, fill(3, r), kernels.Sum); err != nil {
					t.Error(err)
				}
				if w := int64((r%2 + r%2 + 2) * 1_000_000); dst[0] != w {
					t.Errorf("sum %d, want %d", dst[0], w)
				}
				sub.Close()
			}
		})
		require.Equal(t, ids[0], ids[2])
		require.Equal(t, ids[1], ids[3])
		require.NotEqual(t, ids[0], ids[1])
	})
}

// A colour that makes no sense on one rank is an error on all, and the communicator goes on.
func TestSplitBadColor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		comms := simulated(t, 3, nil)
		each(3, func(r int) {
			color := 0
			if r == 1 {
				color = -2
			}
			_, err := comms[r].Split(background, color, 0)
			if !errors.Is(err, comm.ErrArgument) || !strings.Contains(err.Error(), "colour -2 of rank 1") {
				t.Errorf("rank %d: %v", r, err)
			}
			if err := comms[r].Barrier(background); err != nil {
				t.Error(err)
			}
		})
	})
}

// A rank that never calls is named by all others when the call times out, and learns of it at its next call.
func TestLateRankIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, late = 4, 2
		comms := simulated(t, n, func(_ int, c *comm.Config) { c.CallTimeout = 30 * time.Second; c.Algorithm = "oneshot" })
		each(n, func(r int) {
			buf := make([]int64, 10)
			if err := comm.AllReduce(background, comms[r], buf, buf, kernels.Sum); err != nil {
				t.Error(err)
			}
			if r == late {
				time.Sleep(time.Minute)
			}
			err := comm.AllReduce(background, comms[r], buf, buf, kernels.Sum)
			var e *comm.Error
			if !errors.As(err, &e) || !errors.Is(err, comm.ErrAborted) {
				t.Errorf("rank %d: %v", r, err)
				return
			}
			if e.Seq != 2 {
				t.Errorf("rank %d: sequence %d, want 2", r, e.Seq)
			}
			if r != late && !strings.Contains(err.Error(), "ranks [2]") {
				t.Errorf("rank %d blames another: %v", r, err)
			}
		})
	})
}

// Different calls are a mismatch, on every algorithm that all-reduce has; nobody gets a result.
func TestMismatch(t *testing.T) {
	type wrong struct {
		name string
		call func(c *comm.Comm) error
	}
	for _, w := range []wrong{
		{"count", func(c *comm.Comm) error {
			return comm.AllReduce(background, c, make([]int64, 99), make([]int64, 99), kernels.Sum)
		}},
		{"redop", func(c *comm.Comm) error {
			return comm.AllReduce(background, c, make([]int64, 100), make([]int64, 100), kernels.Max)
		}},
		{"type", func(c *comm.Comm) error {
			return comm.AllReduce(background, c, make([]uint64, 100), make([]uint64, 100), kernels.Sum)
		}},
		{"kind", func(c *comm.Comm) error { return c.Barrier(background) }},
	} {
		for _, algorithm := range []string{"ring", "oneshot"} {
			synctest.Test(t, func(t *testing.T) {
				comms := simulated(t, 3, func(_ int, c *comm.Config) { c.Algorithm = algorithm })
				found := make([]bool, 3)
				each(3, func(r int) {
					call := func(c *comm.Comm) error {
						return comm.AllReduce(background, c, make([]int64, 100), make([]int64, 100), kernels.Sum)
					}
					if r == 2 {
						call = w.call
					}
					err := call(comms[r])
					if err == nil {
						err = comms[r].Barrier(background) // its part was over: the next call says it
					}
					if !errors.Is(err, comm.ErrAborted) {
						t.Errorf("%s, %s: rank %d: %v", w.name, algorithm, r, err)
					}
					found[r] = errors.Is(err, comm.ErrMismatch)
					var e *comm.Error
					if errors.As(err, &e) && (len(e.Ranks) != 1 || e.Ranks[0] != 2 || !strings.Contains(err.Error(), "rank 2 called ")) {
						t.Errorf("%s, %s: rank %d blames %v: %v", w.name, algorithm, r, e.Ranks, err)
					}
				})
				require.Equal(t, []bool{true, true, true}, found, "%s, %s: who says mismatch", w.name, algorithm)
			})
		}
	}
}

// Ranks that name different roots are told so: at once, or at one of their next calls where their part is over, for nobody sends to who only gives.
func TestMismatchOfRoots(t *testing.T) {
	for _, kind := range []comm.Kind{comm.KindReduce, comm.KindBroadcast} {
		for _, a := range collective.Catalog(collective.Kind(kind)) {
			for n := 2; n < 5; n++ {
				synctest.Test(t, func(t *testing.T) {
					comms := simulated(t, n, func(_ int, c *comm.Config) { c.Algorithm = a.Name })
					each(n, func(r int) {
						m := kernels.MemOf(make([]int64, 100))
						err := comms[r].Do(background, comm.Call{Kind: kind, Src: m, Dst: m, Count: 100, DType: kernels.Int64, Root: min(r, 1)})
						for k := 0; err == nil && k < 2; k++ { // the others may be through with that one, too, when they find out
							err = comms[r].Barrier(background)
						}
						if !errors.Is(err, comm.ErrMismatch) {
							t.Errorf("%v by %s, %d ranks: rank %d: %v, want a mismatch", kind, a.Name, n, r, err)
						}
					})
				})
			}
		}
	}
}

// The reduction that a call names counts where numbers are combined and nowhere else: ranks may differ in it.
func TestRedOpOfKindsThatCombineNothing(t *testing.T) {
	for _, kind := range []comm.Kind{comm.KindAllGather, comm.KindBroadcast, comm.KindAllToAll, comm.KindBarrier} {
		synctest.Test(t, func(t *testing.T) {
			comms := simulated(t, 3, nil)
			each(3, func(r int) {
				call := comm.Call{Kind: kind, DType: kernels.Int64, Src: kernels.MemOf(make([]int64, 24)), Dst: kernels.MemOf(make([]int64, 24)), Count: 8, RedOp: kernels.RedOp(r)}
				if kind == comm.KindBarrier {
					call.Count = 0
				}
				for range 3 { // by the way of a first call, and of calls like one before
					if err := comms[r].Do(background, call); err != nil {
						t.Errorf("%v: rank %d: %v", kind, r, err)
					}
				}
			})
		})
	}
}

// Abort ends everybody's calls with the reason.
func TestAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		comms := simulated(t, 3, nil)
		each(3, func(r int) {
			if r == 1 {
				time.Sleep(time.Second)
				comms[r].Abort(errors.New("disk on fire"))
				comms[r].Abort(errors.New("again"))
				return
			}
			buf := make([]int64, 10)
			err := comm.AllReduce(background, comms[r], buf, buf, kernels.Sum)
			if !errors.Is(err, comm.ErrAborted) || !strings.Contains(err.Error(), "disk on fire") {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	})
}

// Bad arguments are told apart by ErrArgument, name the value, and change nothing.
func TestBadArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		comms := simulated(t, 2, nil)
		buf := make([]int64, 100)
		m := func(from, n int) kernels.Mem { return kernels.MemOf(buf[from : from+n]) }
		i64 := kernels.Int64
		for _, bad := range []struct {
			call comm.Call
			says string
		}{
			{comm.Call{Kind: 77}, "kind(77)"},
			{comm.Call{Kind: comm.KindAllReduce, Count: -1, DType: i64}, "-1"},
			{comm.Call{Kind: comm.KindAllReduce, DType: 99}, "99"},
			{comm.Call{Kind: comm.KindAllReduce, RedOp: 99}, "99"},
			{comm.Call{Kind: comm.KindBroadcast, Root: 2, Count: 1}, "root 2"},
			{comm.Call{Kind: comm.KindAllReduce, Root: 1, Count: 1}, "no root"},
			{comm.Call{Kind: comm.KindSend, Peer: 2, Count: 1}, "peer 2"},
			{comm.Call{Kind: comm.KindBarrier, Count: 1}, "count 1"},
			{comm.Call{Kind: comm.KindAllReduce, Count: 11, DType: i64, Src: m(0, 10), Dst: m(20, 20)}, "80 bytes"},
			{comm.Call{Kind: comm.KindAllReduce, Count: 10, DType: i64, Src: m(0, 10)}, "Dst has 0 bytes"},
			{comm.Call{Kind: comm.KindAllReduce, Count: 10, DType: i64, Src: m(0, 10), Dst: m(9, 10)}, "overlap"},
			{comm.Call{Kind: comm.KindAllGather, Count: 10, DType: i64, Src: m(1, 10), Dst: m(0, 20)}, "overlap"},
			{comm.Call{Kind: comm.KindReduceScatter, Count: 10, DType: i64, Src: m(0, 20), Dst: m(5, 10)}, "overlap"},
			{comm.Call{Kind: comm.KindAllGather, Count: 1 << 60, DType: i64, Src: m(0, 1), Dst: m(1, 2)}, "2^62"},
			{comm.Call{Kind: comm.KindAllReduce, Count: 10, DType: i64, Src: m(0, 10), Dst: m(20, 10), Algorithm: "magic"}, "magic"},
			{comm.Call{Comm: comms[1], Kind: comm.KindBarrier}, "names communicator"},
		} {
			err := comms[0].Do(background, bad.call)
			require.ErrorIs(t, err, comm.ErrArgument, "%v", &bad.call)
			require.ErrorContains(t, err, bad.says)
		}
		gpu := kernels.Mem{Ptr: unsafe.Pointer(&buf[0]), Bytes: 80, Device: kernels.Device{Kind: kernels.CUDA}}
		err := comms[0].Do(background, comm.Call{Kind: comm.KindAllReduce, Count: 10, DType: i64, Src: gpu, Dst: gpu})
		require.ErrorIs(t, err, comm.ErrUnsupported)
		require.ErrorIs(t, comm.Group(background, comm.Call{Kind: comm.KindBarrier}), comm.ErrArgument)
		canceled, cancel := context.WithCancel(background)
		cancel()
		require.ErrorIs(t, comms[0].Barrier(canceled), context.Canceled)
		each(2, func(r int) {
			if err := comms[r].Barrier(background); err != nil {
				t.Error(err)
			}
		})
	})
}

// Configurations that make no sense are errors that name the field.
func TestBadConfig(t *testing.T) {
	for _, bad := range []struct {
		cfg  comm.Config
		says string
	}{
		{comm.Config{Size: 2, Rank: 2}, "Rank is 2"},
		{comm.Config{Size: 1, Transport: "pigeon"}, "pigeon"},
		{comm.Config{Size: 1, Algorithm: "magic"}, "magic"},
		{comm.Config{Size: 1, Lanes: 99}, "Lanes is 99"},
		{comm.Config{Size: 1, MaxMessage: 3}, "MaxMessage is 3"},
		{comm.Config{Size: 1, Interface: "^"}, "Interface"},
		{comm.Config{Size: 1, CallTimeout: -1}, "CallTimeout"},
		{comm.Config{Size: 2, Transport: "mem"}, "Memory"},
	} {
		_, err := comm.New(background, bad.cfg)
		require.ErrorContains(t, err, bad.says)
	}
}

// After Close everything says so, twice is once, and no goroutine is left.
func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	comms := world(t, 3, func(_ int, c *comm.Config) { c.Transport = "shm" })
	each(3, func(r int) {
		if err := comms[r].Barrier(background); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := comms[r].Close(); err != nil {
				t.Error(err)
			}
		}
		if err := comms[r].Barrier(background); !errors.Is(err, comm.ErrClosed) {
			t.Error(err)
		}
	})
	if !eventually(func() bool { return runtime.NumGoroutine() <= before }) {
		buf := make([]byte, 1<<20)
		t.Fatalf("%d goroutines before, now:\n%s", before, buf[:runtime.Stack(buf, true)])
	}
}

// eventually waits for ok, without goroutines of its own.
func eventually(ok func() bool) bool {
	for range 1000 {
		if ok() {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// Many communicators, calls started in another order on every rank, waited for in yet another.
func TestManyCommunicators(t *testing.T) {
	const n, k, rounds = 3, 4, 20
	for name, edit := range transports() {
		t.Run(name, func(t *testing.T) {
			worlds := make([][]*comm.Comm, k)
			for i := range worlds {
				worlds[i] = world(t, n, edit)
			}
			each(n, func(r int) {
				rnd := rand.New(rand.NewPCG(2, uint64(r)))
				for round := range rounds {
					bufs, pending := make([][]int64, k), make([]*comm.Pending, k)
					for _, i := range rnd.Perm(k) {
						bufs[i] = fill(1+round*700, r)
						pending[i] = worlds[i][r].Start(comm.Call{Kind: comm.KindAllReduce, DType: kernels.Int64, Count: len(bufs[i]), Src: kernels.MemOf(bufs[i]), Dst: kernels.MemOf(bufs[i])})
					}
					for _, i := range rnd.Perm(k) {
						if err := pending[i].Wait(background); err != nil {
							t.Errorf("rank %d: %v", r, err)
							return
						}
						last := len(bufs[i]) - 1
						if want := int64(n*(n-1)/2*1_000_000 + n*last); bufs[i][last] != want {
							t.Errorf("rank %d: %d, want %d", r, bufs[i][last], want)
						}
					}
				}
			})
		})
	}
}

// One rank alone copies; it needs no network.
func TestUC88_OneRank(t *testing.T) {
	c, err := comm.New(background, comm.Config{Size: 1})
	require.NoError(t, err)
	defer c.Close()
	src, dst := []float32{1, -2, 3.5}, make([]float32, 3)
	require.NoError(t, comm.AllReduce(background, c, dst, src, kernels.Avg))
	require.Equal(t, src, dst)
	require.NoError(t, comm.AllToAll(background, c, dst, src))
	require.NoError(t, comm.Broadcast(background, c, dst, src, 0))
	require.NoError(t, c.Barrier(background))
	sub, err := c.Split(background, 3, 0)
	require.NoError(t, err)
	require.NoError(t, comm.AllReduce(background, sub, dst, dst, kernels.Sum))
	require.Equal(t, src, dst)
	require.NoError(t, sub.Close())
}
