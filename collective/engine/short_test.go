package engine

import (
	"context"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/transport"
)

// A call that is made again and again takes the short way, and gives what the first one gave, of fresh inputs and in other memory; another call
// in between gives its own.
func TestShort(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		for _, k := range collective.Kinds() {
			for _, a := range collective.Catalog(k) {
				s := collective.Shape{Kind: k, Ranks: n}
				if k.Rooted() {
					s.Root = n - 1
				}
				for _, inPlace := range []bool{false, true} {
					for _, shared := range []bool{false, true} {
						testShort(t, s, a.Name, inPlace, shared)
					}
				}
			}
		}
	}
}

func testShort(t *testing.T, s collective.Shape, algorithm string, inPlace, shared bool) {
	const rounds = 8
	j := newJob(t, s.Ranks, NewDriver)
	for _, d := range j.drivers {
		d.SetCrowded(s.Ranks > 2)
	}
	count := 40
	if s.Kind == collective.Barrier {
		count = 0
	}
	blocksIn, blocksOut := s.Kind.Blocks(s.Ranks)
	each(s.Ranks, func(r int) {
		call := newTestCall(t, s, r, algorithm, count, 1<<10, 1, inPlace)
		task, shorts := call.tasks[0], 0
		for k := range rounds {
			if k == rounds/2 {
				all := collective.Shape{Kind: collective.AllReduce, Ranks: s.Ranks}
				other := newTestCall(t, all, r, "ring", 40, 8, 1, false)
				other.run(t, j.ports[r])
				other.want(t, all, r, 40)
			}
			fresh := newTestCall(t, s, r, algorithm, count, 1<<10, 1, inPlace)
			for i := range blocksIn * count {
				fresh.in[i] += int64(k)
			}
			if shared {
				fresh.moveTo(t, j.endpoints[r].(transport.Allocator))
			}
			task.In, task.Out, task.InShared, task.OutShared = unsafe.Pointer(&fresh.in[0]), unsafe.Pointer(&fresh.out[0]), shared, shared
			call.run(t, j.ports[r])
			more := int64(k)
			if s.Kind.Reduces() {
				more *= int64(s.Ranks)
			}
			for i := range blocksOut * count {
				fresh.out[i] -= more
			}
			fresh.want(t, s, r, count)
			if j.ports[r].lanes[0].short != nil {
				shorts++
			}
		}
		if rounds-1 != shorts {
			t.Errorf("%v %s, in place %v: %d calls of rank %d of %d by the short way, want %d: all but the first, also after another call",
				s.Kind, algorithm, inPlace, shorts, r, s.Ranks, rounds-1)
		}
	})
}

// A lane whose short call is done but for the reading of what it lent comes back to it. It must not fold again: the views are given back,
// and in place the destination is an operand.
func TestShortFoldsOnce(t *testing.T) {
	folds := 0
	task := &Task{Fold: func(unsafe.Pointer, []unsafe.Pointer, int) { folds++ }}
	l := &Lane{ops: make([]collective.Op, 1)}
	buffer := place{&l.base[collective.In], 0}
	s := &short{ops: []shortOp{{code: collective.OpFold, place: buffer, srcs: []place{buffer}, bytes: 8, elems: 1}}, srcs: make([]unsafe.Pointer, 1)}
	for range 3 {
		done, err := s.advance(l, task)
		require.NoError(t, err)
		require.True(t, done)
		require.Equal(t, 1, folds)
		require.Equal(t, len(l.ops), l.pc)
	}
}

// moveTo puts the buffers into memory that may be lent, the input and the output as far from each other as they are.
func (c *testCall) moveTo(t testing.TB, a transport.Allocator) {
	in, out := uintptr(unsafe.Pointer(&c.in[0])), uintptr(unsafe.Pointer(&c.out[0]))
	n := 8 * (len(c.in) + len(c.out))
	p, err := a.Alloc(int64(n))
	require.NoError(t, err)
	first := min(in, out)
	if max(in, out)-first >= uintptr(n) { // not in place
		first, out = in, in+8*uintptr(len(c.in))
	}
	was := c.in
	c.in = unsafe.Slice((*int64)(unsafe.Add(p, in-first)), len(c.in))
	c.out = unsafe.Slice((*int64)(unsafe.Add(p, out-first)), len(c.out))
	copy(c.in, was)
}

func (c *testCall) run(t testing.TB, p *Port) {
	holds := p.TryStart(&c.Call, 0, c.tasks...)
	require.NoError(t, c.Wait(context.Background(), holds))
}

