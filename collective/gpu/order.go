package gpu

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gccl-project/gccl/collective"
)

// order finds the phases, and is the last step of Lower: a move comes after those that make what it reads, and after those that read or made what it overwrites.
func (l *lowering) order() ([][]Move, error) {
	live := slices.DeleteFunc(l.moves, func(m *move) bool { return m.gone })
	l.moves = live
	readers := map[int][]*move{}
	for _, m := range live {
		for _, v := range m.srcs {
			readers[v] = append(readers[v], m)
			if maker := l.values[v].maker; maker != nil && maker != m {
				m.after = append(m.after, maker)
			}
		}
	}
	for _, m := range live {
		for _, v := range m.dsts {
			if l.values[v].place.Space == collective.Temp {
				return nil, fmt.Errorf("the schedule keeps partial results in memory of its own (%v): %w", l.values[v].place, errors.ErrUnsupported)
			}
			for old := l.values[v].older; old >= 0; old = l.values[old].older {
				for _, r := range append(readers[old], l.values[old].maker) {
					if r != nil && r != m && !r.gone {
						m.after = append(m.after, r)
					}
				}
			}
		}
	}
	for _, m := range live {
		if circle := l.rank(m, nil); circle != nil {
			if err := l.exchange(circle); err != nil {
				return nil, err
			}
			return l.order() // with one circle less
		}
	}
	var phases [][]Move
	for _, m := range live {
		for len(phases) < m.phase {
			phases = append(phases, nil)
		}
		phases[m.phase-1] = append(phases[m.phase-1], l.finish(m))
	}
	return phases, nil
}

// rank finds the phase of m. If m waits for itself it returns the circle.
func (l *lowering) rank(m *move, path []*move) (circle []*move) {
	if m.phase > 0 {
		return nil
	}
	if i := slices.Index(path, m); i >= 0 {
		return path[i:]
	}
	path = append(path, m)
	phase := 1
	for _, a := range m.after {
		if c := l.rank(a, path); c != nil {
			return c
		}
		phase = max(phase, a.phase+1)
	}
	m.phase = phase
	return nil
}

// exchange makes one move of copies that each overwrite what another of them reads.
func (l *lowering) exchange(circle []*move) error {
	circle = slices.Clone(circle)
	all := &move{exchange: true}
	for _, m := range circle {
		if m.scaled != 0 || len(m.srcs) != 1 || len(m.dsts) != 1 {
			return fmt.Errorf("the moves wait for each other in a circle of %d that is no exchange: %w", len(circle), errors.ErrUnsupported)
		}
		all.srcs = append(all.srcs, m.srcs...)
		all.dsts = append(all.dsts, m.dsts...)
		m.gone = true
	}
	if len(all.srcs) > 8 {
		return fmt.Errorf("the moves exchange %d chunks in a circle, want at most 8: %w", len(all.srcs), errors.ErrUnsupported)
	}
	for _, v := range all.dsts {
		l.values[v].maker = all
	}
	kept := slices.DeleteFunc(slices.Clone(l.moves), func(m *move) bool { return m.gone })
	for _, m := range kept {
		m.after, m.phase = nil, 0
	}
	l.moves = append(kept, all)
	return nil
}

func (l *lowering) finish(m *move) Move {
	out := Move{Scaled: m.scaled, Exchange: m.exchange}
	for _, v := range m.srcs {
		out.Srcs = append(out.Srcs, l.values[v].place)
	}
	for _, v := range m.dsts {
		out.Dsts = append(out.Dsts, l.values[v].place)
	}
	out.Rank = out.Dsts[0].Rank
	if len(out.Srcs) == 1 {
		out.Rank = out.Srcs[0].Rank
	}
	return out
}
