package collective

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// WrongValueError says that a rank would end with another value than the kind promises.
type WrongValueError struct {
	Rank, Chunk int    // of Out
	Got, Want   string // expressions over r<rank>.<chunk> of In
}

func (e *WrongValueError) Error() string {
	return fmt.Sprintf("collective: rank %d ends with out[%d] = %s, want %s", e.Rank, e.Chunk, e.Got, e.Want)
}

// DeadlockError says that the ranks wait for each other.
type DeadlockError struct {
	Reading string   // "linear" or "machine"
	Waiting []string // for each rank that is not done, what it waits for
}

func (e *DeadlockError) Error() string {
	return fmt.Sprintf("collective: deadlock (%s): %s", e.Reading, strings.Join(e.Waiting, "; "))
}

// HazardError says that an op may read or write memory that another one still needs, or that
// messages do not match.
type HazardError struct {
	Rank int
	Op   string
	Why  string
}

func (e *HazardError) Error() string {
	return fmt.Sprintf("collective: rank %d: %s: %s", e.Rank, e.Op, e.Why)
}

// Verify proves that the schedules of all ranks, all[r] of rank r, do together what their
// kind promises: every element of every output is the right expression over all inputs,
// in an all-reduce the same expression (the same bits) on every rank; nobody waits for ever; no
// memory is overwritten before its last reader. Both readings of the plans are run.
//
// The linear reading runs with one message of room between two ranks; messages that may be
// lent are read by the receiver only when it uses them, the others leave the sender's memory when the
// receiver takes them. It is a network of sequential processes
// over bounded queues, so its outcome does not depend on timing, and what runs here
// runs with more room and with copies too. The machine is run in several random orders.
//
// The error is a *WrongValueError, *DeadlockError, *HazardError or what Compile says.
func Verify(all []Schedule, opt Options) error {
	w := &world{values: newValues()}
	for r, s := range all {
		if s.Rank != r || s.Shape != all[0].Shape || s.Shape.Ranks != len(all) || s.Pieces != all[0].Pieces {
			return fmt.Errorf("collective: schedule %d is of rank %d, %+v with %d pieces; want rank %d, %+v with %d", r, s.Rank, s.Shape, s.Pieces, r, all[0].Shape, all[0].Pieces)
		}
		p, err := Compile(s, opt)
		if err != nil {
			return err
		}
		w.plans = append(w.plans, p)
	}
	linear, err := w.runLinear()
	if err != nil {
		return err
	}
	if err := w.check(linear); err != nil {
		return err
	}
	for seed := range uint64(3) {
		out, err := w.runMachine(rand.New(rand.NewPCG(seed, 0)))
		if err != nil {
			return err
		}
		for r := range out {
			for c, x := range out[r] {
				if x != linear[r][c] {
					return &WrongValueError{Rank: r, Chunk: c, Got: w.values.text(x) + " by the machine", Want: w.values.text(linear[r][c])}
				}
			}
		}
	}
	return nil
}

// world is all ranks' plans and the memory they run on.
type world struct {
	plans  []*Plan
	values *values

	ranks []*rankState
	pipes map[[2]int32]*pipe
}

// rankState is one rank's memory.
type rankState struct {
	cells   map[Ref]int32
	views   []*parcel
	unsafe  map[Ref][]message // sent from the cell, not known to be released
	reused  map[int32]uint32
	blocked string
}

// pipe holds the messages from one rank to another.
type pipe struct {
	parcels         []*parcel
	taken, released int
}

// parcel is a message: the sender's cell, read when it is used, or a copy.
type parcel struct {
	from  *rankState
	cell  Ref
	copy  int32
	lent  bool
	piece int32
	pipe  *pipe
}

func (m *parcel) value() int32 {
	if m.lent {
		return m.from.cells[m.cell]
	}
	return m.copy
}

func (w *world) reset() {
	w.ranks, w.pipes = nil, map[[2]int32]*pipe{}
	for r, p := range w.plans {
		st := &rankState{cells: map[Ref]int32{}, views: make([]*parcel, p.Views), unsafe: map[Ref][]message{}, reused: map[int32]uint32{}}
		in, _ := p.Shape.Kind.Blocks(p.Shape.Ranks)
		for c := 0; p.Shape.HasIn(r) && c < in*p.Pieces; c++ {
			ref := Ref{Block: int32(c / p.Pieces), Piece: int32(c % p.Pieces), Space: In}
			st.cells[p.cell(ref)] = w.values.leaf(r, c, false)
		}
		w.ranks = append(w.ranks, st)
	}
}

