package collective

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// judge runs schedules as their definition says, with integers, knowing nothing of
// plans, values and worlds: the instrs of a step happen together, messages of a pair come in order.
type judge struct {
	all    []Schedule
	trees  bool // keep expressions too
	strict bool // a message stays in its sender's memory, and in the only place there is for one of the pair, until it is taken
	inputs [][]int64

	ranks  []judged
	queues [][]letter // at from·n+to
}

type judged struct {
	memory  [Temp + 1][]judgedValue
	step    int
	begun   bool
	sent    int       // instrs of the step looked at for sends
	wanted  []int     // receives of the step that are still to come
	written []writing // what the step writes when it ends
}

type writing struct {
	to Slot
	judgedValue
}

func (st *judged) at(sl Slot) *judgedValue { return &st.memory[sl.Space][sl.Chunk] }

type judgedValue struct {
	n    int64
	tree string
	ok   bool
}

type letter struct {
	judgedValue
	piece int32
	from  Slot
}

type verdict int

const (
	right     verdict = iota
	wrong             // a wrong number, a stall or a message too many
	malformed         // two writers of one slot, or pieces of different lengths
	unequal           // right numbers by different trees on different ranks
	cramped           // right, but only with more room or copies
	numVerdicts
)

func (v verdict) String() string {
	return [...]string{"right", "wrong", "malformed", "unequal trees", "cramped"}[v]
}

// judgeSchedules gives the verdict and the reason, from that many random interleavings.
func judgeSchedules(all []Schedule, interleavings int) (verdict, string) {
	for _, s := range all {
		if why := malformedWhy(s); why != "" {
			return malformed, why
		}
	}
	for seed := range uint64(interleavings) {
		j := judge{all: all, trees: seed == 0}
		if v, why := j.run(rand.New(rand.NewPCG(seed, 7))); v != right {
			return v, why
		}
	}
	j := judge{all: all, strict: true}
	if v, why := j.run(rand.New(rand.NewPCG(0, 7))); v != right {
		return cramped, why
	}
	return right, ""
}

func malformedWhy(s Schedule) string {
	piece := func(sl Slot) int32 { return sl.Chunk % int32(s.Pieces) }
	for k, step := range s.Steps {
		writers := map[Slot]bool{}
		for _, in := range step {
			if in.Code == Send {
				continue
			}
			if writers[in.Dst] {
				return fmt.Sprintf("step %d writes %v twice", k, in.Dst)
			}
			writers[in.Dst] = true
			for _, src := range in.Srcs {
				if src.Space != Wire && piece(src) != piece(in.Dst) {
					return fmt.Sprintf("step %d: lengths of %v", k, in)
				}
			}
		}
	}
	return ""
}

func (j *judge) run(rnd *rand.Rand) (verdict, string) {
	n := len(j.all)
	j.ranks, j.queues, j.inputs = make([]judged, n), make([][]letter, n*n), make([][]int64, n)
	for r, s := range j.all {
		st := &j.ranks[r]
		for sp := range st.memory {
			st.memory[sp] = make([]judgedValue, s.chunks(Space(sp)))
		}
		for c := range st.memory[In] {
			x := judgedValue{n: rnd.Int64N(1 << 40), ok: true}
			if j.trees {
				x.tree = fmt.Sprintf("%d.%d", r, c)
			}
			j.inputs[r] = append(j.inputs[r], x.n)
			if s.Shape.HasIn(r) {
				st.memory[In][c] = x
			}
		}
	}
	alive := make([]int, n)
	for r := range alive {
		alive[r] = r
	}
	for len(alive) > 0 {
		// A random rank that can go on does one thing.
		first, moved := rnd.IntN(len(alive)), false
		for k := range alive {
			i := (first + k) % len(alive)
			r := alive[i]
			if j.ranks[r].step == len(j.all[r].Steps) {
				alive = slices.Delete(alive, i, i+1)
				moved = true
				break
			}
			ok, why := j.move(r, rnd)
			if why != "" {
				return malformed, why
			}
			if ok {
				moved = true
				break
			}
		}
		if !moved {
			return wrong, fmt.Sprintf("ranks %v are stuck", alive)
		}
	}
	for i, q := range j.queues {
		if len(q) > 0 {
			return wrong, fmt.Sprintf("%d messages from %d to %d are left", len(q), i/n, i%n)
		}
	}
	return j.outcome()
}

