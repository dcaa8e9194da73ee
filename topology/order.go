package topology

import (
	"cmp"
	"slices"
)

// Order returns the ranks in the order in which rings, chains and trees should pass data: host by host, so that as few edges as can
// be cross the network; on a host whose ranks all have GPUs in the order of [Rings], else NUMA node by NUMA node. Hosts come in
// the order of their lowest ranks. Whatever the places don't tell is by number.
//
// It is a pure function: every rank that knows all places gets the same order.
func Order(places []Place) []int {
	hosts := map[string][]int{}
	var names []string
	for r, p := range places {
		if hosts[p.Host] == nil {
			names = append(names, p.Host)
		}
		hosts[p.Host] = append(hosts[p.Host], r)
	}
	locals := make([]Local, len(names))
	gpusOnly := true
	for i, name := range names {
		var ok bool
		if locals[i], ok = local(places, hosts[name]); !ok {
			gpusOnly = false
		}
	}
	if gpusOnly {
		if rings, err := Rings(locals, 1); err == nil {
			var ranks, order []int // host by host
			for _, name := range names {
				ranks = append(ranks, hosts[name]...)
			}
			for _, at := range rings[0].Ranks {
				order = append(order, ranks[at])
			}
			return order
		}
	}
	var order []int
	for _, name := range names {
		ranks := hosts[name]
		slices.SortStableFunc(ranks, func(r, s int) int { return cmp.Compare(places[r].numa(), places[s].numa()) })
		order = append(order, ranks...)
	}
	return order
}

// local is the part of a job on one host; not ok if some rank there has no GPU, or they don't all see the same.
func local(places []Place, ranks []int) (l Local, ok bool) {
	l.Graph = places[ranks[0]].Graph
	for _, r := range ranks {
		p := places[r]
		if p.Graph == nil || p.Graph != l.Graph || p.GPU == NoNode {
			return l, false
		}
		l.GPUs = append(l.GPUs, p.GPU)
	}
	return l, true
}

// numa is the number of the NUMA node that a rank is bound to, by its GPU or by its CPUs; -1 for none.
func (p Place) numa() int {
	if p.Graph == nil {
		return -1
	}
	at := p.CPU
	if p.GPU != NoNode {
		at = p.Graph.CPUOf(p.GPU)
	}
	if at == NoNode {
		return -1
	}
	return p.Graph.Nodes[at].CPU.NUMA
}
