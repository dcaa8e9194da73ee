package collective

import (
	"fmt"
	"slices"
)

// Options are what a plan may assume about a call, besides its shape. They change local
// ops only, never the number, order or length of messages, and may differ between ranks.
type Options struct {
	// InPlace: the input lies in the output: at its beginning or, in an all-gather, at the
	// rank's block; the output of a reduce-scatter at the rank's block of the input.
	InPlace bool
	// Scale: every element of the input is multiplied by a factor before it is reduced
	// (average, pre-multiplied sum). What is on the wire is always scaled. Must be
	// the same on all ranks: it belongs to the redop.
	Scale bool
}

// Compile turns one rank's schedule into a plan.
//
// A RecvReduce becomes a view, which waits for nothing of this rank, and a fold, which
// waits for readers of its destination; without the split, an exchange of one chunk by two
// ranks would race or deadlock. For the same reason what is received into memory that
// the same step reads is taken as a view and copied. A Temp chunk that is received and then only folded
// or copied is never stored: the fold reads the view. Before memory that was sent is written again, a
// Reuse waits for its reader, so that transports are free to lend it.
func Compile(s Schedule, opt Options) (*Plan, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	c := &compiler{s: s, opt: opt, sent: map[int32]uint32{}, received: map[int32]uint32{}, reused: map[int32]uint32{}, pending: map[Slot][]message{}}
	if s.Shape.Kind.Reduces() {
		c.scale = opt.Scale
	}
	steps := c.lower(c.saveInputs(s.Steps))
	c.writes = map[Slot][]int{}
	for k, st := range steps {
		for _, in := range st {
			if in.Code != Send && in.Dst.Space != view {
				c.writes[c.cell(in.Dst)] = append(c.writes[c.cell(in.Dst)], k)
			}
		}
	}
	for k, st := range steps {
		if err := c.emit(k, st); err != nil {
			return nil, fmt.Errorf("collective: rank %d, step %d: %w", s.Rank, k, err)
		}
	}
	c.markLast()
	p := &Plan{Shape: s.Shape, Rank: s.Rank, Options: opt, Pieces: s.Pieces, Temps: c.s.Temps, Views: len(c.views), Ops: c.ops, Srcs: c.srcs, SendsTemp: c.sendsTemp}
	for peer := range c.sent {
		p.To = append(p.To, peer)
	}
	slices.Sort(p.To)
	return p, nil
}

// message is one that was sent and whose memory is not known to be free again.
type message struct {
	peer int32
	msg  uint32
}

type compiler struct {
	s     Schedule
	opt   Options
	scale bool

	views          []Instr // the receive behind each view
	ops            []Op
	srcs           []Ref
	sent, received map[int32]uint32
	reused         map[int32]uint32 // messages to a peer known to be released
	pending        map[Slot][]message
	writes         map[Slot][]int // steps that write a cell
	sendsTemp      bool
}

// cell is the one name of memory that has two: the input of an in-place call is named
// as the output.
func (c *compiler) cell(sl Slot) Slot {
	if !c.opt.InPlace {
		return sl
	}
	switch k := c.s.Shape.Kind; {
	case k == ReduceScatter && sl.Space == Out:
		return Slot{In, sl.Chunk + int32(c.s.Rank*c.s.Pieces)}
	case k == ReduceScatter || sl.Space != In:
		return sl
	case k == AllGather:
		return Slot{Out, sl.Chunk + int32(c.s.Rank*c.s.Pieces)}
	default:
		return Slot{Out, sl.Chunk}
	}
}

// saveInputs copies to Temp, before everything else, the input chunks that an in-place
// call would overwrite before their last use, and those that must be scaled before
// they are sent; and drops copies that an in-place call makes pointless.
func (c *compiler) saveInputs(steps [][]Instr) [][]Instr {
	firstWrite := map[Slot]int{} // step after which the cell no longer holds the input
	writer := map[Slot]*Instr{}
	kept := make([][]Instr, len(steps))
	for k, step := range steps {
		for _, in := range step {
			if in.Code == Copy && c.cell(in.Dst) == c.cell(in.Srcs[0]) && !c.scale {
				continue
			}
			kept[k] = append(kept[k], in)
		}
		for i := range kept[k] {
			in := &kept[k][i]
			if in.Code == Send {
				continue
			}
			if _, ok := firstWrite[c.cell(in.Dst)]; !ok {
				firstWrite[c.cell(in.Dst)], writer[c.cell(in.Dst)] = k, in
			}
		}
	}
	save := map[Slot]Slot{}
	var prologue []Instr
	for k, step := range kept {
		for i := range step {
			in := &step[i]
			for _, src := range in.Srcs {
				if src.Space != In || save[src] != (Slot{}) {
					continue
				}
				w, ok := firstWrite[c.cell(src)]
				late := ok && (k > w || k == w && in.Code != Send && in != writer[c.cell(src)])
				if late || c.scale && in.Code == Send {
					save[src] = Slot{Temp, src.Chunk + int32(c.s.Temps*c.s.Pieces)}
					prologue = append(prologue, copySlot(save[src], src))
				}
			}
		}
	}
	if len(prologue) == 0 {
		return kept
	}
	in, _ := c.s.Shape.Kind.Blocks(c.s.Shape.Ranks)
	c.s.Temps += in
	out := [][]Instr{prologue}
	for _, step := range kept {
		out = append(out, renamed(step, func(sl Slot) Slot {
			if to, ok := save[sl]; ok {
				return to
			}
			return sl
		}))
	}
	return out
}