func (w *world) pipe(from, to int32) *pipe {
	k := [2]int32{from, to}
	if w.pipes[k] == nil {
		w.pipes[k] = &pipe{}
	}
	return w.pipes[k]
}

// step runs op i of rank r if it can. A HazardError is for ever.
func (w *world) step(r int, i int, room int) (bool, error) {
	p, st := w.plans[r], w.ranks[r]
	o := &p.Ops[i]
	hazard := func(format string, args ...any) error {
		return &HazardError{Rank: r, Op: p.describe(i), Why: fmt.Sprintf(format, args...)}
	}
	var value int32
	switch o.Code {
	case OpSend:
		to := w.pipe(int32(r), o.Peer)
		if room > 0 && len(to.parcels)-to.released >= room {
			return false, nil
		}
		src := p.Sources(o)[0]
		c := p.cell(src)
		to.parcels = append(to.parcels, &parcel{st, c, st.cells[c], src.Flags&Lend != 0, src.Piece, to})
		st.unsafe[c] = append(st.unsafe[c], message{o.Peer, o.Msg})
		return true, nil
	case OpReuse:
		to := w.pipe(int32(r), o.Peer)
		free := to.released
		if to.taken > free && !to.parcels[free].lent {
			free++
		}
		if uint32(free) <= o.Msg {
			return false, nil
		}
		st.reused[o.Peer] = max(st.reused[o.Peer], o.Msg+1)
		return true, nil
	case OpRecv, OpView:
		from := w.pipe(o.Peer, int32(r))
		if from.taken == len(from.parcels) {
			return false, nil
		}
		if o.Code == OpView && from.taken != from.released {
			return false, hazard("another view of the same peer is out")
		}
		m := from.parcels[from.taken]
		if m.piece != o.Dst.Piece {
			return false, hazard("got piece %d of a block, want piece %d: the lengths differ", m.piece, o.Dst.Piece)
		}
		from.taken++
		if o.Code == OpView {
			st.views[o.Dst.Block] = m
			return true, nil
		}
		value = m.value()
		from.released++
	case OpFold, OpCopy:
		var operands []int32
		for _, src := range p.Sources(o) {
			x := st.cells[p.cell(src)]
			if src.IsView() {
				m := st.views[src.Block]
				x = m.value()
				if src.Flags&Last != 0 {
					m.pipe.released++
				}
			}
			if src.Flags&Scaled != 0 {
				x = w.values.scale(x)
			}
			operands = append(operands, x)
		}
		value = operands[0]
		if o.Code == OpFold {
			value = w.values.fold(operands)
		}
	}
	c := p.cell(o.Dst)
	for _, m := range st.unsafe[c] {
		if st.reused[m.peer] <= m.msg {
			return false, hazard("rank %d may still read message %d, sent from there", m.peer, m.msg)
		}
	}
	delete(st.unsafe, c)
	st.cells[c] = value
	return true, nil
}

// runLinear runs every rank's ops in order, as far as each gets in turn.
func (w *world) runLinear() ([][]int32, error) {
	w.reset()
	pc := make([]int, len(w.plans))
	for moved := true; moved; {
		moved = false
		for r, p := range w.plans {
			for pc[r] < len(p.Ops) {
				ok, err := w.step(r, pc[r], 1)
				if err != nil {
					return nil, err
				}
				if !ok {
					break
				}
				pc[r]++
				moved = true
			}
		}
	}
	var waiting []string
	for r, p := range w.plans {
		if pc[r] < len(p.Ops) {
			waiting = append(waiting, fmt.Sprintf("rank %d waits at its op %d of %d: %s", r, pc[r], len(p.Ops), p.describe(pc[r])))
		}
	}
	if waiting != nil {
		return nil, &DeadlockError{"linear", waiting}
	}
	return w.outputs()
}

