package engine

import (
	"slices"
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/transport"
)

// short is a task of one round of few bytes whose ops are resolved: links, lengths and places in the buffers are known. Of such calls, finding out op by op
// where everything is takes longer than doing it; so a lane finds out once for a task and its later calls.
type short struct {
	lane   *Lane
	task   *Task  // whose it is, while it is kept
	used   uint64 // when the lane last came to it from another
	stride int    // bytes of a block of its input

	ops   []shortOp
	views []unsafe.Pointer
	from  []*link          // of each view
	srcs  []unsafe.Pointer // of the fold at hand
	to    []*link          // that it sends to,
	sends int              // and how many ops there are up to the last of these
}

// shortOp is an op of the plan.
type shortOp struct {
	code    collective.OpCode
	link    *link // none of a fold or copy
	place   place // the source of a send, else the destination
	bytes   int
	elems   int
	lends   [2]bool // a send may lend input, or output, that peers map
	behind  uint64  // of a reuse
	srcs    []place // of a fold or copy
	release []*link // of the views that it is the last to use
}

// place is somewhere in a buffer, or a view.
type place struct {
	base *unsafe.Pointer
	at   int // bytes
}

func (p *place) pointer() unsafe.Pointer { return unsafe.Add(*p.base, p.at) }

// keptShorts is how many tasks' short ways a lane knows: programs make some few short calls by turns.
const keptShorts = 4

// newShort is the short way through a task that the lane has begun, or nil. It takes the place of the task's last one or of another's that has been there
// for long, and its memory.
func (l *Lane) newShort(t *Task) *short {
	if t.rounds != 1 || t.PreMul != nil || l.cold {
		return nil
	}
	for _, n := range l.size[:t.Plan.Pieces] {
		if n >= relayFrom {
			return nil
		}
	}
	s := t.short
	if s == nil || s.task != t || s.lane != l {
		s = &l.kept[0]
		for i := range l.kept { // whose use is the longest ago
			if k := &l.kept[i]; k.used < s.used {
				s = k
			}
		}
	}
	l.uses++
	s.used, s.lane, s.task, s.stride = l.uses, l, nil, l.stride[collective.In]
	s.to, s.sends = s.to[:0], 0
	s.ops = slices.Grow(s.ops[:0], len(l.ops))[:len(l.ops)]
	s.views = slices.Grow(s.views[:0], t.Plan.Views)[:t.Plan.Views]
	s.from = slices.Grow(s.from[:0], t.Plan.Views)[:t.Plan.Views]
	for i := range l.ops {
		o, p := &l.ops[i], &s.ops[i]
		*p = shortOp{code: o.Code, srcs: p.srcs[:0], release: p.release[:0]}
		srcs := t.Plan.Sources(o)
		if o.Code != collective.OpFold && o.Code != collective.OpCopy {
			var err error
			if p.link, err = l.link(o.Peer); err != nil {
				return nil
			}
		}
		at := o.Dst
		switch o.Code {
		case collective.OpSend:
			at, s.sends = srcs[0], i+1
			switch {
			case at.Flags&collective.Lend == 0:
			case at.Space == collective.In:
				p.lends[0] = true
			case at.Space == collective.Out:
				p.lends[1] = true
			}
		case collective.OpView:
			s.from[at.Block] = p.link
		case collective.OpReuse:
			p.behind = o.Behind()
			continue
		case collective.OpFold, collective.OpCopy:
			for _, r := range srcs {
				p.srcs = append(p.srcs, s.place(l, r))
				if r.Flags&collective.Last != 0 {
					p.release = append(p.release, s.from[r.Block])
				}
			}
			s.srcs = slices.Grow(s.srcs[:0], len(srcs))
		}
		p.place, p.bytes, p.elems = s.place(l, at), l.size[at.Piece], l.elems[at.Piece]
	}
	for _, peer := range t.Plan.To {
		s.to = append(s.to, &l.links[peer])
	}
	if !l.lands && s.stride <= longBlock {
		s.task, t.short = t, s
	}
	return s
}

