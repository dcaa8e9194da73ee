package collective

import (
	"fmt"
	"math"
	"slices"
)

// Options are what a plan may assume about a call, besides its shape. They change local
// ops only, never the number, order or length of messages, and but for Scale may differ between
// ranks.
type Options struct {
	// InPlace: the input lies in the output: at its beginning or, in an all-gather, at the
	// rank's block; the output of a reduce-scatter at the rank's block of the input.
	InPlace bool
	// Scale: every element of the input is multiplied by a factor before it is reduced
	// (average, pre-multiplied sum). What is on the wire is always scaled. Must be
	// the same on all ranks: it belongs to the redop. Kinds that do not reduce ignore it.
	Scale bool
}

// Compile turns one rank's schedule into a plan. Every schedule that passes Check compiles,
// unless its numbers do not fit 32 bits.
//
// A RecvReduce becomes a view, which waits for nothing of this rank, and a fold, which
// waits for readers of its destination; without the split, an exchange of one chunk by two
// ranks would race or deadlock. For the same reason what is received into memory that
// the same step reads is taken as a view and copied. A Temp chunk that is received and, in the next
// step, only folded or copied is never stored: the fold reads the view. Before memory that was sent
// is written again, a Reuse waits for its reader, so that transports are free to lend it.
// Blocks of Temp that nothing uses any more are left out.
//
// With all ranks' schedules aligned, which is to say that a message is received in the
// step of the same number in which it is sent, and no rank sends another one two
// messages in a step, the plans cannot deadlock, with one message of room between
// two ranks: by induction over the steps, sends wait for views that were released in earlier
// steps, receives for sends of the same step, and folds for receives of the same step,
// since what is lent in step k is let go of in step k+1 and is not waited for before
// step k+2. Verify finds out for any other schedules.
func Compile(s Schedule, opt Options) (*Plan, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	c := &compiler{
		s: s, memory: newMemory(s.Shape, s.Rank, s.Pieces, opt.InPlace), scale: opt.Scale && s.Shape.Kind.Reduces(),
		sent: map[int32]uint32{}, received: map[int32]uint32{}, reused: map[int32]uint32{},
		pending: map[cell][]message{}, writes: map[cell][]int{}, extra: map[int32]int{},
	}
	steps := c.lower(c.saveInputs(s.Steps))
	instrs, srcs := 0, 0
	for k, st := range steps {
		instrs += len(st)
		for _, in := range st {
			srcs += len(in.Srcs)
			if in.Code != Send && in.Dst.Space != view {
				cell := c.slot(in.Dst)
				c.writes[cell] = append(c.writes[cell], k)
			}
		}
	}
	c.ops, c.srcs = make([]Op, 0, instrs), make([]Ref, 0, srcs)
	for k, st := range steps {
		c.emit(k, st)
	}
	if c.tooMany || len(c.srcs) > math.MaxInt32 || len(c.ops) > math.MaxInt32 {
		return nil, fmt.Errorf("collective: rank %d: the schedule's %d steps make more than 2^31 ops, sources or temps", s.Rank, len(s.Steps))
	}
	c.markLast()
	p := &Plan{Shape: s.Shape, Rank: s.Rank, Options: opt, Pieces: s.Pieces, Temps: c.packTemps(), Views: len(c.views), Ops: slices.Clone(c.ops), Srcs: slices.Clone(c.srcs), SendsTemp: c.sendsTemp}
	for peer := range c.sent {
		p.To = append(p.To, peer)
	}
	slices.Sort(p.To)
	p.Landings = c.landings()
	return p, nil
}

// landings finds the plan's. A peer's first message of a round may be sent before this rank has begun the round.
func (c *compiler) landings() (found []int32) {
	touched, peers := map[cell]bool{}, map[int32]bool{}
	for i := range c.ops {
		o := &c.ops[i]
		if o.Code == OpRecv && o.Dst.Space == Out && o.Msg > 0 && !touched[c.ref(o.Dst)] && !peers[o.Peer] {
			found = append(found, int32(i))
			peers[o.Peer] = true
		}
		if o.Code != OpReuse {
			for _, src := range c.srcs[o.Src : o.Src+uint32(o.NSrc)] {
				touched[c.ref(src)] = true
			}
		}
		if o.Code != OpSend && o.Code != OpReuse {
			touched[c.ref(o.Dst)] = true
		}
	}
	return found
}

// message is one that was sent and whose memory is not known to be free again.
type message struct {
	peer int32
	msg  uint32
}

type compiler struct {
	s Schedule
	memory
	scale bool

	views          []Instr // the receive behind each view
	ops            []Op
	srcs           []Ref
	sent, received map[int32]uint32
	reused         map[int32]uint32 // messages to a peer known to be released
	pending        map[cell][]message
	writes         map[cell][]int // steps that write a cell
	extra          map[int32]int  // of each piece, the chunks of Temp that Compile added
	sendsTemp      bool
	tooMany        bool
}

// newTemp returns a new chunk of Temp of the length of a piece.
func (c *compiler) newTemp(piece int32) Slot {
	chunk := int64(c.s.Temps+c.extra[piece])*int64(c.s.Pieces) + int64(piece)
	c.extra[piece]++
	c.tooMany = c.tooMany || chunk > math.MaxInt32
	return Slot{Temp, int32(chunk)}
}

