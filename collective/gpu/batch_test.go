package gpu

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/cudatest"
	"github.com/gccl-project/gccl/kernels/kernelstest"
)

// planned is what a batch of collectives, and messages, becomes without a GPU: programs by round.
func planned(t *testing.T, ranks int, calls []Call, ts ...Transfer) (c *Communicator, programs []int) {
	d := &cuda.Device{}
	c = &Communicator{ranks: ranks, moves: map[shape]*Moves{}, devices: slices.Repeat([]*cuda.Device{d}, ranks), streams: make([]cuda.Stream, ranks), held: 1}
	for i, call := range calls {
		all := callsAt(call, ranks)
		for r := range all { // apart from those of others, unless they were given
			all[r].Src, all[r].Dst = unsafe.Add(all[r].Src, i<<24), unsafe.Add(all[r].Dst, i<<24)
			if call.Src != nil {
				all[r].Src, all[r].Dst = call.Src, call.Dst
			}
		}
		j, err := c.prepare(all)
		require.NoError(t, err)
		c.enqueue(j, c.newMeeting())
	}
	for _, x := range ts {
		c.enqueue(job{transfer: x}, c.newMeeting())
	}
	for _, r := range c.rounds(c.batch) {
		c.build.reset()
		require.NoError(t, c.write(d, c.batch, r))
		programs = append(programs, len(c.build.programs()))
	}
	return c, programs
}

// Calls that are queued together are one program for each kernel, and so one launch.
func TestBatchIsFused(t *testing.T) {
	sum := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000}
	_, programs := planned(t, 8, slices.Repeat([]Call{sum}, 10))
	require.Equal(t, []int{1, 0}, programs, "ten sums")
	gather := Call{Kind: collective.AllGather, DType: kernels.Bfloat16, Count: 100}
	at := unsafe.Pointer(new([1 << 16]byte))
	message := Transfer{From: 1, To: 2, Src: at, Dst: unsafe.Add(at, 4096), Bytes: 100}
	_, programs = planned(t, 4, []Call{sum, gather, sum, {Kind: collective.Broadcast, DType: kernels.Int8, Count: 10}}, message, message)
	require.Equal(t, []int{2, 1, 0}, programs, "copies and sums; and a message to where another one goes, after it")
	average := Call{Kind: collective.AllReduce, DType: kernels.Int32, RedOp: kernels.Avg, Count: 1000}
	_, programs = planned(t, 8, []Call{average, average, sum})
	require.Equal(t, []int{2, 1}, programs, "integer averages are divided afterwards, together")
}

// What touches memory that another one writes comes after it, whether it reads or writes.
func TestBatchKeepsTheOrder(t *testing.T) {
	mem := new([1 << 20]byte)
	at := func(i int) unsafe.Pointer { return unsafe.Pointer(&mem[i]) }
	call := func(src, dst int) Call {
		return Call{Kind: collective.AllReduce, DType: kernels.Uint8, Count: 1000, Src: at(src), Dst: at(dst)}
	}
	scaled := func(src, dst, factor int) Call {
		return Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 250, Src: at(src), Dst: at(dst), Factor: kernels.FactorAt(at(factor))}
	}
	for _, row := range []struct {
		name   string
		calls  []Call
		stages []int
	}{
		{"apart", []Call{call(0, 1000), call(2000, 3000)}, []int{0, 0}},
		{"read by both", []Call{call(0, 1000), call(0, 3000)}, []int{0, 0}},
		{"read after write", []Call{call(0, 1000), call(1999, 3000)}, []int{0, 1}},
		{"write after read", []Call{call(0, 1000), call(5000, 999)}, []int{0, 1}},
		{"written twice", []Call{call(0, 10000), call(5000, 10999)}, []int{0, 1}},
		{"in place again", []Call{call(0, 0), call(0, 0), call(5000, 0), call(7000, 8000)}, []int{0, 1, 2, 0}},
		{"a factor that is written", []Call{call(0, 1000), scaled(5000, 6000, 1996)}, []int{0, 1}},
		{"a factor that is read before", []Call{scaled(5000, 6000, 1996), call(0, 1000)}, []int{0, 1}},
		{"a factor of both", []Call{scaled(0, 1000, 9000), scaled(5000, 6000, 9000)}, []int{0, 0}},
		{"a chain", []Call{call(0, 1000), call(1000, 2000), call(2000, 3000)}, []int{0, 1, 2}},
	} {
		j := make([]int, 0, 4)
		c, _ := planned(t, 1, row.calls)
		for i := range c.batch {
			j = append(j, c.batch[i].stage)
		}
		require.Equal(t, row.stages, j, row.name)
	}
}