// move does one thing of the rank's step, if anything can be done.
func (j *judge) move(r int, rnd *rand.Rand) (moved bool, malformed string) {
	st, s, n := &j.ranks[r], &j.all[r], len(j.all)
	step := s.Steps[st.step]
	if !st.begun {
		st.begun, st.sent, st.wanted, st.written = true, 0, st.wanted[:0], st.written[:0]
		for i, in := range step {
			switch in.Code {
			case Recv, RecvReduce:
				st.wanted = append(st.wanted, i)
			case Fold, Copy:
				st.written = append(st.written, writing{in.Dst, j.sum(st, in, judgedValue{})})
			}
		}
	}
	for st.sent < len(step) {
		in := step[st.sent]
		if in.Code == Send {
			q := &j.queues[r*n+int(in.Peer)]
			if j.strict && len(*q) > 0 {
				return false, ""
			}
			*q = append(*q, letter{*st.at(in.Srcs[0]), in.Srcs[0].Chunk % int32(s.Pieces), in.Srcs[0]})
		}
		st.sent++
		if in.Code == Send {
			return true, ""
		}
	}
	first := 0
	if !j.strict && len(st.wanted) > 0 {
		first = rnd.IntN(len(st.wanted))
	}
	for k := range st.wanted {
		k = (first + k) % len(st.wanted)
		in := step[st.wanted[k]]
		q := &j.queues[int(in.Peer)*n+r]
		earlier := slices.ContainsFunc(st.wanted[:k], func(i int) bool { return step[i].Peer == in.Peer })
		if len(*q) == 0 || earlier {
			if j.strict {
				return false, ""
			}
			continue
		}
		l := (*q)[0]
		*q = (*q)[1:]
		if l.piece != in.Dst.Chunk%int32(s.Pieces) {
			return false, fmt.Sprintf("rank %d, step %d: length of what %v gets", r, st.step, in)
		}
		if in.Code == Recv {
			st.written = append(st.written, writing{in.Dst, l.judgedValue})
		} else {
			st.written = append(st.written, writing{in.Dst, j.sum(st, in, l.judgedValue)})
		}
		st.wanted = slices.Delete(st.wanted, k, k+1)
		return true, ""
	}
	if len(st.wanted) > 0 {
		return false, ""
	}
	for to := 0; j.strict && to < n; to++ {
		for _, l := range j.queues[r*n+to] {
			if slices.ContainsFunc(st.written, func(w writing) bool { return w.to == l.from }) {
				return false, ""
			}
		}
	}
	for _, w := range st.written {
		*st.at(w.to) = w.judgedValue
	}
	st.step, st.begun = st.step+1, false
	return true, ""
}

// sum is what a fold, a copy or a RecvReduce of wire writes.
func (j *judge) sum(st *judged, in Instr, wire judgedValue) judgedValue {
	total, parts := judgedValue{ok: true}, []string(nil)
	for _, src := range in.Srcs {
		x := wire
		if src.Space != Wire {
			x = *st.at(src)
		}
		total.n += x.n
		total.ok = total.ok && x.ok
		if j.trees {
			parts = append(parts, x.tree)
		}
	}
	if j.trees {
		total.tree = strings.Join(parts, "+")
		if len(parts) > 1 {
			total.tree = "(" + total.tree + ")"
		}
	}
	return total
}

// outcome holds the outputs against the kind's promise, written out again.
func (j *judge) outcome() (verdict, string) {
	unequalWhy := ""
	n, pieces := len(j.all), j.all[0].Pieces
	shape := j.all[0].Shape
	for r := range n {
		if shape.Kind == Reduce && r != shape.Root {
			continue
		}
		blocks := 1
		if shape.Kind == AllGather || shape.Kind == AllToAll {
			blocks = n
		}
		for block := range blocks {
			for p := range pieces {
				got := j.ranks[r].memory[Out][block*pieces+p]
				var want int64
				switch shape.Kind {
				case AllGather:
					want = j.inputs[block][p]
				case AllToAll:
					want = j.inputs[block][r*pieces+p]
				case Broadcast:
					want = j.inputs[shape.Root][p]
				case ReduceScatter:
					for q := range n {
						want += j.inputs[q][r*pieces+p]
					}
				default:
					for q := range n {
						want += j.inputs[q][p]
					}
				}
				if !got.ok || got.n != want {
					return wrong, fmt.Sprintf("rank %d, block %d, piece %d: %+v, want %d", r, block, p, got, want)
				}
				if first := j.ranks[0].memory[Out][p].tree; (shape.Kind == AllReduce || shape.Kind == Barrier) && got.tree != first {
					unequalWhy = fmt.Sprintf("rank %d, piece %d: %s, rank 0: %s", r, p, got.tree, first)
				}
			}
		}
	}
	if unequalWhy != "" {
		return unequal, unequalWhy
	}
	return right, ""
}
