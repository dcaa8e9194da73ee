package engine

import (
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/transport"
)

// short is a task of one round that sends blocks of its input to some peers, sees a message of each, and folds once: a one-shot
// all-reduce or a direct reduce-scatter. Of a few bytes, they take less time than finding out op by op where everything is; so a lane does it once for a task
// and its later calls. It is walked by the same program counter as the plan, so that either can go on where the other stopped.
type short struct {
	to, from []*link // sends and views, in the order of the plan
	at       []int   // bytes into the input, of each send
	own      int     // and of what is folded
	lend     bool    // sends may lend the input
	operand  []int   // of the fold: which view each one is, or -1 for the input
	views    []unsafe.Pointer
	srcs     []unsafe.Pointer // operands, a view's at its place
}

// newShort is the short way through a task that the lane has begun, or nil.
func (l *Lane) newShort(t *Task) *short {
	if t.rounds != 1 || t.Plan.Pieces != 1 || t.PreMul != nil || len(l.ops) == 0 {
		return nil
	}
	s := &short{}
	last := &l.ops[len(l.ops)-1]
	for i := range l.ops[:len(l.ops)-1] {
		o := &l.ops[i]
		if o.Code != collective.OpSend && o.Code != collective.OpView {
			return nil
		}
		k, err := l.link(o.Peer)
		if err != nil {
			return nil
		}
		switch src := t.Plan.Srcs[o.Src:]; {
		case o.Code == collective.OpSend && len(s.from) == 0 && src[0].Space == collective.In:
			lend := src[0].Flags&collective.Lend != 0
			if len(s.to) > 0 && lend != s.lend {
				return nil
			}
			s.to, s.at, s.lend = append(s.to, k), append(s.at, int(src[0].Block)*l.stride[collective.In]), lend
		case o.Code == collective.OpView && int(o.Dst.Block) == len(s.from):
			s.from = append(s.from, k)
		default:
			return nil
		}
	}
	if last.Code != collective.OpFold || int(last.NSrc) != len(s.from)+1 || last.Dst.Space != collective.Out || last.Dst.IsView() || last.Dst.Block != 0 {
		return nil
	}
	for _, r := range t.Plan.Srcs[last.Src : last.Src+uint32(last.NSrc)] {
		switch {
		case r.IsView() && r.Flags&collective.Last != 0:
			s.operand = append(s.operand, int(r.Block))
		case r.Space == collective.In:
			s.operand, s.own = append(s.operand, -1), int(r.Block)*l.stride[collective.In]
		default:
			return nil
		}
	}
	s.views = make([]unsafe.Pointer, len(s.from))
	s.srcs = make([]unsafe.Pointer, len(s.operand))
	return s
}

// advance goes on from the lane's program counter and reports whether it came to the end.
func (s *short) advance(l *Lane, t *Task) (done bool, err error) {
	if l.pc == len(l.ops) { // folded before: the lane waits until what it lent was read
		return true, nil
	}
	n, shared := l.size[0], s.lend && t.InShared
	for ; l.pc < len(s.to); l.pc++ {
		k := s.to[l.pc]
		ok, err := k.stream.Send(t.Tag, transport.Buf{Ptr: unsafe.Add(t.In, s.at[l.pc]), N: n, Shared: shared})
		if !ok {
			l.waits = k
			return false, err
		}
		k.sent++
	}
	for i := l.pc - len(s.to); i < len(s.from); i++ {
		k := s.from[i]
		p, err := k.stream.View(t.Tag, n)
		if p == nil {
			l.waits, l.arrival = k, true
			return false, err
		}
		s.views[i] = p
		l.pc++
	}
	for i, v := range s.operand {
		if v < 0 {
			s.srcs[i] = unsafe.Add(t.In, s.own)
		} else {
			s.srcs[i] = s.views[v]
		}
	}
	t.Fold(t.Out, s.srcs, l.elems[0])
	for _, k := range s.from {
		if err := k.stream.Release(); err != nil {
			return false, err
		}
	}
	l.pc++
	return true, nil
}
