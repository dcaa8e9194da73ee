package gpu

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gccl-project/gccl/collective"
)

// Lower turns the plans of all ranks, in rank order, into moves. The plans are of one schedule's family: same shape, pieces and
// scaling; in place or not is each rank's own affair. It is pure. Plans that need memory of their own between the moves, or
// whose moves wait for each other in a circle that is no exchange of up to 8 chunks, are an error that wraps errors.ErrUnsupported.
func Lower(plans []*collective.Plan) (*Moves, error) {
	if len(plans) < 1 || len(plans) > MaxRanks {
		return nil, fmt.Errorf("gpu: plans of %d ranks, want 1…%d: %w", len(plans), MaxRanks, errors.ErrUnsupported)
	}
	for r, p := range plans {
		if p.Rank != r || p.Shape != plans[0].Shape || p.Shape.Ranks != len(plans) || p.Pieces != plans[0].Pieces || p.Scale != plans[0].Scale {
			return nil, fmt.Errorf("gpu: plan %d is rank %d's of %+v in %d pieces, plan 0 is of %+v in %d", r, p.Rank, p.Shape, p.Pieces, plans[0].Shape, plans[0].Pieces)
		}
	}
	l := lowering{plans: plans, last: map[Place]int{}}
	if err := l.trace(); err != nil {
		return nil, err
	}
	l.forward()
	l.merge()
	l.prune()
	phases, err := l.order()
	if err != nil {
		return nil, fmt.Errorf("gpu: %v of %d ranks: %w", plans[0].Shape.Kind, len(plans), err)
	}
	return &Moves{Shape: plans[0].Shape, Pieces: plans[0].Pieces, Phases: phases}, nil
}

// A value is what a place holds after a write, or before the first.
type value struct {
	place Place
	maker *move // nil: the caller's input
	older int   // the value that the place held before, -1 if none
}

// A move while lowering, on values instead of places.
type move struct {
	srcs     []int
	scaled   uint64
	dsts     []int // values
	gone     bool  // merged into another
	exchange bool  // Move.Exchange

	after []*move // moves of earlier phases
	phase int     // from 1 on; 0 is not known, -1 being found
}

type lowering struct {
	plans  []*collective.Plan
	values []value
	moves  []*move
	last   map[Place]int // the newest value of a place
}

// place names where a ref of a rank is, one name for one piece of memory.
func (l *lowering) place(rank int, r collective.Ref) Place {
	p := Place{Rank: int32(rank), Block: r.Block, Piece: r.Piece, Space: r.Space}
	if plan := l.plans[rank]; plan.InPlace {
		switch kind := plan.Shape.Kind; {
		case kind == collective.ReduceScatter && p.Space == collective.Out:
			p.Space, p.Block = collective.In, p.Block+p.Rank
		case kind == collective.ReduceScatter || p.Space != collective.In:
		case kind == collective.AllGather:
			p.Space, p.Block = collective.Out, p.Block+p.Rank
		default:
			p.Space = collective.Out
		}
	}
	return p
}

// read returns the value that a place holds now.
func (l *lowering) read(p Place) int {
	v, ok := l.last[p]
	if !ok {
		v = len(l.values)
		l.values = append(l.values, value{p, nil, -1})
		l.last[p] = v
	}
	return v
}

func (l *lowering) write(p Place, m *move) {
	older := l.read(p)
	l.values = append(l.values, value{p, m, older})
	l.last[p] = len(l.values) - 1
	m.dsts = append(m.dsts, l.last[p])
	l.moves = append(l.moves, m)
}

