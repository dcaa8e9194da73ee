package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/mem"
)

// job is n ranks of one process over mem, each with an endpoint, a driver and a port of its own.
type job struct {
	mu        sync.Mutex
	network   mem.Network
	drivers   []*Driver
	endpoints []transport.Endpoint
	ports     []*Port
}

const jobLanes = 3

// newJob makes a job whose drivers newDriver makes.
func newJob(t testing.TB, n int, newDriver func() *Driver) *job {
	return newJobOf(t, n, newDriver, transport.Options{Streams: jobLanes, MaxMessage: 1 << 16})
}

func newJobOf(t testing.TB, n int, newDriver func() *Driver, opts transport.Options) *job {
	j := &job{}
	for range n {
		d := newDriver()
		opts.Wake = d.Wake
		e, err := j.network.Open(opts)
		require.NoError(t, err)
		d.Attach(e)
		j.drivers, j.endpoints = append(j.drivers, d), append(j.endpoints, e)
	}
	for r := range n {
		j.ports = append(j.ports, j.port(r, 1))
	}
	t.Cleanup(func() {
		for r, e := range j.endpoints {
			j.ports[r].Fail(errors.New("test over"))
			j.drivers[r].Detach(e)
			require.NoError(t, e.Close())
		}
	})
	return j
}

// port makes another port of rank r, of communicator comm.
func (j *job) port(r int, comm uint64) *Port {
	conns := map[int]transport.Conn{}
	return j.drivers[r].NewPort(PortOptions{
		Ranks: len(j.drivers), Lanes: jobLanes, Streams: jobLanes,
		Dial: func(channel, peer int) (transport.Conn, error) {
			if peer == r {
				panic(fmt.Sprintf("rank %d dials itself", r)) // an error could be passed over
			}
			c, err := j.endpoints[r].Conn(transport.Key{Comm: comm, Channel: int32(channel), Self: int32(r), Peer: int32(peer)}, j.endpoints[peer].Address())
			conns[peer] = c
			return c, err
		},
		Broken: func(error) {
			for _, c := range conns {
				c.Close()
			}
		},
	})
}

func addInt64(dst unsafe.Pointer, srcs []unsafe.Pointer, n int) {
	d := unsafe.Slice((*int64)(dst), n)
	for i := range d {
		var sum int64
		for _, s := range srcs {
			sum += *(*int64)(unsafe.Add(s, 8*i))
		}
		d[i] = sum
	}
}

// call is a collective of int64 on one rank.
type testCall struct {
	Call
	tasks   []*Task
	in, out []int64
	lanes   int
}

// input is the element i of rank r's input.
func input(r, i int) int64 { return int64(r+1)*1_000_003 + int64(i) }

func newTestCall(t testing.TB, s collective.Shape, rank int, algorithm string, count, round, lanes int, inPlace bool) *testCall {
	sched, err := collective.Build(s, rank, algorithm)
	require.NoError(t, err)
	plan, err := collective.Compile(sched, collective.Options{InPlace: inPlace})
	require.NoError(t, err)
	nIn, nOut := s.Kind.Blocks(s.Ranks)
	c := &testCall{in: make([]int64, nIn*count+1), out: make([]int64, nOut*count+1), lanes: lanes}
	if inPlace {
		switch s.Kind {
		case collective.AllGather:
			c.in = c.out[rank*count:]
		case collective.ReduceScatter:
			c.out = c.in[rank*count:]
		default:
			c.in = c.out
		}
	}
	for i := range c.out {
		c.out[i] = -1
	}
	for i := range nIn * count {
		c.in[i] = input(rank, i)
	}
	layout := collective.Layout{Count: count, Elem: 8, Round: round, Pieces: plan.Pieces}
	for i := range lanes {
		c.tasks = append(c.tasks, &Task{Plan: plan, Layout: layout, First: i, Stride: lanes, Tag: 7, In: unsafe.Pointer(&c.in[0]), Out: unsafe.Pointer(&c.out[0]), Fold: addInt64})
	}
	return c
}

