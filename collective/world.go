package collective

import "fmt"

// world is all ranks' plans and the symbolic memory they run on.
type world struct {
	plans  []*resolved
	values *values
	pipes  []pipe
	pipeOf [][]int32 // of each rank's op, the pipe that a message goes through; -1 without

	ranks    []rankState
	touched  []int32 // pipes that the last step changed
	operands []int32
}

// rankState is one rank's memory.
type rankState struct {
	cells   []int32 // values
	sent    []int32 // of each cell, the last op that sent it since it was written; -1 without
	before  []int32 // of such an op, the one before it
	views   []parcelRef
	viewOut []bool
}

// pipe holds the messages from one rank to another.
type pipe struct {
	from, to        int32
	parcels         []parcel
	taken, released int
	reused          uint32 // messages that the sender knows to be released
}

// parcel is a message: the sender's cell, read when it is used, or a copy.
type parcel struct {
	cell, copy, piece int32
	lent              bool
}

type parcelRef struct{ pipe, number int32 }

func newWorld(plans []*Plan) *world {
	w := &world{values: newValues(), ranks: make([]rankState, len(plans))}
	pipes := map[[2]int32]int32{}
	for r, p := range plans {
		v := resolve(p)
		of := make([]int32, len(p.Ops))
		for i := range p.Ops {
			o := &p.Ops[i]
			ends := [2]int32{int32(r), o.Peer}
			switch o.Code {
			case OpRecv, OpView:
				ends[0], ends[1] = ends[1], ends[0]
			case OpFold, OpCopy:
				of[i] = -1
				continue
			}
			id, ok := pipes[ends]
			if !ok {
				id = int32(len(w.pipes))
				pipes[ends] = id
				w.pipes = append(w.pipes, pipe{from: ends[0], to: ends[1]})
			}
			of[i] = id
			if o.Code == OpSend {
				w.pipes[id].taken++
			}
		}
		w.plans, w.pipeOf = append(w.plans, v), append(w.pipeOf, of)
		n := len(v.number)
		w.ranks[r] = rankState{cells: make([]int32, n), sent: make([]int32, n), before: make([]int32, len(p.Ops)), views: make([]parcelRef, p.Views), viewOut: make([]bool, p.Views)}
	}
	for i := range w.pipes {
		w.pipes[i].parcels = make([]parcel, 0, w.pipes[i].taken)
	}
	return w
}

func (w *world) reset() {
	for i := range w.pipes {
		p := &w.pipes[i]
		p.parcels, p.taken, p.released, p.reused = p.parcels[:0], 0, 0, 0
	}
	for r, p := range w.plans {
		st := &w.ranks[r]
		clear(st.cells)
		clear(st.viewOut)
		for i := range st.sent {
			st.sent[i] = -1
		}
		in, _ := p.Shape.Kind.Blocks(p.Shape.Ranks)
		for c := 0; p.Shape.HasIn(r) && c < in*p.Pieces; c++ {
			if n, ok := p.number[p.memory.slot(Slot{In, int32(c)})]; ok {
				st.cells[n] = w.values.leaf(leaf{rank: int32(r), chunk: int32(c)})
			}
		}
	}
}

func (w *world) value(m parcelRef) int32 {
	p := &w.pipes[m.pipe]
	if parcel := p.parcels[m.number]; !parcel.lent {
		return parcel.copy
	}
	return w.ranks[p.from].cells[p.parcels[m.number].cell]
}

// free returns how many messages of the pipe the sender may find released.
func (p *pipe) free() uint32 {
	if p.taken > p.released && !p.parcels[p.released].lent {
		return uint32(p.released) + 1
	}
	return uint32(p.released)
}

