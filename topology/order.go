package topology

import (
	"cmp"
	"slices"
)

// Orders returns, for each channel, the ranks in the order in which rings, chains and trees should pass data: host by host, so that as
// few edges as can be cross the network; on a host whose ranks all have GPUs in the order of [Rings], else NUMA node by NUMA node. Hosts
// come in the order of their lowest ranks, in all channels. Whatever the places don't tell is by number.
//
// Between hosts there are as many channels as the smallest host has ranks, but at most so many: a host is entered and left at other ranks
// in each, so that they share the work, and of ports that its ranks use it is the turn of another one. One host has one channel.
//
// It is a pure function: every rank that knows all places gets the same orders.
func Orders(places []Place, most int) [][]int {
	hosts := map[string][]int{}
	var names []string
	for r, p := range places {
		if hosts[p.Host] == nil {
			names = append(names, p.Host)
		}
		hosts[p.Host] = append(hosts[p.Host], r)
	}
	channels := 1
	if len(names) > 1 {
		channels = max(1, most)
		for _, ranks := range hosts {
			channels = min(channels, len(ranks))
		}
	}
	locals := make([]Local, len(names))
	gpusOnly := true
	for i, name := range names {
		var ok bool
		if locals[i], ok = local(places, hosts[name]); !ok {
			gpusOnly = false
		}
	}
	orders := make([][]int, channels)
	if gpusOnly {
		if rings, err := Rings(locals, channels); err == nil {
			var ranks []int // host by host
			for _, name := range names {
				ranks = append(ranks, hosts[name]...)
			}
			for c, ring := range rings {
				for _, at := range ring.Ranks {
					orders[c] = append(orders[c], ranks[at])
				}
			}
			return orders
		}
	}
	for _, name := range names {
		ranks := hosts[name]
		slices.SortStableFunc(ranks, func(r, s int) int { return cmp.Compare(places[r].numa(), places[s].numa()) })
		rails := railsAt(places, ranks)
		for c := range orders {
			first := 0
			if len(names) > 1 {
				first = entry(rails, c)
			}
			orders[c] = append(append(orders[c], ranks[first:]...), ranks[:first]...)
		}
	}
	return orders
}

// railsAt groups a host's ranks, by index, by the port that they use.
func railsAt(places []Place, ranks []int) (rails [][]int) {
	at := map[NodeID]int{}
	for i, r := range ranks {
		port := places[r].NIC.Net
		if _, known := at[port]; !known {
			at[port] = len(rails)
			rails = append(rails, nil)
		}
		rails[at[port]] = append(rails[at[port]], i)
	}
	return rails
}

// entry is the rank that channel c enters a host at, and leaves it before: of several rails the last one of a rail's, as the one before
// it is then of the rail, too.
func entry(rails [][]int, c int) int {
	if len(rails) == 1 {
		return rails[0][c%len(rails[0])]
	}
	rail := rails[c%len(rails)]
	return rail[len(rail)-1-c/len(rails)%len(rail)]
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