// want checks the result.
func (c *testCall) want(t testing.TB, s collective.Shape, rank, count int) {
	sum := func(i int) (x int64) {
		for r := range s.Ranks {
			x += input(r, i)
		}
		return x
	}
	_, blocks := s.Kind.Blocks(s.Ranks)
	if !s.HasOut(rank) || s.Kind == collective.Barrier {
		return
	}
	for i := range blocks * count {
		var want int64
		switch s.Kind {
		case collective.AllReduce, collective.Reduce:
			want = sum(i)
		case collective.AllGather:
			want = input(i/count, i%count)
		case collective.ReduceScatter:
			want = sum(rank*count + i)
		case collective.Broadcast:
			want = input(s.Root, i)
		case collective.AllToAll:
			want = input(i/count, rank*count+i%count)
		}
		if c.out[i] != want {
			require.Equal(t, want, c.out[i], "rank %d, element %d", rank, i)
		}
	}
}

// each runs f for every rank in a goroutine of its own.
func each(n int, f func(r int)) {
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { f(r) })
	}
	wg.Wait()
}

// Every algorithm of the catalog gives right values with all its rounds over all lanes.
func TestEveryAlgorithm(t *testing.T) {
	for _, n := range []int{2, 3, 4, 5, 8} {
		j := newJob(t, n, NewDriver)
		for _, d := range j.drivers {
			d.SetCrowded(true)
		}
		for _, k := range collective.Kinds() {
			for _, a := range collective.Catalog(k) {
				for _, size := range []struct{ count, round, lanes int }{{0, 1, 1}, {1, 8, 1}, {100, 16, 3}, {1001, 500, 2}, {5000, 640, 3}} {
					if k == collective.Barrier && size.count > 0 {
						continue
					}
					for _, inPlace := range []bool{false, true} {
						s := collective.Shape{Kind: k, Ranks: n}
						if k.Rooted() {
							s.Root = n - 1
						}
						each(n, func(r int) {
							c := newTestCall(t, s, r, a.Name, size.count, size.round, size.lanes, inPlace)
							holds := j.ports[r].TryStart(&c.Call, 0, c.tasks...)
							if err := c.Wait(context.Background(), holds); err != nil {
								t.Errorf("%v %s n=%d %+v: rank %d: %v", k, a.Name, n, size, r, err)
								return
							}
							c.want(t, s, r, size.count)
						})
						if t.Failed() {
							t.FailNow()
						}
					}
				}
			}
		}
	}
}

// Calls on several ports of one driver may be waited for in any order, by any number of goroutines.
func TestWaitInAnyOrder(t *testing.T) {
	const n, comms, rounds = 3, 4, 50
	j := newJob(t, n, NewDriver)
	ports := make([][]*Port, n)
	each(n, func(r int) {
		for k := range comms {
			ports[r] = append(ports[r], j.port(r, uint64(100+k)))
		}
	})
	s := collective.Shape{Kind: collective.AllReduce, Ranks: n}
	each(n, func(r int) {
		rnd := rand.New(rand.NewPCG(1, uint64(r)))
		for range rounds {
			calls := make([]*testCall, comms)
			for _, k := range rnd.Perm(comms) { // in another order on each rank
				calls[k] = newTestCall(t, s, r, "ring", 1000, 300, 2, false)
				if rnd.IntN(2) == 0 {
					ports[r][k].Start(&calls[k].Call, 0, calls[k].tasks...)
				} else {
					ports[r][k].Begin(&calls[k].Call, 0, calls[k].tasks...)
				}
			}
			order := rnd.Perm(comms)
			var wg sync.WaitGroup
			wg.Go(func() {
				for _, k := range order[:2] {
					if err := calls[k].Wait(context.Background(), false); err != nil {
						t.Error(err)
					}
				}
			})
			for _, k := range order[2:] {
				if err := calls[k].Wait(context.Background(), false); err != nil {
					t.Error(err)
				}
			}
			wg.Wait()
			for _, c := range calls {
				c.want(t, s, r, 1000)
			}
		}
	})
	for r := range n {
		for _, p := range ports[r] {
			p.Fail(errors.New("over"))
		}
	}
}

// A call that nobody waits for is done all the same.
func TestStartedCallNeedsNoWait(t *testing.T) {
	const n = 2
	j := newJob(t, n, NewDriver)
	s := collective.Shape{Kind: collective.AllReduce, Ranks: n}
	var calls [n]*testCall
	for r := range n {
		calls[r] = newTestCall(t, s, r, "ring", 1000, 300, 2, false)
		j.ports[r].Start(&calls[r].Call, 0, calls[r].tasks...)
	}
	for r := range n {
		require.Eventually(t, calls[r].Done, 20*time.Second, time.Millisecond)
		require.NoError(t, calls[r].Err())
		calls[r].want(t, s, r, 1000)
	}
}