// step runs op i of rank r if it can, with room for so many messages in a pipe; 0 is any
// number. A HazardError is for ever.
func (w *world) step(r, i, room int) (bool, error) {
	v, st := w.plans[r], &w.ranks[r]
	o := &v.Ops[i]
	hazard := func(format string, args ...any) error {
		return &HazardError{Rank: r, Op: v.Describe(i), Why: fmt.Sprintf(format, args...)}
	}
	w.touched = w.touched[:0]
	id := w.pipeOf[r][i]
	var value int32
	switch o.Code {
	case OpSend:
		to := &w.pipes[id]
		if room > 0 && len(to.parcels)-to.released >= room {
			return false, nil
		}
		if int(o.Msg) != len(to.parcels) {
			return false, hazard("it is message %d", len(to.parcels))
		}
		src, c := v.Srcs[o.Src], v.src[o.Src]
		if src.IsView() || src.Flags&Scaled != 0 {
			return false, hazard("a send of a view or scaled memory")
		}
		to.parcels = append(to.parcels, parcel{c, st.cells[c], src.Piece, src.Flags&Lend != 0})
		st.before[i], st.sent[c] = st.sent[c], int32(i)
		w.touched = append(w.touched, id)
		return true, nil
	case OpReuse:
		to := &w.pipes[id]
		// An engine counts from the end, which in its order is the same.
		if room > 0 && uint64(len(to.parcels)) != uint64(o.Msg)+1+o.Behind() {
			return false, hazard("%d messages were sent after it, not %d", len(to.parcels)-int(o.Msg)-1, o.Behind())
		}
		if to.free() <= o.Msg {
			return false, nil
		}
		to.reused = max(to.reused, o.Msg+1)
		return true, nil
	case OpRecv, OpView:
		from := &w.pipes[id]
		if from.taken == len(from.parcels) {
			return false, nil
		}
		if from.taken != from.released {
			return false, hazard("a view of the same peer is out")
		}
		if int(o.Msg) != from.taken {
			return false, hazard("it is message %d", from.taken)
		}
		m := parcelRef{id, int32(from.taken)}
		if piece := from.parcels[m.number].piece; piece != o.Dst.Piece {
			return false, hazard("got piece %d of a block, want piece %d: the lengths differ", piece, o.Dst.Piece)
		}
		from.taken++
		w.touched = append(w.touched, id)
		if o.Code == OpView {
			st.views[o.Dst.Block], st.viewOut[o.Dst.Block] = m, true
			return true, nil
		}
		value = w.value(m)
		from.released++
	case OpFold, OpCopy:
		w.operands = w.operands[:0]
		for k, src := range v.Sources(o) {
			var x int32
			if src.IsView() {
				if !st.viewOut[src.Block] {
					return false, hazard("view %d is not out", src.Block)
				}
				m := st.views[src.Block]
				x = w.value(m)
				if src.Flags&Last != 0 {
					st.viewOut[src.Block] = false
					w.pipes[m.pipe].released++
					w.touched = append(w.touched, m.pipe)
				}
			} else {
				x = st.cells[v.src[int(o.Src)+k]]
			}
			if src.Flags&Scaled != 0 {
				x = w.values.scale(x)
			}
			w.operands = append(w.operands, x)
		}
		value = w.operands[0]
		if o.Code == OpFold {
			value = w.values.fold(w.operands)
		}
	}
	c := v.dst[i]
	for k := st.sent[c]; k >= 0; k = st.before[k] {
		if to, m := &w.pipes[w.pipeOf[r][k]], v.Ops[k].Msg; to.reused <= m {
			return false, hazard("rank %d may still read message %d, sent from there", to.to, m)
		}
	}
	st.sent[c] = -1
	st.cells[c] = value
	return true, nil
}

// outputs returns the value of every chunk of every rank's Out.
func (w *world) outputs() ([][]int32, error) {
	for _, p := range w.pipes {
		if p.released != len(p.parcels) {
			return nil, &HazardError{Rank: int(p.from), Op: fmt.Sprintf("message %d to rank %d", p.released, p.to), Why: "is sent and never used"}
		}
	}
	out := make([][]int32, len(w.plans))
	for r, p := range w.plans {
		if !p.Shape.HasOut(r) {
			continue
		}
		_, blocks := p.Shape.Kind.Blocks(p.Shape.Ranks)
		out[r] = make([]int32, blocks*p.Pieces)
		for c := range out[r] {
			at := p.memory.slot(Slot{Out, int32(c)})
			if n, ok := p.number[at]; ok {
				out[r][c] = w.ranks[r].cells[n]
			} else if x := c + int(p.memory.base[Out]-p.memory.base[In]); p.InPlace && p.Shape.HasIn(r) && x >= 0 {
				if in, _ := p.Shape.Kind.Blocks(p.Shape.Ranks); x < in*p.Pieces {
					out[r][c] = w.values.leaf(leaf{rank: int32(r), chunk: int32(x)})
				}
			}
		}
	}
	return out, nil
}
