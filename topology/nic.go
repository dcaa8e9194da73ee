package topology

import (
	"cmp"
	"fmt"
	"slices"
)

// NICChoice is the network port that a GPU sends and receives through.
type NICChoice struct {
	GPU     NodeID   `json:"gpu"`
	Net     NodeID   `json:"net"` // NoNode if there is none
	Path    Path     `json:"path"`
	Via     NodeID   `json:"via"` // with PXN the GPU that the port belongs to, else NoNode
	Reasons []Reason `json:"reasons"`
}

// Restrict returns g with the ports that a filter doesn't take out of use. Everything that is chosen from it keeps to the
// filter, on whatever rank.
func (g *Graph) Restrict(f Filter) *Graph {
	r := *g
	r.Nodes = slices.Clone(g.Nodes)
	for i := range r.Nodes {
		if d := r.Nodes[i].Net; d != nil && d.Down == "" && !f.Match(d.Name, d.Port) {
			without := *d
			without.Down = fmt.Sprintf("the filter %s does not take it", f)
			r.Nodes[i].Net = &without
		}
	}
	return &r
}

// UsableNets returns the ports that are up and that are worth it: no bridges of container engines, sockets only where there is
// no RDMA, RDMA in software only where there is none in hardware, and no port of less than half of the fastest's speed (those are
// for storage and management). The second list says why the others are dropped.
func (g *Graph) UsableNets() (use []NodeID, dropped []Reason) {
	fastest, rdma, hardware := 0, false, false
	var up []NodeID
	for _, id := range g.Nets() {
		d := g.Nodes[id].Net
		switch {
		case d == nil:
			up, rdma, hardware = append(up, id), true, true
		case d.Down != "":
			dropped = append(dropped, because("%s: %s", d.Name, d.Down))
		case classOf(Interface{Name: d.Name}) != plain:
			dropped = append(dropped, because("%s: %s", d.Name, classOf(Interface{Name: d.Name})))
		default:
			up, rdma, hardware = append(up, id), rdma || !d.Sockets(), hardware || !d.Sockets() && !g.Software(id)
		}
	}
	serves := func(id NodeID) bool { d := g.Nodes[id].Net; return d == nil || !rdma || !d.Sockets() }
	for _, id := range up {
		if d := g.Nodes[id].Net; d != nil && serves(id) && (!hardware || !g.Software(id)) {
			fastest = max(fastest, d.Mbps)
		}
	}
	for _, id := range up {
		switch d := g.Nodes[id].Net; {
		case !serves(id):
			dropped = append(dropped, because("%s: it has no RDMA, and others have", d.Name))
		case hardware && g.Software(id):
			dropped = append(dropped, because("%s: it is software, and others are hardware", d.Name))
		case d != nil && d.Mbps > 0 && 2*d.Mbps < fastest:
			dropped = append(dropped, because("%s: %d Mbit/s is less than half of the fastest's %d", d.Name, d.Mbps, fastest))
		default:
			use = append(use, id)
		}
	}
	return use, dropped
}

// Software reports whether a port speaks RDMA in software, such as Soft-RoCE, whose devices are on no bus: it costs the CPUs more than TCP.
func (g *Graph) Software(net NodeID) bool {
	n := &g.Nodes[net]
	return n.Net != nil && !n.Net.Sockets() && g.Nodes[n.Parent].Bus == nil
}