// Different collectives and messages in one Hold, some of which read what others write, on one GPU and several handles.
func TestBatchOnGPU(t *testing.T) {
	const ranks, each = 8, 64 << 10
	for _, row := range []struct {
		handles int
		linked  bool
	}{{1, false}, {3, true}, {3, false}} {
		g := newRigOn(t, several(t, row.handles, ranks), 1<<20)
		c, err := New(g.devices)
		require.NoError(t, err)
		if !row.linked {
			require.NoError(t, c.links.close())
			c.links = nil
		}
		for round := range 20 {
			var samples []*sample
			var calls [][]Call
			var tickets []Ticket
			for i, call := range []Call{
				{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000},
				{Kind: collective.AllGather, DType: kernels.Bfloat16, Count: 333},
				{Kind: collective.ReduceScatter, DType: kernels.Int32, RedOp: kernels.Avg, Count: 100},
				{Kind: collective.AllReduce, DType: kernels.Float32, Count: 777, RedOp: kernels.Avg},
				{Kind: collective.Broadcast, DType: kernels.Uint8, Count: 999, Root: 3},
				{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1},
			} {
				s := sampleOf(call, ranks, round*10+i)
				base := *g
				base.src, base.dst = shifted(g.src, i*each), shifted(g.dst, i*each)
				samples, calls = append(samples, s), append(calls, s.lay(&base))
				s.bySites = foldsBySites(c, calls[i])
			}
			// A second one on what the first one makes.
			again := make([]Call, ranks)
			for r := range again {
				again[r] = calls[0][r]
				again[r].Src, again[r].Dst = calls[0][r].Dst, unsafe.Add(g.dst[r].Ptr, 8*each)
			}
			calls = append(calls, again)
			g.waitAll()
			c.Hold()
			for _, list := range calls {
				for r := range list {
					ticket, err := c.Start(r, list[r])
					require.NoError(t, err)
					tickets = append(tickets, ticket)
				}
			}
			for r := range ranks { // a ring of messages
				for _, send := range []bool{true, false} {
					m := Message{Send: send, Rank: r, Peer: (r + 1) % ranks, Ptr: unsafe.Add(g.src[r].Ptr, 9*each), DType: kernels.Uint8, Count: 5000, Stream: g.streams[r]}
					if !send {
						m.Peer, m.Ptr = (r+ranks-1)%ranks, unsafe.Add(g.dst[r].Ptr, 9*each)
					}
					ticket, err := c.Post(m)
					require.NoError(t, err)
					tickets = append(tickets, ticket)
				}
			}
			require.False(t, tickets[0].Queued())
			c.Release()
			for _, ticket := range tickets {
				require.NoError(t, ticket.Wait(t.Context()))
			}
			for i, s := range samples {
				s.check(g, calls[i])
			}
			second := *samples[0]
			second.inputs = slices.Repeat([][]byte{slices.Clone(g.down(0, calls[0][0].Dst, 4000))}, ranks)
			want := second.want(0)
			if second.bySites != nil {
				want = second.wantBySites(second.bySites, 0)
			}
			for r := range ranks {
				require.Equal(t, want, slices.Clone(g.down(r, again[r].Dst, 4000)), "rank %d", r)
				sent := slices.Clone(g.down(r, unsafe.Add(g.src[r].Ptr, 9*each), 5000))
				require.Equal(t, sent, g.down((r+1)%ranks, unsafe.Add(g.dst[(r+1)%ranks].Ptr, 9*each), 5000))
			}
		}
		require.NoError(t, c.Close())
	}
}

func shifted(mems []kernels.Mem, by int) []kernels.Mem {
	out := slices.Clone(mems)
	for i := range out {
		out[i].Ptr = unsafe.Add(out[i].Ptr, by)
	}
	return out
}