// slowStream lets go of the memory of what was sent late, and notes what may be lent.
type slowStream struct {
	echo
	ours   uint64
	shared []bool
}

func (s *slowStream) Stream(int) transport.Stream { return s }

func (s *slowStream) Sent() (uint64, error) { return s.ours, nil }

func (s *slowStream) Send(tag uint32, b transport.Buf) (bool, error) {
	s.shared = append(s.shared, b.Shared)
	return s.echo.Send(tag, b)
}

// Tasks by turns each go their own short way, with right results, whatever runs between them: others, more of them than a lane remembers the ways
// of, long ones, and the same task made anew for another plan.
func TestShortByTurns(t *testing.T) {
	const ranks = 3
	j := newJob(t, ranks, NewDriver)
	for _, d := range j.drivers {
		d.SetCrowded(true)
	}
	type turn struct {
		kind      collective.Kind
		algorithm string
		count     int
		round     int
	}
	turns := []turn{
		{collective.AllReduce, "ring", 40, 1 << 10}, {collective.AllReduce, "oneshot", 7, 1 << 10}, {collective.AllGather, "ring", 12, 1 << 10},
		{collective.Broadcast, "direct", 5, 1 << 10}, {collective.AllToAll, "direct", 9, 1 << 10}, {collective.AllReduce, "ring", 40, 8}, {collective.AllReduce, "ring", 9000, 1 << 20},
	}
	each(ranks, func(r int) {
		rng := rand.New(rand.NewPCG(7, 7)) // the same on all ranks
		calls := make([]*testCall, len(turns))
		for i := range 400 {
			k := rng.IntN(len(turns))
			if i > 200 {
				k = rng.IntN(keptShorts) // all of which are remembered
			}
			s := collective.Shape{Kind: turns[k].kind, Ranks: ranks}
			fresh := newTestCall(t, s, r, turns[k].algorithm, turns[k].count, turns[k].round, 1, false)
			if calls[k] == nil {
				calls[k] = newTestCall(t, s, r, turns[k].algorithm, turns[k].count, turns[k].round, 1, false)
			} else if i < 200 && rng.IntN(20) == 0 {
				*calls[k].tasks[0] = *fresh.tasks[0]
			}
			task := calls[k].tasks[0]
			task.In, task.Out = unsafe.Pointer(unsafe.SliceData(fresh.in)), unsafe.Pointer(unsafe.SliceData(fresh.out))
			calls[k].run(t, j.ports[r])
			fresh.want(t, s, r, turns[k].count)
		}
		own := 0
		for k := range keptShorts {
			if s := calls[k].tasks[0].short; s != nil && s.task == calls[k].tasks[0] {
				own++
			}
		}
		if own != keptShorts {
			t.Errorf("rank %d remembers the ways of %d tasks, want %d", r, own, keptShorts)
		}
	})
}

// In place, the input is not overwritten before the transport has let go of it; and what may be lent depends on the buffer.
func TestShortReuse(t *testing.T) {
	for i := range 4 {
		inPlace, outShared := i&1 != 0, i&2 != 0
		stream := &slowStream{}
		port := NewDriver().NewPort(PortOptions{Ranks: 2, Lanes: 1, Streams: 1, Dial: func(int, int) (transport.Conn, error) { return stream, nil }})
		l := port.lanes[0]
		c := newTestCall(t, collective.Shape{Kind: collective.AllReduce, Ranks: 2}, 0, "twoshot", 16, 1<<10, 1, inPlace)
		task, folds := c.tasks[0], 0
		task.Fold = func(unsafe.Pointer, []unsafe.Pointer, int) { folds++ }
		task.InShared, task.OutShared = true, outShared
		task.call = &c.Call
		c.Call.reset(port, 1)
		l.queue = []*Task{task}
		l.begin(task)
		s := l.newShort(task)
		done, err := s.advance(l, task)
		require.NoError(t, err)
		require.Equal(t, !inPlace, done)
		require.Equal(t, []bool{true, outShared}, stream.shared)
		if inPlace {
			require.Equal(t, &l.links[1], l.waits)
			require.Equal(t, collective.OpReuse, s.ops[l.pc].code)
			stream.ours = 1
			done, err = s.advance(l, task)
			require.NoError(t, err)
			require.True(t, done)
		}
		require.Equal(t, 1, folds)
		l.short = s
		l.forget()
		for _, p := range append(l.kept[0].views, l.kept[0].srcs[:cap(l.kept[0].srcs)]...) {
			require.Nil(t, p, "memory of a call that is over is held")
		}
	}
}