// recall goes back to a task whose short way the lane still knows, and reports whether it does.
func (l *Lane) recall(t *Task) bool {
	s := t.short
	if s == nil || s.task != t || s.lane != l {
		return false
	}
	l.uses++
	s.used = l.uses
	l.laid, l.short, l.ops, l.round, l.lands = t, s, t.Plan.Linear(), t.First, false
	l.stride[collective.In] = s.stride
	l.base[collective.Temp] = unsafe.Pointer(unsafe.SliceData(l.temp))
	return true
}

// forget ends the short way at hand, and holds none of the memory that its calls were about. Those of other tasks that are kept are of short calls, too.
func (l *Lane) forget() {
	if s := l.short; s != nil {
		clear(s.views)
		clear(s.srcs[:cap(s.srcs)])
	}
	l.short = nil
}

func (s *short) place(l *Lane, r collective.Ref) place {
	if r.IsView() {
		return place{&s.views[r.Block], 0}
	}
	return place{&l.base[r.Space], int(r.Block)*l.stride[r.Space] + l.at[r.Piece]} // the round, the first, begins where blocks do
}

// run goes on with the lane's task and reports whether it is done. The lane has no other.
func (s *short) run(l *Lane, t *Task) (done bool, err error) {
	l.waits, l.arrival = nil, false
	if done, err = s.advance(l, t); err != nil || l.pc < s.sends {
		return false, err
	}
	// If something is waited for there is time now to see what became of what we sent.
	for ; l.drain < len(s.to); l.drain++ {
		k := s.to[l.drain]
		if n, err := k.stream.Sent(); n < k.sent || err != nil {
			if done {
				l.waits = k
			}
			return false, err
		}
	}
	if !done {
		return false, nil
	}
	if l.stride[collective.In] > longBlock {
		l.letGo()
	}
	return true, nil
}

// advance goes on from the lane's program counter and reports whether it came to the end.
func (s *short) advance(l *Lane, t *Task) (done bool, err error) {
	ops := s.ops
	for pc := l.pc; pc < len(ops); pc++ {
		o := &ops[pc]
		k := o.link
		switch o.code {
		case collective.OpSend:
			ok, err := k.stream.Send(t.Tag, transport.Buf{Ptr: o.place.pointer(), N: o.bytes, Shared: t.InShared && o.lends[0] || t.OutShared && o.lends[1]})
			if !ok {
				l.pc, l.waits = pc, k
				return false, err
			}
			k.sent++
		case collective.OpView:
			p, err := k.stream.View(t.Tag, o.bytes)
			if p == nil {
				l.pc, l.waits, l.arrival = pc, k, true
				return false, err
			}
			*o.place.base = p
		case collective.OpRecv:
			ok, err := k.stream.Recv(t.Tag, transport.Buf{Ptr: o.place.pointer(), N: o.bytes})
			if !ok {
				l.pc, l.waits, l.arrival = pc, k, true
				return false, err
			}
		case collective.OpReuse:
			if n, err := k.stream.Sent(); n < k.sent-o.behind || err != nil {
				l.pc, l.waits = pc, k
				return false, err
			}
		default:
			srcs := s.srcs[:len(o.srcs)]
			for i, at := range o.srcs {
				srcs[i] = at.pointer()
			}
			switch dst := o.place.pointer(); {
			case o.bytes == 0:
			case o.code == collective.OpFold:
				t.Fold(dst, srcs, o.elems)
			case dst != srcs[0]:
				copy(unsafe.Slice((*byte)(dst), o.bytes), unsafe.Slice((*byte)(srcs[0]), o.bytes))
			}
			for _, k := range o.release {
				if err := k.stream.Release(); err != nil {
					return false, err
				}
			}
		}
	}
	l.pc = len(ops)
	return true, nil
}