// PairNICs chooses a port for every one of a job's GPUs: among the closest ones, by type of path and then by bandwidth, so that
// the GPUs spread evenly over them. A GPU whose closest port is behind its host bridge or farther goes through another of the
// GPUs (PXN) where NVLink leads to it and it is closer.
func (g *Graph) PairNICs(gpus []NodeID) []NICChoice {
	nets, dropped := g.UsableNets()
	adj := g.adjacency(g.Links())
	paths := make([][]Path, len(gpus))
	for i, gpu := range gpus {
		paths[i] = adj.paths(gpu)
	}
	choices := make([]NICChoice, len(gpus))
	options := make([][]NICChoice, len(gpus)) // the equally close ones
	for i, gpu := range gpus {
		for _, net := range nets {
			o := NICChoice{GPU: gpu, Net: net, Path: paths[i][net], Via: NoNode}
			if o.Path.Type > PathPXN {
				o = g.proxied(o, gpus, paths, i)
			}
			switch {
			case o.Path.Type == PathDIS:
				continue
			case len(options[i]) > 0 && farther(o.Path, options[i][0].Path) > 0:
				continue
			case len(options[i]) > 0 && farther(o.Path, options[i][0].Path) < 0:
				options[i] = nil
			}
			options[i] = append(options[i], o)
		}
		choices[i] = NICChoice{GPU: gpu, Net: NoNode, Path: Path{Type: PathDIS}, Via: NoNode}
		if len(options[i]) == 0 {
			choices[i].Reasons = append([]Reason{because("no network port that %s can reach is usable", g.Name(gpu))}, dropped...)
		}
	}
	for i, o := range spread(options) {
		if o < 0 {
			continue
		}
		c := options[i][o]
		c.Reasons = append(c.Reasons, because("%s is at %s, %.4g GB/s", g.Name(c.Net), c.Path.Type, c.Path.GBs))
		if c.Via != NoNode {
			c.Reasons = append(c.Reasons, because("through %s, over NVLink", g.Name(c.Via)))
		}
		if n := len(options[i]); n > 1 {
			c.Reasons = append(c.Reasons, because("%d ports are as close; the GPUs spread over them", n))
		}
		choices[i] = c
	}
	return choices
}

func farther(p, q Path) int { return cmp.Or(int(p.Type)-int(q.Type), cmp.Compare(q.GBs, p.GBs)) }

// proxied is a way over NVLink to a GPU that is close to the port, if there is one.
func (g *Graph) proxied(o NICChoice, gpus []NodeID, paths [][]Path, i int) NICChoice {
	best := o
	for j, via := range gpus {
		first, second := paths[i][via], paths[j][o.Net]
		if j == i || first.Type != PathNVL || second.Type > PathP2C {
			continue
		}
		p := Path{PathPXN, min(first.GBs, second.GBs), slices.Concat(first.Nodes, second.Nodes[1:])}
		if farther(p, best.Path) < 0 {
			best = NICChoice{GPU: o.GPU, Net: o.Net, Path: p, Via: via}
		}
	}
	return best
}

// spread picks one option for each GPU so that the busiest port serves as few GPUs as can be: a matching, with as much room at
// each port as it takes. -1 stands for a GPU without options.
func spread(options [][]NICChoice) []int {
	for room := 1; ; room++ {
		picked := make([]int, len(options))
		for i := range picked {
			picked[i] = -1
		}
		served := map[NodeID][]int{}
		all := true
		for i := range options {
			if len(options[i]) > 0 && !seat(i, options, room, picked, served, map[NodeID]bool{}) {
				all = false
				break
			}
		}
		if all {
			return picked
		}
	}
}

// seat finds GPU i a port with room, if need be by moving another GPU.
func seat(i int, options [][]NICChoice, room int, picked []int, served map[NodeID][]int, tried map[NodeID]bool) bool {
	take := func(o int) {
		picked[i] = o
		served[options[i][o].Net] = append(served[options[i][o].Net], i)
	}
	// The emptiest first: room is for the worst case, not for the first port.
	order := make([]int, len(options[i]))
	for o := range order {
		order[o] = o
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(served[options[i][a].Net]) - len(served[options[i][b].Net]) })
	if first := order[0]; len(served[options[i][first].Net]) < room {
		take(first)
		return true
	}
	for _, o := range order {
		net := options[i][o].Net
		if tried[net] {
			continue
		}
		tried[net] = true
		for at, other := range served[net] {
			if seat(other, options, room, picked, served, tried) {
				served[net] = slices.Delete(served[net], at, at+1)
				take(o)
				return true
			}
		}
	}
	return false
}