// renamed returns the step with its sources renamed.
func renamed(step []Instr, name func(Slot) Slot) []Instr {
	out := make([]Instr, len(step))
	for i, in := range step {
		in.Srcs = slices.Clone(in.Srcs)
		for j := range in.Srcs {
			in.Srcs[j] = name(in.Srcs[j])
		}
		out[i] = in
	}
	return out
}

// newView numbers a view of what in receives.
func (c *compiler) newView(in Instr) Slot {
	c.views = append(c.views, in)
	return Slot{view, int32(len(c.views) - 1)}
}

// lower splits RecvReduce, turns receives into views where that is right, and leaves
// sends, receives, views, folds and copies.
func (c *compiler) lower(steps [][]Instr) [][]Instr {
	viewable := c.viewable(steps)
	current := map[Slot]Slot{} // temp chunk → its view
	out := make([][]Instr, len(steps))
	for k, step := range steps {
		step = renamed(step, func(sl Slot) Slot {
			if v, ok := current[sl]; ok {
				return v
			}
			return sl
		})
		read := map[Slot]bool{} // cells that this step reads
		for _, in := range step {
			for _, src := range in.Srcs {
				if src.Space != Wire {
					read[c.cell(src)] = true
				}
			}
		}
		for _, in := range step {
			take := func() Slot {
				v := c.newView(in)
				out[k] = append(out[k], Instr{Code: viewOp, Peer: in.Peer, Dst: v})
				return v
			}
			switch {
			case in.Code == RecvReduce:
				v := take()
				f := Instr{Code: Fold, Dst: in.Dst, Srcs: in.Srcs}
				f.Srcs[slices.Index(f.Srcs, Slot{Space: Wire})] = v
				out[k] = append(out[k], f)
			case in.Code == Recv && viewable[in.Dst]:
				current[in.Dst] = take()
			case in.Code == Recv && read[c.cell(in.Dst)]:
				out[k] = append(out[k], copySlot(in.Dst, take()))
			default:
				out[k] = append(out[k], in)
			}
		}
	}
	return out
}

// viewable returns the Temp chunks that are received once and then only folded or
// copied, before anything else comes from the same peer.
func (c *compiler) viewable(steps [][]Instr) map[Slot]bool {
	type use struct{ recvAt, lastRead int }
	uses := map[Slot]*use{}
	bad := map[Slot]bool{}
	peers := map[Slot]int32{}
	receives := map[int32][]int{} // steps with a receive from the peer, one entry each
	for k, step := range steps {
		for _, in := range step {
			if in.Code == Recv || in.Code == RecvReduce {
				receives[in.Peer] = append(receives[in.Peer], k)
			}
			for _, src := range in.Srcs {
				if src.Space != Temp {
					continue
				}
				u := uses[src]
				if in.Code == Send || u == nil || k <= u.recvAt {
					bad[src] = true
				} else {
					u.lastRead = k
				}
			}
		}
		for _, in := range step {
			if in.Code == Send || in.Dst.Space != Temp {
				continue
			}
			if in.Code != Recv || uses[in.Dst] != nil {
				bad[in.Dst] = true
			}
			uses[in.Dst], peers[in.Dst] = &use{k, -1}, in.Peer
		}
	}
	ok := map[Slot]bool{}
	for sl, u := range uses {
		if bad[sl] || u.lastRead < 0 {
			continue
		}
		n := 0
		for _, k := range receives[peers[sl]] {
			if k >= u.recvAt && k <= u.lastRead {
				n++
			}
		}
		ok[sl] = n == 1
	}
	return ok
}

