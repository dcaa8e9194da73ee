package topology

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// hostRings finds the part of rings that is on one host.
type hostRings struct {
	g        *Graph
	first    int // rank of the first GPU
	gpus     []NodeID
	paths    [][]Path
	pcie     [][]Path // without NVLink
	nics     []NICChoice
	nets     []NodeID // that GPUs use, in order
	left     nvlinksLeft
	searched []section
}

// section is a ring's part on one host, by index of GPU.
type section struct {
	order []int
	net   NodeID
	over  []bool // which of its edges are NVLink
	worst PathType
	gbs   float64
}

// worseThan goes by kind of edge.
func (s section) worseThan(t section) bool {
	nvlink := func(s section) (n int) {
		for _, over := range s.over {
			n += btoi(over)
		}
		return n
	}
	return s.worst > t.worst || nvlink(s) < nvlink(t)
}

func newHostRings(l Local, first int) (*hostRings, error) {
	if len(l.GPUs) == 0 {
		return nil, ErrNoGPU
	}
	g := l.Graph
	for _, gpu := range l.GPUs {
		if !g.has(gpu) || g.Nodes[gpu].Type != GPU {
			return nil, fmt.Errorf("node %d is no GPU", gpu)
		}
	}
	h := &hostRings{g: g, first: first, gpus: l.GPUs, nics: g.PairNICs(l.GPUs)}
	all, pcie := g.adjacency(g.Links()), g.adjacency(g.pcieLinks())
	for _, gpu := range h.gpus {
		h.paths, h.pcie = append(h.paths, all.paths(gpu)), append(h.pcie, pcie.paths(gpu))
	}
	for _, net := range g.Nets() {
		if slices.ContainsFunc(h.nics, func(c NICChoice) bool { return c.Net == net }) {
			h.nets = append(h.nets, net)
		}
	}
	h.left = newNVLinksLeft(g, h.gpus)
	return h, nil
}

// next is the section for channel c.
func (h *hostRings) next(c, rails int, open bool) section {
	start, net := 0, NoNode
	if open && rails > 0 {
		net = h.nets[c%rails]
		var at []int // GPUs of that port take turns, the nearest first
		for i, n := range h.nics {
			if n.Net == net {
				at = append(at, i)
			}
		}
		slices.SortStableFunc(at, func(i, j int) int { return farther(h.nics[i].Path, h.nics[j].Path) })
		start = at[c/rails%len(at)]
	}
	// An order that was found before is as good as ever while its links last.
	for _, s := range h.searched {
		if s.order[0] == start && h.left.take(s) {
			s.net = net
			return s
		}
	}
	s := h.search(start, net, open)
	if len(h.searched) > 0 && s.worseThan(h.searched[0]) {
		h.left = newNVLinksLeft(h.g, h.gpus)
		s = h.search(start, net, open)
	}
	h.left.take(s)
	if !slices.ContainsFunc(h.searched, func(t section) bool { return slices.Equal(t.order, s.order) }) {
		h.searched = append(h.searched, s)
	}
	return s
}

// edge is how one GPU reaches the next with the NVLinks that are left.
type edge struct {
	kind  PathType
	gbs   float64 // by which edges of a kind compare: of all NVLinks left
	share float64 // of one channel
}

func (h *hostRings) edge(i, j int) edge {
	if n := h.left.between(i, j); n > 0 {
		one := linkGBs(h.g.Nodes[h.gpus[i]].GPU)
		return edge{PathNVL, float64(n) * one, one}
	}
	p := h.paths[i][h.gpus[j]]
	if p.Type == PathNVL { // its links are taken
		p = h.pcie[i][h.gpus[j]]
	}
	return edge{p.Type, p.GBs, p.GBs}
}

func (h *hostRings) search(start int, net NodeID, open bool) section {
	n := len(h.gpus)
	edges := make([][]edge, n)
	for i := range edges {
		edges[i] = make([]edge, n)
		for j := range edges[i] {
			if i != j {
				edges[i][j] = h.edge(i, j)
			}
		}
	}
	exit := make([]Path, n)
	for i := range exit {
		if net != NoNode {
			exit[i] = h.exit(i, net)
		}
	}
	s := section{order: tour(costs(edges, exit, start, !open), start), net: net, gbs: math.Inf(1)}
	for k, i := range s.order {
		if j := s.order[(k+1)%n]; i != j && !(open && k == n-1) {
			s.over = append(s.over, h.left.between(i, j) > 0)
			s.worst, s.gbs = max(s.worst, edges[i][j].kind), min(s.gbs, edges[i][j].share)
		}
	}
	if net != NoNode {
		s.gbs = min(s.gbs, h.paths[start][net].GBs)
	}
	return s
}

// exit is how GPU i reaches the rail's port: as it is, or over NVLink and the GPU of the port.
func (h *hostRings) exit(i int, net NodeID) Path {
	o := NICChoice{GPU: h.gpus[i], Net: net, Path: h.paths[i][net], Via: NoNode}
	if o.Path.Type > PathPXN {
		o = h.g.proxied(o, h.gpus, h.paths, i)
	}
	return o.Path
}

// costs makes edges numbers such that one edge of a worse class outweighs a tour of better ones, and the way out to the port
// comes last. A closed tour comes back to its start; an open one ends anywhere.
func costs(edges [][]edge, exit []Path, start int, closed bool) [][]float64 {
	n := len(edges)
	var classes []edge
	for i := range edges {
		for j, e := range edges[i] {
			if i != j {
				classes = append(classes, edge{kind: e.kind, gbs: e.gbs})
			}
		}
	}
	order := func(a, b edge) int { return cmp.Or(int(a.kind)-int(b.kind), cmp.Compare(b.gbs, a.gbs)) }
	slices.SortFunc(classes, order)
	classes = slices.CompactFunc(classes, func(a, b edge) bool { return order(a, b) == 0 })
	outs := slices.Clone(exit)
	slices.SortFunc(outs, farther)
	outs = slices.CompactFunc(outs, func(a, b Path) bool { return farther(a, b) == 0 })

	cost := make([][]float64, n)
	for i := range cost {
		cost[i] = make([]float64, n)
		for j := range cost[i] {
			if j == start && !closed { // the end's way back is its way out
				out, _ := slices.BinarySearchFunc(outs, exit[i], farther)
				cost[i][j] = float64(out) / float64(n+1)
			} else if i != j {
				class, _ := slices.BinarySearchFunc(classes, edge{kind: edges[i][j].kind, gbs: edges[i][j].gbs}, order)
				cost[i][j] = math.Pow(float64(n+1), float64(class))
			}
		}
	}
	return cost
}
