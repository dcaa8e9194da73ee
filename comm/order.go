package comm

import (
	"slices"

	"github.com/gccl-project/gccl/collective"
)

// lineup is how schedules pass through a communicator's ranks: for each channel an order of them, in its own numbers, host by host. Lane l
// is of channel l modulo the number of channels.
type lineup struct {
	orders [][]int           // at least one
	hosts  *collective.Hosts // of the places in every order; nil: one host
}

// schedule is our part of a collective on a channel, along its order. What is summed in the order of ranks' numbers stays so: there the
// bits that come out are promised, and each rank has to do with every other anyway.
func (c *Comm) schedule(kind collective.Kind, root int, algorithm string, channel int) (collective.Schedule, error) {
	shape, order := c.shape(kind, root, channel), c.lineup.orders[channel]
	if slices.IsSorted(order) {
		return collective.Build(shape, c.rank, algorithm)
	}
	if kind.Reduces() && inRankOrder(kind, algorithm) {
		return collective.Build(collective.Shape{Kind: kind, Ranks: c.Size(), Root: root}, c.rank, algorithm)
	}
	s, err := collective.Build(shape, slices.Index(order, c.rank), algorithm)
	if err != nil {
		return s, err
	}
	return s.Rename(order)
}

// shape is a collective's in the numbers of a channel's order.
func (c *Comm) shape(kind collective.Kind, root, channel int) collective.Shape {
	if kind.Rooted() {
		root = slices.Index(c.lineup.orders[channel], root)
	}
	return collective.Shape{Kind: kind, Ranks: c.Size(), Root: root, Hosts: c.lineup.hosts}
}

// channels is how many orders a call on so many lanes goes along.
func (c *Comm) channels(kind collective.Kind, algorithm string, lanes int) int {
	if kind.Reduces() && inRankOrder(kind, algorithm) {
		return 1
	}
	return min(len(c.lineup.orders), lanes)
}

func inRankOrder(k collective.Kind, algorithm string) bool {
	return slices.ContainsFunc(collective.Catalog(k), func(a collective.Algorithm) bool { return a.Name == algorithm && a.RankOrder })
}

// lineupOf is the family's for a communicator of some of its ranks: the orders of the world without the others, as many as the smallest
// host has ranks.
func (f *family) lineupOf(world []int) (l lineup) {
	if f.places == nil {
		order := make([]int, len(world))
		for r := range order {
			order[r] = r
		}
		return lineup{orders: [][]int{order}}
	}
	member := make([]int, len(f.places.of)) // in the communicator, plus one, by rank of the world
	for r, w := range world {
		member[w] = r + 1
	}
	for _, all := range f.places.orders {
		order := make([]int, 0, len(world))
		for _, w := range all {
			if member[w] > 0 {
				order = append(order, member[w]-1)
			}
		}
		l.orders = append(l.orders, order)
	}
	var sizes []int
	for k, r := range l.orders[0] {
		if k == 0 || f.places.of[world[r]].Host != f.places.of[world[l.orders[0][k-1]]].Host {
			sizes = append(sizes, 0)
		}
		sizes[len(sizes)-1]++
	}
	channels := 1
	if len(sizes) > 1 {
		channels = slices.Min(sizes)
		l.hosts, _ = collective.NewHosts(sizes...) // no host is empty
	}
	l.orders = l.orders[:min(channels, len(l.orders))]
	return l
}