func (c *compiler) ref(sl Slot) Ref {
	p := int32(c.s.Pieces)
	if sl.Space == view {
		r := c.views[sl.Chunk]
		return Ref{Block: sl.Chunk, Piece: r.Dst.Chunk % p, Space: view}
	}
	return Ref{Block: sl.Chunk / p, Piece: sl.Chunk % p, Space: sl.Space}
}

// emit appends the ops of one lowered step in linear order.
func (c *compiler) emit(k int, step []Instr) error {
	var writes []Instr
	for _, in := range step {
		if in.Code == Send {
			c.send(k, in)
		}
	}
	for _, in := range step {
		switch in.Code {
		case Recv, viewOp:
			code := OpView
			if in.Code == Recv {
				c.reuse(in.Dst)
				code = OpRecv
			}
			c.ops = append(c.ops, Op{Code: code, Peer: in.Peer, Dst: c.ref(in.Dst), Msg: c.received[in.Peer]})
			c.received[in.Peer]++
		case Fold, Copy:
			writes = append(writes, in)
		}
	}
	writes, err := c.readersFirst(writes)
	if err != nil {
		return err
	}
	for _, in := range writes {
		c.reuse(in.Dst)
		code := OpFold
		if in.Code == Copy || len(in.Srcs) == 1 {
			code = OpCopy
		}
		at := uint32(len(c.srcs))
		for _, src := range in.Srcs {
			r := c.ref(src)
			if c.scale && src.Space == In {
				r.Flags |= Scaled
			}
			if r.Piece != c.ref(in.Dst).Piece {
				return fmt.Errorf("%v: %v has another length than %v", in, src, in.Dst)
			}
			c.srcs = append(c.srcs, r)
		}
		c.ops = append(c.ops, Op{Code: code, Dst: c.ref(in.Dst), Src: at, NSrc: uint16(len(in.Srcs))})
	}
	return nil
}

// send emits a send of step k. Its memory may be lent unless it is written in this step or
// the next: there the peer's use of it may wait for what we do after the write, as
// in an exchange in place.
func (c *compiler) send(k int, in Instr) {
	src := in.Srcs[0]
	ref := c.ref(src)
	if !slices.ContainsFunc(c.writes[c.cell(src)], func(w int) bool { return w == k || w == k+1 }) {
		ref.Flags |= Lend
	}
	c.ops = append(c.ops, Op{Code: OpSend, Peer: in.Peer, Src: uint32(len(c.srcs)), NSrc: 1, Msg: c.sent[in.Peer]})
	c.srcs = append(c.srcs, ref)
	c.sendsTemp = c.sendsTemp || src.Space == Temp
	cell := c.cell(src)
	c.pending[cell] = append(c.pending[cell], message{in.Peer, c.sent[in.Peer]})
	c.sent[in.Peer]++
}

// reuse waits for the readers of what was sent from the memory of dst.
func (c *compiler) reuse(dst Slot) {
	cell := c.cell(dst)
	for _, m := range c.pending[cell] {
		if m.msg < c.reused[m.peer] {
			continue
		}
		c.reused[m.peer] = m.msg + 1
		c.ops = append(c.ops, Op{Code: OpReuse, Peer: m.peer, Msg: m.msg, Src: c.sent[m.peer] - m.msg - 1})
	}
	delete(c.pending, cell)
}

// readersFirst orders the folds and copies of a step so that each reads its sources
// before another one writes them.
func (c *compiler) readersFirst(writes []Instr) ([]Instr, error) {
	var out []Instr
	for len(writes) > 0 {
		i := slices.IndexFunc(writes, func(w Instr) bool {
			return !slices.ContainsFunc(writes, func(r Instr) bool {
				return c.cell(r.Dst) != c.cell(w.Dst) && slices.ContainsFunc(r.Srcs, func(sl Slot) bool { return c.cell(sl) == c.cell(w.Dst) })
			})
		})
		if i < 0 {
			return nil, fmt.Errorf("%v and others read each other's destinations; use two steps", writes[0])
		}
		out = append(out, writes[i])
		writes = slices.Delete(writes, i, i+1)
	}
	return out, nil
}

// markLast marks the last use of each view.
func (c *compiler) markLast() {
	seen := make([]bool, len(c.views))
	for i := len(c.ops) - 1; i >= 0; i-- {
		o := &c.ops[i]
		if o.Code != OpFold && o.Code != OpCopy {
			continue
		}
		for j := int(o.Src) + int(o.NSrc) - 1; j >= int(o.Src); j-- {
			if r := &c.srcs[j]; r.Space == view && !seen[r.Block] {
				seen[r.Block] = true
				r.Flags |= Last
			}
		}
	}
}
