package topology

import (
	"fmt"
	"slices"
	"strings"
)

// LinkType is NCCL's word for what joins two neighbouring nodes.
type LinkType string

// Types of links. NCCL's LOC and NVB are only paths here.
const (
	LinkNVL LinkType = "NVL"
	LinkC2C LinkType = "C2C"
	LinkPCI LinkType = "PCI"
	LinkSYS LinkType = "SYS"
	LinkNET LinkType = "NET"
)

// Link joins two neighbouring nodes, in both directions.
type Link struct {
	A, B NodeID
	Type LinkType
	GBs  float64 // in each direction
}

// PathType is NCCL's word for the worst that a path crosses. Smaller is closer.
type PathType uint8

// The order is NCCL's.
const (
	PathLOC PathType = iota // the same node
	PathNVL                 // NVLink, directly or through the switches
	PathNVB                 // NVLink through another GPU
	PathC2C                 // chip to chip
	PathPIX                 // one PCIe switch
	PathPXB                 // several PCIe switches, no host bridge
	PathP2C                 // chip to chip, then PCIe to a NIC
	PathPXN                 // NVLink to another GPU, then to its NIC
	PathPHB                 // a host bridge, of one NUMA node
	PathSYS                 // from NUMA node to NUMA node
	PathNET                 // the network
	PathDIS                 // none
)

var pathNames = [...]string{"LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"}

// String returns NCCL's three letters.
func (t PathType) String() string {
	if int(t) < len(pathNames) {
		return pathNames[t]
	}
	return fmt.Sprintf("PathType(%d)", uint8(t))
}

// ParsePathType reads NCCL's three letters, in any case.
func ParsePathType(s string) (PathType, error) {
	for i, name := range pathNames {
		if strings.EqualFold(name, s) {
			return PathType(i), nil
		}
	}
	return PathDIS, fmt.Errorf("path type %q; want one of %s", s, strings.Join(pathNames[:], " "))
}

