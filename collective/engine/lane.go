package engine

import (
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels/cpu"
	"github.com/gccl-project/gccl/transport"
)

// Dial returns the connection of a port to a peer; it does not block.
type Dial func(peer int) (transport.Conn, error)

// Lane runs tasks one after the other, each by walking its plan. It belongs to the holder of
// its driver's token.
type Lane struct {
	port   *Port
	dial   Dial
	stream int // of every conn
	links  []link
	queue  []*Task // queue[0] is running, or laid is if it is the driver's only one
	active bool    // listed in the driver

	laid  *Task  // whose plan and layout what follows was last made for
	short *short // of laid, from its second call on, in kept; nil: there is none
	kept  [keptShorts]short
	uses  uint64 // of kept, so that what was used longest ago gives way
	ops   []collective.Op
	pc    int
	round int // of the running task
	drain int // next of plan.To to wait for

	base   [3]unsafe.Pointer // of In, Out, Temp
	shift  [3]int            // what a piece's offset in a block is less in this space
	stride [3]int            // bytes of a block
	at     []int             // bytes from a block's start to a piece of this round
	size   []int             // bytes of a piece
	elems  []int             // elements of a piece
	temp   []byte
	views  []shown
	srcs   []unsafe.Pointer // operands of the fold at hand
	relay  relay
	cold   bool // the running task's memory is more than caches hold
	lands  bool // what the running task receives is long enough to be made in its place

	waits   *link // what pc waits for, if anything
	arrival bool  // it waits for a message from there
}

// link is a lane's stream to one peer.
type link struct {
	stream  transport.Stream
	awaiter transport.Awaiter // the stream's, or nil
	lander  transport.Lander  // the stream's, or nil
	peer    int
	sent    uint64 // messages sent
}

// shown is a view that is out.
type shown struct {
	p    unsafe.Pointer
	link *link
}

// longBlock is the size of a message in bytes from which on an idle lane lets go of its memory, so that the collector can have
// it; for shorter ones that is not worth the time.
const longBlock = 32 << 10

// link returns the link to a peer, which it opens at first use.
func (l *Lane) link(peer int32) (*link, error) {
	if k := &l.links[peer]; k.stream != nil {
		return k, nil
	}
	return l.open(peer)
}

func (l *Lane) open(peer int32) (*link, error) {
	k := &l.links[peer]
	conn, err := l.dial(int(peer))
	if err != nil {
		return nil, err
	}
	k.stream = conn.Stream(l.stream)
	k.awaiter, _ = k.stream.(transport.Awaiter)
	k.lander, _ = k.stream.(transport.Lander)
	k.peer = int(peer)
	return k, nil
}

// begin prepares the first round of a task.
func (l *Lane) begin(t *Task) {
	if t.rounds == 1 && (l.laid == t || l.recall(t)) {
		if l.base[collective.In] != t.In || l.base[collective.Out] != t.Out {
			l.base[collective.In], l.base[collective.Out] = t.In, t.Out
		}
		l.pc, l.drain = 0, 0
		if l.short == nil {
			if t.began++; t.began == 2 {
				l.short = l.newShort(t)
			}
		}
		if l.lands {
			l.offer(t)
		}
		return
	}
	p := t.Plan
	if t.rounds == 0 {
		t.rounds, t.began = t.Layout.Rounds(), 0
	}
	t.began++
	l.laid = t
	l.forget()
	l.ops = p.Linear()
	l.base[collective.In], l.base[collective.Out] = t.In, t.Out
	block := t.Layout.Count * t.Layout.Elem
	l.stride[collective.In], l.stride[collective.Out] = block, block
	l.cold = cpu.CanStream() && block >= coldFrom/max(p.Shape.Kind.Blocks(p.Shape.Ranks))
	if p.Temps > 0 {
		l.stride[collective.Temp] = min(t.Layout.Round, t.Layout.Count) * t.Layout.Elem
		if need := p.Temps * l.stride[collective.Temp]; len(l.temp) < need {
			l.temp = make([]byte, need)
		}
		l.base[collective.Temp] = unsafe.Pointer(unsafe.SliceData(l.temp))
	}
	if len(l.views) < p.Views {
		l.views = make([]shown, p.Views)
	}
	if len(l.at) < p.Pieces {
		l.at, l.size, l.elems = make([]int, p.Pieces), make([]int, p.Pieces), make([]int, p.Pieces)
	}
	l.lands = len(p.Landings) > 0 && block >= relayFrom
	l.round = t.First
	l.beginRound(t)
	if t.began > 1 {
		l.short = l.newShort(t)
	}
}

func (l *Lane) beginRound(t *Task) {
	l.pc, l.drain = 0, 0
	from, n := t.Layout.Range(l.round)
	l.shift[collective.Temp] = from * t.Layout.Elem
	if t.Plan.Pieces == 1 { // short calls: no division
		l.at[0], l.size[0], l.elems[0] = from*t.Layout.Elem, n*t.Layout.Elem, n
		return
	}
	for p := range t.Plan.Pieces {
		at, n := t.Layout.Piece(l.round, p)
		if n == 0 {
			at = from // a pointer past the end would be none into the buffer
		}
		l.at[p], l.size[p], l.elems[p] = at*t.Layout.Elem, n*t.Layout.Elem, n
	}
	if l.lands {
		l.offer(t)
	}
}

