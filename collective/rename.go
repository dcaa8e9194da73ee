package collective

import (
	"fmt"
	"slices"
)

// Rename returns what rank names[s.Rank] does in a world whose ranks are numbered otherwise: s, with names[r] wherever s says
// rank r, be it a peer, the root or the owner of a block. So an algorithm that passes data from number to number passes it
// along the order that names lists, and every block still belongs to the rank that it belongs to. If all ranks' schedules pass
// Verify, so do their renamed ones, but sums are in the order of the old numbers.
//
// S has to pass Check, and names to hold each of the numbers 0…Ranks-1 once, or Rename fails. S is not changed; the result shares memory with it.
func (s Schedule) Rename(names []int) (Schedule, error) {
	if err := s.Check(); err != nil {
		return Schedule{}, err
	}
	n := s.Shape.Ranks
	seen := make([]bool, n)
	for _, name := range names {
		if name < 0 || name >= n || seen[name] {
			return Schedule{}, fmt.Errorf("collective: rename %d ranks to %v, want each of 0…%d once", n, names, n-1)
		}
		seen[name] = true
	}
	if len(names) != n {
		return Schedule{}, fmt.Errorf("collective: rename %d ranks to %d names", n, len(names))
	}
	s.Rank = names[s.Rank]
	if s.Shape.Kind.Rooted() {
		s.Shape.Root = names[s.Shape.Root]
	}
	owned := [Temp]bool{}
	in, out := s.Shape.Kind.Blocks(n)
	owned[In], owned[Out] = in == n, out == n
	slot := func(sl Slot) Slot {
		if sl.Space < Temp && owned[sl.Space] {
			p := int32(s.Pieces)
			sl.Chunk = int32(names[sl.Chunk/p])*p + sl.Chunk%p
		}
		return sl
	}
	steps := make([][]Instr, len(s.Steps))
	for k, step := range s.Steps {
		steps[k] = slices.Clone(step)
		for i := range steps[k] {
			at := &steps[k][i]
			if at.Code <= RecvReduce {
				at.Peer = int32(names[at.Peer])
			}
			if at.Code != Send {
				at.Dst = slot(at.Dst)
			}
			at.Srcs = slices.Clone(at.Srcs)
			for j := range at.Srcs {
				at.Srcs[j] = slot(at.Srcs[j])
			}
		}
	}
	s.Steps = steps
	return s, nil
}