func (c *compiler) pieceOf(sl Slot) int32 {
	if sl.Space == view {
		sl = c.views[sl.Chunk].Dst
	}
	return sl.Chunk % int32(c.s.Pieces)
}

func (c *compiler) refTo(sl Slot) Ref {
	r := Ref{Block: sl.Chunk, Piece: c.pieceOf(sl), Space: sl.Space}
	if sl.Space != view {
		r.Block /= int32(c.s.Pieces)
	}
	return r
}

// emit appends the ops of one lowered step in linear order: sends, local work that waits
// for nobody, receives, and the rest.
func (c *compiler) emit(k int, step []Instr) {
	var writes []Instr
	fresh := map[cell]bool{} // received in this step
	for _, in := range step {
		switch in.Code {
		case Send:
			c.send(k, in)
		case Recv, viewOp:
			fresh[c.slot(in.Dst)] = true
		default:
			writes = append(writes, in)
		}
	}
	early, late := c.readersFirst(writes, fresh)
	for _, in := range early {
		c.write(in)
	}
	for _, in := range step {
		code := OpView
		switch in.Code {
		case Recv:
			code = OpRecv
			c.reuse(in.Dst)
		case viewOp:
		default:
			continue
		}
		c.ops = append(c.ops, Op{Code: code, Peer: in.Peer, Dst: c.refTo(in.Dst), Msg: c.received[in.Peer]})
		c.received[in.Peer]++
	}
	for _, in := range late {
		c.write(in)
	}
}

// write emits a fold or copy.
func (c *compiler) write(in Instr) {
	c.reuse(in.Dst)
	code := OpFold
	if len(in.Srcs) == 1 {
		code = OpCopy
	}
	c.ops = append(c.ops, Op{Code: code, Dst: c.refTo(in.Dst), Src: uint32(len(c.srcs)), NSrc: uint16(len(in.Srcs))})
	for _, src := range in.Srcs {
		r := c.refTo(src)
		if c.scale && src.Space == In {
			r.Flags |= Scaled
		}
		c.srcs = append(c.srcs, r)
	}
}

// send emits a send of step k. Its memory may be lent unless it is written in this step or
// the next: there the peer's use of it may wait for what we do after the write, as
// in an exchange in place.
func (c *compiler) send(k int, in Instr) {
	src := in.Srcs[0]
	ref, cell := c.refTo(src), c.slot(src)
	if !slices.ContainsFunc(c.writes[cell], func(w int) bool { return w == k || w == k+1 }) {
		ref.Flags |= Lend
	}
	c.ops = append(c.ops, Op{Code: OpSend, Peer: in.Peer, Src: uint32(len(c.srcs)), NSrc: 1, Msg: c.sent[in.Peer]})
	c.srcs = append(c.srcs, ref)
	c.sendsTemp = c.sendsTemp || src.Space == Temp
	c.pending[cell] = append(c.pending[cell], message{in.Peer, c.sent[in.Peer]})
	c.sent[in.Peer]++
}

// reuse waits for the readers of what was sent from the memory of dst.
func (c *compiler) reuse(dst Slot) {
	cell := c.slot(dst)
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
// before another one writes them; where they go round in a circle, one is put aside in Temp.
// Those that need nothing received in this step and overwrite nothing that was sent come
// early.
func (c *compiler) readersFirst(writes []Instr, fresh map[cell]bool) (early, late []Instr) {
	var aside []Instr
	for len(writes) > 0 {
		i := slices.IndexFunc(writes, func(w Instr) bool { return !c.readByOthers(w, writes) })
		if i < 0 {
			i = 0
			t := c.newTemp(c.pieceOf(writes[0].Dst))
			aside = append(aside, copySlot(writes[0].Dst, t))
			writes[0].Dst = t
		}
		w := writes[i]
		writes = slices.Delete(writes, i, i+1)
		waits := len(c.pending[c.slot(w.Dst)]) > 0 || len(late) > 0 && c.readByOthers(w, late) ||
			slices.ContainsFunc(w.Srcs, func(sl Slot) bool { return fresh[c.slot(sl)] })
		if waits {
			late = append(late, w)
		} else {
			early = append(early, w)
		}
	}
	return early, append(late, aside...)
}

// readByOthers reports whether one of the others reads what w writes.
func (c *compiler) readByOthers(w Instr, others []Instr) bool {
	to := c.slot(w.Dst)
	return slices.ContainsFunc(others, func(r Instr) bool {
		return c.slot(r.Dst) != to && slices.ContainsFunc(r.Srcs, func(sl Slot) bool { return c.slot(sl) == to })
	})
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

// packTemps renumbers the blocks of Temp that are used and returns how many they are.
func (c *compiler) packTemps() int {
	blocks := map[int32]int32{}
	pack := func(r *Ref) {
		if r.Space != Temp {
			return
		}
		b, ok := blocks[r.Block]
		if !ok {
			b = int32(len(blocks))
			blocks[r.Block] = b
		}
		r.Block = b
	}
	for i := range c.ops {
		if code := c.ops[i].Code; code != OpSend && code != OpReuse {
			pack(&c.ops[i].Dst)
		}
	}
	for i := range c.srcs {
		pack(&c.srcs[i])
	}
	return len(blocks)
}