// MarshalText gives NCCL's three letters.
func (t PathType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads NCCL's three letters.
func (t *PathType) UnmarshalText(b []byte) (err error) {
	*t, err = ParsePathType(string(b))
	return err
}

// Path is how two nodes reach each other.
type Path struct {
	Type  PathType `json:"type"`
	GBs   float64  `json:"gbs"`   // of its narrowest link, in one direction
	Nodes []NodeID `json:"nodes"` // from the one to the other, both included; empty if there is none
}

// Links returns all links, each once: from a child to its parent, between NUMA nodes, NVLinks and C2C. Bundles that several
// entries of [Graph.NVLinks] list between the same two nodes are one link.
func (g *Graph) Links() []Link {
	var links []Link
	for i := range g.Nodes {
		id, n := NodeID(i), &g.Nodes[i]
		switch {
		case n.Parent == NoNode:
		case n.Type == NET:
			links = append(links, Link{id, n.Parent, LinkNET, portGBs(n.Net)})
		case n.Bus == nil:
			links = append(links, Link{id, n.Parent, LinkPCI, localGBs}) // a virtual card
		default:
			links = append(links, Link{id, n.Parent, LinkPCI, pciGBs(n.Bus)})
		}
		if n.GPU != nil && len(n.GPU.C2C) > 0 {
			sum := 0.0
			for _, c := range n.GPU.C2C {
				sum += float64(c.MBs) * float64(c.Count) / 1000
			}
			if cpu := g.CPUOf(id); cpu != NoNode {
				links = append(links, Link{id, cpu, LinkC2C, sum})
			}
		}
	}
	cpus := g.CPUs()
	for i, a := range cpus {
		for _, b := range cpus[i+1:] {
			links = append(links, Link{a, b, LinkSYS, min(socketGBs(g.Nodes[a].CPU), socketGBs(g.Nodes[b].CPU))})
		}
	}
	return append(links, g.nvlinks()...)
}

// nvlinks returns each bundle once, in the order of [Graph.NVLinks].
func (g *Graph) nvlinks() []Link {
	direct, toSwitch := g.bundles()
	toCPU := map[[2]NodeID]int{}
	seen := map[[2]NodeID]bool{}
	var links []Link
	for _, l := range g.NVLinks {
		if l.To == NoNode || g.Nodes[l.To].Type != CPU {
			continue
		}
		toCPU[[2]NodeID{l.From, l.To}] += l.Count
	}
	for _, l := range g.NVLinks {
		p := [2]NodeID{l.From, l.To}
		if l.To == NoNode || seen[p] || seen[[2]NodeID{l.To, l.From}] {
			continue
		}
		seen[p] = true
		n := direct[p]
		switch g.Nodes[l.To].Type {
		case NVS:
			n = toSwitch[l.From]
		case CPU:
			n = toCPU[p]
		}
		if n > 0 {
			links = append(links, Link{l.From, l.To, LinkNVL, float64(n) * linkGBs(g.Nodes[l.From].GPU)})
		}
	}
	return links
}

// bundles counts NVLinks: between pairs of GPUs, both ways, and from GPUs to the switches. Where the two ends of a bundle
// disagree the wider one counts: an end may be unreadable.
func (g *Graph) bundles() (direct map[[2]NodeID]int, toSwitch map[NodeID]int) {
	listed := map[[2]NodeID]int{}
	direct, toSwitch = map[[2]NodeID]int{}, map[NodeID]int{}
	for _, l := range g.NVLinks {
		switch {
		case l.To == NoNode:
		case g.Nodes[l.To].Type == NVS:
			toSwitch[l.From] += l.Count
		case g.Nodes[l.To].Type == GPU:
			listed[[2]NodeID{l.From, l.To}] += l.Count
		}
	}
	for p, n := range listed {
		back := [2]NodeID{p[1], p[0]}
		direct[p] = max(n, listed[back])
		direct[back] = direct[p]
	}
	return direct, toSwitch
}

// Path returns the best path between two nodes, by NCCL's rule: fewest links first, then the most bandwidth. NVLink leads
// through at most one other GPU, and nothing else leads through a GPU, a card or a port. A path between GPUs that crosses an
// Intel CPU has 5/6 of its bandwidth. DIS, without nodes, if there is none.
func (g *Graph) Path(a, b NodeID) Path {
	if !g.has(a) || !g.has(b) {
		return Path{Type: PathDIS}
	}
	return g.adjacency(g.Links()).paths(a)[b]
}

// Paths returns the best paths from a to every node, at its [NodeID].
func (g *Graph) Paths(a NodeID) []Path { return g.adjacency(g.Links()).paths(a) }

// PCIePath is like [Graph.Path] without NVLink and C2C: what remains when they don't serve, and what nvidia-smi shows besides
// NVLink.
func (g *Graph) PCIePath(a, b NodeID) Path {
	if !g.has(a) || !g.has(b) {
		return Path{Type: PathDIS}
	}
	return g.adjacency(g.pcieLinks()).paths(a)[b]
}

func (g *Graph) pcieLinks() []Link {
	return slices.DeleteFunc(g.Links(), func(l Link) bool { return l.Type == LinkNVL || l.Type == LinkC2C })
}

func (g *Graph) has(id NodeID) bool { return id >= 0 && int(id) < len(g.Nodes) }

// adjacency is a graph's links by node.
type adjacency struct {
	g    *Graph
	from [][]Link // A is the node
}

func (g *Graph) adjacency(links []Link) adjacency {
	adj := adjacency{g, make([][]Link, len(g.Nodes))}
	for _, l := range links {
		adj.from[l.A] = append(adj.from[l.A], l)
		adj.from[l.B] = append(adj.from[l.B], Link{l.B, l.A, l.Type, l.GBs})
	}
	return adj
}

// paths is a breadth-first search: level by level, so that a node's path is settled when the search goes on from it.
func (adj adjacency) paths(a NodeID) []Path {
	nodes := adj.g.Nodes
	best := make([]step, len(nodes))
	for i := range best {
		best[i] = step{NoNode, -1, 0, PathDIS}
	}
	best[a] = step{NoNode, 0, localGBs, PathLOC}
	for level, next := []NodeID{a}, []NodeID(nil); len(level) > 0; level, next = next, nil {
		for _, at := range level {
			here := best[at]
			for _, l := range adj.from[at] {
				if at != a && !passes(nodes, at, l, here) {
					continue
				}
				to := step{at, here.hops + 1, min(here.gbs, l.GBs), here.over(nodes, l)}
				old := best[l.B]
				switch {
				case old.hops < 0:
					next = append(next, l.B)
				case old.hops < to.hops || old.gbs > to.gbs || old.gbs == to.gbs && old.kind <= to.kind:
					continue
				}
				best[l.B] = to
			}
		}
	}
	paths := make([]Path, len(nodes))
	for i := range paths {
		paths[i] = Path{Type: best[i].kind, GBs: best[i].gbs}
		for at := NodeID(i); best[i].hops >= 0 && at != NoNode; at = best[at].back {
			paths[i].Nodes = append(paths[i].Nodes, at)
		}
		slices.Reverse(paths[i].Nodes)
		if paths[i].betweenGPUsOverIntel(nodes) {
			paths[i].GBs /= p2pOverIntel
		}
	}
	return paths
}

func (p Path) betweenGPUsOverIntel(nodes []Node) bool {
	n := len(p.Nodes)
	return n > 2 && (p.Type == PathPHB || p.Type == PathSYS) && nodes[p.Nodes[0]].Type == GPU && nodes[p.Nodes[n-1]].Type == GPU &&
		slices.ContainsFunc(p.Nodes, func(id NodeID) bool { return nodes[id].Type == CPU && nodes[id].CPU.isIntel() })
}

// passes reports whether a search that came to a node may go on over a link.
func passes(nodes []Node, at NodeID, l Link, s step) bool {
	switch nodes[at].Type {
	case GPU:
		return l.Type == LinkNVL && nodes[l.B].Type == GPU && s.hops == 1 && nodes[s.back].Type == GPU
	case NET:
		return false
	case NIC:
		return nodes[l.B].Type == NET || nodes[l.A].Parent == l.B
	}
	return true
}

// step is the best way to a node so far.
type step struct {
	back NodeID
	hops int // -1: none yet
	gbs  float64
	kind PathType
}

// over is the type of the path that goes on over one more link.
func (s step) over(nodes []Node, l Link) PathType {
	a, b := nodes[l.A].Type, nodes[l.B].Type
	kind := PathLOC
	switch l.Type {
	case LinkNVL:
		kind = PathNVL
		if a == GPU && b == GPU && s.hops == 1 {
			kind = PathNVB
		}
	case LinkC2C:
		kind = PathC2C
		if a == CPU && s.kind == PathPHB {
			return PathP2C
		}
	case LinkPCI:
		switch {
		case a == CPU && s.kind == PathC2C:
			kind = PathP2C
		case a == CPU || b == CPU:
			kind = PathPHB
		case a == PCI && b == PCI:
			kind = PathPXB
		default:
			kind = PathPIX
		}
	case LinkSYS:
		kind = PathSYS
	}
	return max(s.kind, kind)
}
