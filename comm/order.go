package comm

import (
	"cmp"
	"slices"

	"github.com/gccl-project/gccl/collective"
)

// schedule is our part of a collective, along the order of the communicator's ranks. What is summed in the order of ranks' numbers
// stays so: there the bits that come out are promised, and each rank has to do with every other anyway.
func (c *Comm) schedule(shape collective.Shape, algorithm string) (collective.Schedule, error) {
	if c.order == nil || shape.Kind.Reduces() && inRankOrder(shape.Kind, algorithm) {
		return collective.Build(shape, c.rank, algorithm)
	}
	if shape.Kind.Rooted() {
		shape.Root = slices.Index(c.order, shape.Root)
	}
	s, err := collective.Build(shape, slices.Index(c.order, c.rank), algorithm)
	if err != nil {
		return s, err
	}
	return s.Rename(c.order)
}

func inRankOrder(k collective.Kind, algorithm string) bool {
	return slices.ContainsFunc(collective.Catalog(k), func(a collective.Algorithm) bool { return a.Name == algorithm && a.RankOrder })
}

// orderOf is the family's order of a communicator's ranks, in its own numbers; nil: by number.
func (f *family) orderOf(world []int) []int {
	if f.places == nil || f.places.order == nil {
		return nil
	}
	at := make([]int, len(f.places.order)) // in the order, by rank of the world
	for k, w := range f.places.order {
		at[w] = k
	}
	order := make([]int, len(world))
	for r := range order {
		order[r] = r
	}
	slices.SortFunc(order, func(r, s int) int { return cmp.Compare(at[world[r]], at[world[s]]) })
	if slices.IsSorted(order) {
		return nil
	}
	return order
}