// trace runs all plans side by side, each message as the name of the value that was sent, and writes down the moves.
func (l *lowering) trace() error {
	n := len(l.plans)
	type pair struct{ from, to int }
	wire := map[pair][]int{}
	views := make([][]int, n)
	pc := make([]int, n)
	for r, p := range l.plans {
		views[r] = make([]int, p.Views)
	}
	for moved := true; moved; {
		moved = false
		for r, plan := range l.plans {
			for ; pc[r] < len(plan.Ops); pc[r]++ {
				op := &plan.Ops[pc[r]]
				operand := func(ref collective.Ref) int {
					if ref.IsView() {
						return views[r][ref.Block]
					}
					return l.read(l.place(r, ref))
				}
				switch op.Code {
				case collective.OpSend:
					way := pair{r, int(op.Peer)}
					wire[way] = append(wire[way], operand(plan.Sources(op)[0]))
				case collective.OpView, collective.OpRecv:
					way := pair{int(op.Peer), r}
					if len(wire[way]) == 0 {
						goto next
					}
					v := wire[way][0]
					wire[way] = wire[way][1:]
					if op.Code == collective.OpView {
						views[r][op.Dst.Block] = v
					} else {
						l.write(l.place(r, op.Dst), &move{srcs: []int{v}})
					}
				case collective.OpFold, collective.OpCopy:
					m := &move{}
					for k, ref := range plan.Sources(op) {
						m.srcs = append(m.srcs, operand(ref))
						if ref.Flags&collective.Scaled != 0 {
							m.scaled |= 1 << k
						}
					}
					if len(m.srcs) > MaxRanks {
						return fmt.Errorf("gpu: a fold of %d operands, want at most %d: %w", len(m.srcs), MaxRanks, errors.ErrUnsupported)
					}
					l.write(l.place(r, op.Dst), m)
				}
				moved = true
			}
		next:
		}
	}
	for r, plan := range l.plans {
		if pc[r] < len(plan.Ops) {
			return fmt.Errorf("gpu: the plans deadlock: rank %d waits in op %d, %s", r, pc[r], plan.Describe(pc[r]))
		}
	}
	return nil
}

// forward has operands that are copies read where they were copied from, also those that were scaled on the way.
func (l *lowering) forward() {
	for _, m := range l.moves {
		for k := range m.srcs {
			for {
				from := l.values[m.srcs[k]].maker
				if from == nil || len(from.srcs) != 1 || from.scaled != 0 && m.scaled>>k&1 != 0 {
					break
				}
				m.scaled |= from.scaled << k
				m.srcs[k] = from.srcs[0]
			}
		}
	}
}

// merge makes one move of those that read the same, and has a fold write where copies of it would.
func (l *lowering) merge() {
	type key struct {
		scaled uint64
		srcs   string
	}
	first := map[key]*move{}
	for _, m := range l.moves {
		to := (*move)(nil)
		if maker := l.values[m.srcs[0]].maker; len(m.srcs) == 1 && m.scaled == 0 && maker != nil && !maker.gone {
			to = maker
		} else {
			k := key{m.scaled, fmt.Sprint(m.srcs)}
			if first[k] == nil {
				first[k] = m
				continue
			}
			to = first[k]
		}
		for _, v := range m.dsts {
			l.values[v].maker = to
		}
		to.dsts = append(to.dsts, m.dsts...)
		m.gone = true
	}
}

// prune drops destinations that nobody reads: Temp, and copies of a place to itself.
func (l *lowering) prune() {
	for again := true; again; {
		again = false
		read := map[int]bool{}
		for _, m := range l.moves {
			if !m.gone {
				for _, v := range m.srcs {
					read[v] = true
				}
			}
		}
		for _, m := range l.moves {
			if m.gone {
				continue
			}
			before := len(m.dsts)
			m.dsts = slices.DeleteFunc(m.dsts, func(v int) bool {
				p := l.values[v].place
				unread := p.Space == collective.Temp && !read[v]
				self := len(m.srcs) == 1 && m.scaled == 0 && m.srcs[0] == l.values[v].older && !read[v]
				return unread || self
			})
			again = again || len(m.dsts) != before
			m.gone = len(m.dsts) == 0
		}
	}
}