// TestUC76_FactorsOnGPU: each rank's input is multiplied by the rank's own factor, which the host knows or the GPU's memory.
func TestUC76_FactorsOnGPU(t *testing.T) {
	g := newRig(t, 8, 1<<20)
	variant := 0
	for _, ranks := range []int{1, 2, 3, 8} {
		one := newCommunicator(t, g.d, ranks)
		h := newRigOn(t, several(t, min(2, ranks), ranks), 1<<20)
		two, err := New(h.devices)
		require.NoError(t, err)
		at, err := h.d.Alloc(1 << 12) // all devices reach it
		require.NoError(t, err)
		for _, kind := range []collective.Kind{collective.AllReduce, collective.ReduceScatter, collective.Reduce} {
			for _, dtype := range kernels.DTypes() {
				if !dtype.IsFloat() {
					continue
				}
				for _, count := range []int{1, 7, 1000, 4099} {
					for _, fetch := range []bool{false, true} {
						variant++
						s := sampleOf(Call{Kind: kind, DType: dtype, Count: count}, ranks, variant)
						s.factors = make([]float64, ranks)
						var elements []byte
						for r := range ranks {
							s.factors[r] = []float64{1.0 / 3, -0.125, 1.75, 0, 3, 1e-3, -1, 0.7}[(r+variant)%8]
							bits := kernelstest.Encode(dtype, s.factors[r])
							elements = append(elements, (*[8]byte)(unsafe.Pointer(&bits))[:dtype.Size()]...)
						}
						if fetch {
							s.fetched = at
							g.up(0, at.Ptr, elements)
						}
						c, on := one, g
						if variant/2%2 == 1 {
							c, on = two, h
						}
						calls := s.lay(on)
						require.NoError(t, c.Group(calls), "%s", s)
						s.check(on, calls)
					}
				}
			}
		}
		require.NoError(t, two.Close())
		require.NoError(t, h.d.Free(at))
	}
	c := newCommunicator(t, g.d, 2)
	for _, bad := range []Call{
		{Kind: collective.AllReduce, DType: kernels.Int32, Count: 1, Factor: kernels.FactorOf(2)},
		{Kind: collective.AllReduce, DType: kernels.Float32, RedOp: kernels.Max, Count: 1, Factor: kernels.FactorOf(2)},
		{Kind: collective.AllGather, DType: kernels.Float32, Count: 1, Factor: kernels.FactorOf(2)},
	} {
		require.ErrorIs(t, c.Group([]Call{bad, bad}), kernels.ErrInvalid)
	}
	good := Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1, Src: g.src[0].Ptr, Dst: g.dst[0].Ptr}
	other := good
	other.Factor = kernels.FactorOf(2)
	require.ErrorAs(t, c.Group([]Call{good, other}), new(*MismatchError))
}

// TestUC02_StreamThatDoesNotCome: a rank whose stream stands still before a call that is queued is named.
func TestUC02_StreamThatDoesNotCome(t *testing.T) {
	const ranks = 8
	g := newRig(t, ranks, 1<<20)
	stall := cudatest.NewStall(t, g.d)
	c := newCommunicator(t, g.d, ranks)
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000}, ranks, 1)
	for _, late := range []int{5, 0} {
		for range 3 * watchedLaunches / 2 { // some are told apart no more
			require.NoError(t, c.Group(s.lay(g)))
			_, _ = c.Behind()
		}
		calls := s.lay(g)
		g.waitAll()
		stall.Begin(g.streams[late])
		_, nobody := c.Behind()
		require.Nil(t, nobody)
		for range 20 {
			require.NoError(t, c.Group(calls))
		}
		require.Eventually(t, func() bool {
			_, ranks := c.Behind()
			return slices.Equal(ranks, []int{late})
		}, time.Minute, time.Millisecond, "rank %d is late", late)
		number, _ := c.Behind()
		again, _ := c.Behind()
		require.Equal(t, number, again, "it is one call")
		stall.End()
		require.Eventually(t, func() bool {
			_, ranks := c.Behind()
			return ranks == nil
		}, time.Minute, time.Millisecond)
		s.check(g, calls)
	}
}