// A context that ends fails the port; the peer's call fails when its port does.
func TestContextEndsCall(t *testing.T) {
	j := newJob(t, 2, NewDriver)
	s := collective.Shape{Kind: collective.AllReduce, Ranks: 2}
	cause := errors.New("user gave up")
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(30*time.Millisecond, func() { cancel(cause) })
	c := newTestCall(t, s, 0, "ring", 10, 10, 1, false)
	holds := j.ports[0].TryStart(&c.Call, 0, c.tasks...)
	require.ErrorIs(t, c.Wait(ctx, holds), cause)

	c = newTestCall(t, s, 0, "ring", 10, 10, 1, false)
	j.ports[0].Start(&c.Call, 0, c.tasks...)
	require.ErrorIs(t, c.Wait(context.Background(), false), cause, "the port is of no more use")
	peer := newTestCall(t, s, 1, "ring", 10, 10, 1, false)
	holds = j.ports[1].TryStart(&peer.Call, 0, peer.tasks...)
	require.ErrorIs(t, peer.Wait(context.Background(), holds), transport.ErrGone)
}

// Fail from another goroutine ends a call that spins or sleeps.
func TestFailEndsWaiting(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, 50 * time.Millisecond} {
		j := newJob(t, 2, NewDriver)
		c := newTestCall(t, collective.Shape{Kind: collective.AllReduce, Ranks: 2}, 0, "oneshot", 10, 10, 1, false)
		boom := fmt.Errorf("boom after %v", after)
		time.AfterFunc(after, func() { j.ports[0].Fail(boom) })
		holds := j.ports[0].TryStart(&c.Call, 0, c.tasks...)
		require.ErrorIs(t, c.Wait(context.Background(), holds), boom)
	}
}

// Stalled learns which peers a call waits for, and ends it; in virtual time, so that it costs none.
func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 3, NewSimulatedDriver)
		var peers []int
		j.ports[0].opt.Stalled = func(c *Call, elapsed time.Duration, p []int) error {
			if elapsed < 10*time.Minute {
				return nil
			}
			peers = slices.Clone(p)
			return context.DeadlineExceeded
		}
		s := collective.Shape{Kind: collective.AllReduce, Ranks: 3}
		began := time.Now()
		each(2, func(r int) { // rank 2 does not call
			c := newTestCall(t, s, r, "oneshot", 10, 10, 1, false)
			holds := j.ports[r].TryStart(&c.Call, 0, c.tasks...)
			ctx, cancel := context.WithTimeout(context.Background(), 11*time.Minute)
			defer cancel()
			require.ErrorIs(t, c.Wait(ctx, holds), context.DeadlineExceeded)
		})
		require.Equal(t, []int{2}, peers)
		require.GreaterOrEqual(t, time.Since(began), 10*time.Minute)
	})
}

// A port that fails between the tasks of a call, which are given to its lanes one by one, lets none of them go on when the call is over.
func TestFailBetweenTasks(t *testing.T) {
	j := newJob(t, 2, NewDriver)
	c := newTestCall(t, collective.Shape{Kind: collective.AllReduce, Ranks: 2}, 0, "ring", 1000, 300, 2, false)
	d, p := j.drivers[0], j.ports[0]
	require.True(t, p.Hold())
	c.Call.reset(p, 2)
	c.tasks[0].call, c.tasks[1].call = &c.Call, &c.Call
	d.enqueue(p.lanes[0], c.tasks[0])
	over := errors.New("over")
	p.failed.CompareAndSwap(nil, &failure{over}) // Fail's first step, by another goroutine
	d.enqueue(p.lanes[1], c.tasks[1])
	require.True(t, c.Done())
	require.ErrorIs(t, c.Err(), over)
	require.Empty(t, p.lanes[0].queue)
	d.pass()
	p.Drop()
}

// A port that fails while it has nothing to do breaks its conns as any other.
func TestFailOfAnIdlePort(t *testing.T) {
	j := newJob(t, 2, NewDriver)
	broken := make(chan error, 2)
	p := j.ports[0]
	p.opt.Broken = func(err error) { broken <- err }
	over := errors.New("over")
	p.Fail(over)
	require.ErrorIs(t, <-broken, over)
	p.Fail(errors.New("again"))
	j.drivers[0].Exclusive(func() {})
	require.Empty(t, broken)
}
