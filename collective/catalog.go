package collective

import (
	"fmt"
	"strings"
)

// Algorithm is a way to do a kind of collective: a name and a pure function from shape and
// rank to schedule.
type Algorithm struct {
	Name string
	Kind Kind
	// RankOrder: whatever is summed is one fold of all ranks' inputs in rank order, so that
	// the bits depend on the inputs alone, not on how a message is cut or which of these
	// algorithms is chosen. True where nothing is summed.
	RankOrder bool
	// Hosts: it is made for ranks on several hosts, and no better than others elsewhere.
	Hosts bool
	// Build is called with s.Ranks ≥ 2 and 0 ≤ rank < s.Ranks. All ranks' schedules together
	// must pass Verify.
	Build func(s Shape, rank int) Schedule
}

// Suits reports whether the algorithm is worth a thought for a shape.
func (a Algorithm) Suits(s Shape) bool { return !a.Hosts || s.Hosts != nil && s.hosts() > 1 }

// Catalog returns the algorithms that gccl has for shapes of this kind. The order is
// the same everywhere and carries no preference.
func Catalog(k Kind) []Algorithm {
	var out []Algorithm
	for _, a := range catalog {
		if a.Kind == k {
			out = append(out, a)
		}
	}
	return out
}

var catalog = []Algorithm{
	{Name: "ring", Kind: AllReduce, Build: ringAllReduce},
	{Name: "tree", Kind: AllReduce, Build: treeAllReduce},
	{Name: "doubling", Kind: AllReduce, Build: doublingAllReduce},
	{Name: "oneshot", Kind: AllReduce, RankOrder: true, Build: oneshot},
	{Name: "twoshot", Kind: AllReduce, RankOrder: true, Build: twoshot},
	{Name: "hierarchical", Kind: AllReduce, Hosts: true, Build: hierarchicalDirect.build},
	{Name: "hierarchical_ring", Kind: AllReduce, Hosts: true, Build: hierarchicalRing.build},
	{Name: "hierarchical_doubling", Kind: AllReduce, Hosts: true, Build: hierarchicalDoubling.build},
	{Name: "ring", Kind: AllGather, RankOrder: true, Build: ringAllGather},
	{Name: "direct", Kind: AllGather, RankOrder: true, Build: directAllGather},
	{Name: "ring", Kind: ReduceScatter, Build: ringReduceScatter},
	{Name: "direct", Kind: ReduceScatter, RankOrder: true, Build: directReduceScatter},
	{Name: "tree", Kind: Broadcast, RankOrder: true, Build: binomialBroadcast},
	{Name: "doubletree", Kind: Broadcast, RankOrder: true, Hosts: true, Build: treeBroadcast},
	{Name: "chain", Kind: Broadcast, RankOrder: true, Build: chainBroadcast},
	{Name: "direct", Kind: Broadcast, RankOrder: true, Build: directBroadcast},
	{Name: "tree", Kind: Reduce, Build: binomialReduce},
	{Name: "doubletree", Kind: Reduce, Hosts: true, Build: treeReduce},
	{Name: "chain", Kind: Reduce, Build: chainReduce},
	{Name: "direct", Kind: Reduce, RankOrder: true, Build: directReduce},
	{Name: "pairwise", Kind: AllToAll, RankOrder: true, Build: pairwiseAllToAll},
	{Name: "direct", Kind: AllToAll, RankOrder: true, Build: directAllToAll},
	{Name: "doubling", Kind: Barrier, Build: doublingAllReduce},
	{Name: "direct", Kind: Barrier, RankOrder: true, Build: oneshot},
	{Name: "tree", Kind: Barrier, Build: treeAllReduce},
	{Name: "hierarchical_doubling", Kind: Barrier, Hosts: true, Build: hierarchicalDoubling.build},
}

// Build returns the rank's schedule by the algorithm of that name. One rank alone copies,
// whatever the name says. An unknown name is an error that lists the known ones.
func Build(s Shape, rank int, name string) (Schedule, error) {
	if err := s.Check(); err != nil {
		return Schedule{}, err
	}
	if rank < 0 || rank >= s.Ranks {
		return Schedule{}, fmt.Errorf("collective: rank %d of %d", rank, s.Ranks)
	}
	var names []string
	for _, a := range Catalog(s.Kind) {
		if a.Name == name {
			if s.Ranks == 1 {
				return alone(s), nil
			}
			return a.Build(s, rank), nil
		}
		names = append(names, a.Name)
	}
	return Schedule{}, fmt.Errorf("collective: no algorithm %q for %v; have %s", name, s.Kind, strings.Join(names, ", "))
}

// alone is every kind for one rank: a copy.
func alone(s Shape) Schedule {
	b := newBuilder(s, 0, 1)
	b.step(copySlot(b.out(0), b.in(0)))
	return b.schedule()
}