// offer lets peers make what they send us in its place, as far as they can.
func (l *Lane) offer(t *Task) {
	if !t.OutShared {
		return
	}
	for _, i := range t.Plan.Landings {
		o := &l.ops[i]
		if k := &l.links[o.Peer]; k.lander != nil {
			k.lander.Land(uint64(o.Msg), transport.Buf{Ptr: l.addr(&o.Dst), N: l.size[o.Dst.Piece], Shared: true})
		}
	}
}

// addr is where r is in this round.
func (l *Lane) addr(r *collective.Ref) unsafe.Pointer {
	if r.IsView() {
		return l.views[r.Block].p
	}
	return unsafe.Add(l.base[r.Space], int(r.Block)*l.stride[r.Space]+l.at[r.Piece]-l.shift[r.Space])
}

// advance runs ops until one would block, all tasks are done or something fails. It reports
// whether it did anything.
func (l *Lane) advance() (moved bool, err error) {
	l.waits, l.arrival = nil, false
	for len(l.queue) > 0 {
		t := l.queue[0]
		ok := true
		if s := l.short; s != nil {
			from := l.pc
			ok, err = s.advance(l, t)
			moved = moved || l.pc > from
			if err != nil || !ok {
				return moved, err
			}
		}
		for l.pc < len(l.ops) {
			if ok, err = l.step(t, &l.ops[l.pc]); err != nil || !ok {
				return moved, err
			}
			l.pc++
			moved = true
		}
		last := l.round+t.Stride >= t.rounds
		if last || t.Plan.SendsTemp {
			if ok, err = l.drained(t); err != nil || !ok {
				return moved, err
			}
		}
		moved = true
		if !last {
			l.round += t.Stride
			l.beginRound(t)
			continue
		}
		if len(l.queue) > 1 {
			copy(l.queue, l.queue[1:])
		}
		l.queue[len(l.queue)-1] = nil
		l.queue = l.queue[:len(l.queue)-1]
		if len(l.queue) > 0 {
			l.begin(l.queue[0])
		} else if l.stride[collective.In] > longBlock {
			l.letGo()
		}
		t.call.taskDone()
	}
	return moved, nil
}

// letGo holds no memory of the task that is done.
func (l *Lane) letGo() {
	l.base, l.laid = [3]unsafe.Pointer{}, nil
	l.forget()
	clear(l.srcs[:cap(l.srcs)])
}

// step runs one op if it can.
func (l *Lane) step(t *Task, o *collective.Op) (bool, error) {
	switch o.Code {
	case collective.OpSend:
		k, err := l.link(o.Peer)
		if err != nil {
			return false, err
		}
		src := &t.Plan.Srcs[o.Src]
		ok, err := k.stream.Send(t.Tag, transport.Buf{Ptr: l.addr(src), N: l.size[src.Piece], Shared: t.lends(src)})
		if ok {
			k.sent++
		} else {
			l.waits = k
		}
		return ok, err

	case collective.OpView:
		k, err := l.link(o.Peer)
		if err != nil {
			return false, err
		}
		p, err := k.stream.View(t.Tag, l.size[o.Dst.Piece])
		if p == nil {
			l.waits, l.arrival = k, true
			return false, err
		}
		l.views[o.Dst.Block] = shown{p, k}
		return true, nil

	case collective.OpRecv:
		k, err := l.link(o.Peer)
		if err != nil {
			return false, err
		}
		ok, err := k.stream.Recv(t.Tag, transport.Buf{Ptr: l.addr(&o.Dst), N: l.size[o.Dst.Piece], Cold: l.cold})
		if !ok {
			l.waits, l.arrival = k, true
		}
		return ok, err

	case collective.OpReuse:
		k := &l.links[o.Peer]
		n, err := k.stream.Sent()
		if ok := n >= k.sent-o.Behind(); !ok || err != nil {
			l.waits = k
			return false, err
		}
		return true, nil
	}
	return true, l.compute(t, o)
}

// compute runs a fold or copy and releases the views it is the last to use. An error says that what it made of them is worth nothing.
func (l *Lane) compute(t *Task, o *collective.Op) error {
	srcs := t.Plan.Srcs[o.Src : o.Src+uint32(o.NSrc)]
	l.srcs = l.srcs[:0]
	scaled := -1
	for i := range srcs {
		l.srcs = append(l.srcs, l.addr(&srcs[i]))
		if srcs[i].Flags&collective.Scaled != 0 {
			scaled = i
		}
	}
	dst := l.addr(&o.Dst)
	size := l.size[o.Dst.Piece]
	l.relay.slots = l.relay.slots[:0]
	switch {
	case size == 0:
	case scaled >= 0 || o.Code == collective.OpFold:
		l.foldOn(t, o, dst, size, scaled)
	case dst == l.srcs[0]:
	case l.cold:
		cpu.CopyStreaming(dst, l.srcs[0], size)
	default:
		copy(unsafe.Slice((*byte)(dst), size), unsafe.Slice((*byte)(l.srcs[0]), size))
	}
	for i := range srcs {
		if srcs[i].Flags&collective.Last != 0 {
			if err := l.views[srcs[i].Block].link.stream.Release(); err != nil {
				return err
			}
		}
	}
	return l.sendStaged(t, size)
}

// drained reports whether the memory of everything the task sent is ours again.
func (l *Lane) drained(t *Task) (bool, error) {
	for ; l.drain < len(t.Plan.To); l.drain++ {
		k := &l.links[t.Plan.To[l.drain]]
		n, err := k.stream.Sent()
		if n < k.sent || err != nil {
			l.waits = k
			return false, err
		}
	}
	return true, nil
}
