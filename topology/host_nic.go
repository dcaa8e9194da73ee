package topology

import (
	"cmp"
	"slices"
	"strings"
)

// HostNIC chooses the port for host memory of a process that may run on some CPUs; none: any. All ranks without a GPU are to meet, so only
// ports of one sort and subnet come into question: InfiniBand before RoCE, then the subnet whose ports are fastest together, then the one
// whose name is first, for hosts may be cabled differently. Of these it takes the port whose NUMA node has the most of the CPUs, then that with the fastest path, then the first.
func (g *Graph) HostNIC(may CPUSet) NICChoice {
	nets, dropped := g.UsableNets()
	nets, others := g.oneSubnet(nets)
	dropped = append(dropped, others...)
	home, count := g.homes(may)
	choice := NICChoice{GPU: NoNode, Net: NoNode, Path: Path{Type: PathDIS}, Via: NoNode}
	near := -1
	var passed []Reason
	for _, net := range nets {
		at := g.CPUOf(net)
		c, has := NICChoice{GPU: NoNode, Net: net, Path: Path{Type: PathDIS}, Via: NoNode}, count[at]
		from := home
		if len(from) == 0 {
			from = []NodeID{at}
		}
		for _, cpu := range from {
			if p := g.Path(cpu, net); farther(p, c.Path) < 0 {
				c.Path = p
			}
		}
		if c.Path.Type == PathDIS {
			passed = append(passed, because("not %s: no path leads to it", g.Name(net)))
			continue
		}
		if choice.Net == NoNode || cmp.Or(has-near, farther(choice.Path, c.Path)) > 0 {
			choice, c, near, has = c, choice, has, near
		}
		if c.Net != NoNode {
			passed = append(passed, "not taken: "+g.near(c, has, may))
		}
	}
	if choice.Net == NoNode {
		choice.Reasons = append([]Reason{"no network port is usable"}, dropped...)
		return choice
	}
	choice.Reasons = slices.Concat([]Reason{g.near(choice, near, may)}, passed, dropped)
	return choice
}

// homes are the NUMA nodes that have some of the CPUs, and how many.
func (g *Graph) homes(may CPUSet) (home []NodeID, count map[NodeID]int) {
	count = map[NodeID]int{}
	for _, id := range g.CPUs() {
		if n := g.Nodes[id].CPU.CPUs.And(may).Len(); n > 0 {
			home, count[id] = append(home, id), n
		}
	}
	return home, count
}

func (g *Graph) near(c NICChoice, has int, may CPUSet) Reason {
	whose := because("%s has %d of the %d CPUs that the process may use", g.Name(g.CPUOf(c.Net)), has, may.Len())
	if may.Len() == 0 {
		whose = "which CPUs the process may use is not known"
	}
	return because("%s is at %s, %.4g GB/s; %s", g.Name(c.Net), c.Path.Type, c.Path.GBs, whose)
}

// oneSubnet keeps the ports of one sort and subnet, and says why the others are dropped. Ports whose subnet is not known are taken to be
// in one.
func (g *Graph) oneSubnet(nets []NodeID) (use []NodeID, dropped []Reason) {
	type subnet struct {
		kind NetKind
		name string
	}
	of := func(id NodeID) (s subnet) {
		if d := g.Nodes[id].Net; d != nil {
			s = subnet{d.Kind, d.Subnet}
		}
		return s
	}
	total := map[subnet]int{}
	var order []subnet
	for _, id := range nets {
		s := of(id)
		if _, known := total[s]; !known {
			order = append(order, s)
		}
		total[s] += 1 + g.mbps(id) // ports whose speed is not known count by their number
	}
	if len(order) == 0 {
		return nil, nil
	}
	rank := map[NetKind]int{InfiniBand: 3, RoCE: 2, "": 1}
	best := slices.MaxFunc(order, func(a, b subnet) int { // not by place, which only this host knows
		return cmp.Or(rank[a.kind]-rank[b.kind], total[a]-total[b], btoi(a.name != "")-btoi(b.name != ""), strings.Compare(b.name, a.name))
	})
	for _, id := range nets {
		switch s := of(id); {
		case s == best:
			use = append(use, id)
		case s.kind != best.kind:
			dropped = append(dropped, because("%s is %s, and ranks meet over %s", g.Name(id), cmp.Or(string(s.kind), "of an unknown sort"), cmp.Or(string(best.kind), "ports of an unknown sort")))
		default:
			dropped = append(dropped, because("%s is in the subnet %s, and ranks meet in %s", g.Name(id), cmp.Or(s.name, "(unknown)"), cmp.Or(best.name, "an unknown one")))
		}
	}
	return use, dropped
}

func (g *Graph) mbps(net NodeID) int {
	if d := g.Nodes[net].Net; d != nil {
		return d.Mbps
	}
	return 0
}