// runMachine runs ops that are ready in a random order, with as much room as they need.
func (w *world) runMachine(rnd *rand.Rand) ([][]int32, error) {
	w.reset()
	type task struct{ rank, op int32 }
	var ready, blocked []task
	machines := make([]*Machine, len(w.plans))
	for r, p := range w.plans {
		machines[r] = NewMachine(p)
		for _, i := range machines[r].Reset(nil) {
			ready = append(ready, task{int32(r), i})
		}
	}
	var next []int32
	for len(ready) > 0 {
		k := rnd.IntN(len(ready))
		t := ready[k]
		ready[k] = ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		ok, err := w.step(int(t.rank), int(t.op), 0)
		if err != nil {
			return nil, err
		}
		if !ok {
			blocked = append(blocked, t)
			continue
		}
		for _, i := range machines[t.rank].Done(t.op, next[:0]) {
			ready = append(ready, task{t.rank, i})
		}
		ready = append(ready, blocked...)
		blocked = blocked[:0]
	}
	if blocked != nil && len(blocked) > 0 {
		var waiting []string
		for _, t := range blocked {
			waiting = append(waiting, fmt.Sprintf("rank %d: %s", t.rank, w.plans[t.rank].describe(int(t.op))))
		}
		return nil, &DeadlockError{"machine", waiting}
	}
	return w.outputs()
}

// outputs returns the value of every chunk of every rank's Out.
func (w *world) outputs() ([][]int32, error) {
	for k, p := range w.pipes {
		if p.released != len(p.parcels) {
			return nil, &HazardError{Rank: int(k[0]), Op: fmt.Sprintf("message %d to rank %d", p.released, k[1]), Why: "is sent and never used"}
		}
	}
	out := make([][]int32, len(w.plans))
	for r, p := range w.plans {
		if !p.Shape.HasOut(r) {
			continue
		}
		_, blocks := p.Shape.Kind.Blocks(p.Shape.Ranks)
		for c := range blocks * p.Pieces {
			ref := Ref{Block: int32(c / p.Pieces), Piece: int32(c % p.Pieces), Space: Out}
			out[r] = append(out[r], w.ranks[r].cells[p.cell(ref)])
		}
	}
	return out, nil
}

// check holds the outputs against what the kind promises.
func (w *world) check(out [][]int32) error {
	type question struct {
		value int32
		chunk int
	}
	asked := map[question]bool{}
	for r, p := range w.plans {
		for c, x := range out[r] {
			rank, chunk, sum := w.want(r, c)
			ok := x == w.values.leaf(rank, chunk, false)
			if q := (question{x, chunk}); sum {
				if _, known := asked[q]; !known {
					asked[q] = w.isSum(x, chunk, p.Scale)
				}
				ok = asked[q]
			}
			if !ok {
				want := fmt.Sprintf("r%d.%d", rank, chunk)
				if sum {
					want = fmt.Sprintf("the sum of r0.%d … r%d.%d", chunk, len(w.plans)-1, chunk)
				}
				return &WrongValueError{r, c, w.values.text(x), want}
			}
			if k := p.Shape.Kind; (k == AllReduce || k == Barrier) && x != out[0][c] {
				return &WrongValueError{r, c, w.values.text(x), w.values.text(out[0][c]) + ", as on rank 0 (the same bits on all ranks)"}
			}
		}
	}
	return nil
}

// want is what chunk c of rank r's Out must be: the leaf (rank, chunk), or the sum over
// all ranks of their leaf chunk.
func (w *world) want(r, c int) (rank, chunk int, sum bool) {
	p := w.plans[r]
	switch p.Shape.Kind {
	case AllGather:
		return c / p.Pieces, c % p.Pieces, false
	case AllToAll:
		return c / p.Pieces, r*p.Pieces + c%p.Pieces, false
	case Broadcast:
		return p.Shape.Root, c, false
	case ReduceScatter:
		return 0, r*p.Pieces + c, true
	}
	return 0, c, true
}

// isSum reports whether x adds the leaf chunk of every rank exactly once.
func (w *world) isSum(x int32, chunk int, scaled bool) bool {
	seen := make([]bool, len(w.plans))
	n, ok := 0, x != 0
	if ok {
		w.values.leaves(x, func(l node) {
			if int(l.chunk) != chunk || l.scaled != scaled || seen[l.rank] {
				ok = false
				return
			}
			seen[l.rank] = true
			n++
		})
	}
	return ok && n == len(w.plans)
}