// Neither way to call allocates, whatever the shapes, once they are known.
func TestCallsDoNotAllocate(t *testing.T) {
	const ranks = 8
	g := newRig(t, ranks, 1<<20)
	c := newCommunicator(t, g.d, ranks)
	s := newSample(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 1000}, ranks, 1)
	calls := s.lay(g)
	other := slices.Clone(calls)
	for r := range other {
		other[r].Count = 500
	}
	turn := 0
	for name, call := range map[string]func(){
		"group": func() {
			turn++
			if err := c.Group([][]Call{calls, other, other}[turn%3]); err != nil {
				panic(err)
			}
		},
		"a ticket a rank": func() {
			turn++
			var tickets [ranks]Ticket
			for r := range tickets {
				var err error
				if tickets[r], err = c.Start(r, [][]Call{calls, other, other}[turn%3][r]); err != nil {
					panic(err)
				}
			}
			for r := range tickets {
				if err := tickets[r].Wait(t.Context()); err != nil {
					panic(err)
				}
			}
		},
		"held": func() {
			var tickets [2 * ranks]Ticket
			c.Hold()
			for i := range tickets {
				var err error
				if tickets[i], err = c.Start(i%ranks, [][]Call{calls, other}[i/ranks][i%ranks]); err != nil {
					panic(err)
				}
			}
			c.Release()
			for i := range tickets {
				if err := tickets[i].Outcome(); err != nil {
					panic(err)
				}
			}
		},
	} {
		call()
		require.Zero(t, testing.AllocsPerRun(99, call), name)
	}
	g.waitAll()
}

// Meetings that many goroutines wait for in any order, and calls that fail: tickets are not mixed up.
func TestTickets(t *testing.T) {
	c := &Communicator{ranks: 2, moves: map[shape]*Moves{}, devices: slices.Repeat([]*cuda.Device{{}}, 2), sites: []site{{device: &cuda.Device{}}}, streams: make([]cuda.Stream, 2)}
	for i := range 100 {
		nothing := Call{Kind: collective.AllReduce, DType: kernels.Float32} // of no element: nothing is queued
		wrong := nothing
		wrong.Count = i + 1
		first, err := c.Start(0, nothing)
		require.NoError(t, err)
		ahead, err := c.Start(0, nothing)
		require.NoError(t, err)
		require.False(t, first.Queued())
		outcome := make(chan error)
		go func() { outcome <- first.Wait(t.Context()) }()
		second, err := c.Start(1, wrong)
		require.NoError(t, err)
		require.ErrorAs(t, <-outcome, new(*MismatchError))
		require.ErrorAs(t, second.Wait(t.Context()), new(*MismatchError))
		require.False(t, ahead.Queued())
		last, err := c.Start(1, nothing)
		require.NoError(t, err)
		require.NoError(t, ahead.Wait(t.Context()))
		require.NoError(t, last.Wait(t.Context()))
		require.LessOrEqual(t, len(c.spare), 2, "they serve again")
	}
	// What the GPU cannot fold is refused before anybody waits; to copy it is no fold.
	_, err := c.Start(0, Call{Kind: collective.AllReduce, DType: kernels.Float8e4m3, Count: 1})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	waits, err := c.Start(0, Call{Kind: collective.AllGather, DType: kernels.Float8e4m3})
	require.NoError(t, err)
	_, err = c.Start(1, Call{Kind: collective.AllGather, DType: kernels.Float8e4m3})
	require.NoError(t, err)
	require.NoError(t, waits.Outcome())
	waits, err = c.Start(0, Call{Kind: collective.Barrier})
	require.NoError(t, err)
	require.Equal(t, []int{1}, waits.Missing())
	message, err := c.Post(Message{Send: true, Rank: 1, Peer: 0, DType: kernels.Int8})
	require.NoError(t, err)
	require.Equal(t, []int{0}, message.Missing())
	waits.GiveUp(fmt.Errorf("enough"))
	require.Nil(t, message.Missing())
	require.ErrorContains(t, message.Outcome(), "enough")
	var missing *MissingError
	require.ErrorAs(t, waits.Outcome(), &missing)
	require.Equal(t, []int{1}, missing.Ranks)
	_, err = c.Start(1, Call{Kind: collective.Barrier})
	require.ErrorContains(t, err, "enough")
}
