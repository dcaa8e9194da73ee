package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Check reports the first thing in g that can't be: a parent that is no node before it or of a type that has no children of
// this one, details that are missing, links to what isn't there, words that are none of those there are. Graphs that this package makes pass.
func (g *Graph) Check() error {
	count := map[NodeType]int{}
	for i := range g.Nodes {
		count[g.Nodes[i].Type]++
	}
	if len(g.Nodes) > maxNodes || count[GPU] > maxDevices || count[CPU] > maxCPUs {
		return fmt.Errorf("the topology has %d nodes, of them %d GPUs and %d CPUs; want at most %d, %d and %d",
			len(g.Nodes), count[GPU], count[CPU], maxNodes, maxDevices, maxCPUs)
	}
	busIDs := map[string]bool{}
	for i := range g.Nodes {
		if err := g.checkNode(NodeID(i)); err != nil {
			return fmt.Errorf("node %d of the topology: %w", i, err)
		}
		if b := g.Nodes[i].Bus; b != nil {
			if busIDs[b.ID] {
				return fmt.Errorf("node %d of the topology: bus id %s stands twice", i, b.ID)
			}
			busIDs[b.ID] = true
		}
	}
	is := func(id NodeID, types ...NodeType) bool {
		return id >= 0 && int(id) < len(g.Nodes) && slices.Contains(types, g.Nodes[id].Type)
	}
	for i, l := range g.NVLinks {
		if !is(l.From, GPU) || l.To != NoNode && !is(l.To, GPU, NVS, CPU) || l.From == l.To {
			return fmt.Errorf("NVLink %d of the topology goes from node %d to node %d; want a GPU and another GPU, NVS or CPU", i, l.From, l.To)
		}
		if target, err := ParseBusID(l.Target); err != nil || target != l.Target {
			return fmt.Errorf("NVLink %d of the topology: target %q; want a bus id like 0000:17:00.0", i, l.Target)
		}
		if l.Count < 0 || l.Count > maxNVLinks {
			return fmt.Errorf("NVLink %d of the topology is a bundle of %d; want 0 to %d", i, l.Count, maxNVLinks)
		}
	}
	for i, p := range g.P2P {
		if !is(p.A, GPU) || !is(p.B, GPU) {
			return fmt.Errorf("P2P status %d of the topology is of nodes %d and %d; want GPUs", i, p.A, p.B)
		}
		if err := checkWord("status", p.Status, p2pWords); err != nil {
			return fmt.Errorf("P2P status %d of the topology: %w", i, err)
		}
	}
	if g.IOMMU == "" {
		return nil
	}
	if err := checkWord("iommu", g.IOMMU, iommuWords); err != nil {
		return fmt.Errorf("the topology: %w", err)
	}
	return nil
}

// The words there are. Where nothing is known of an IOMMU, of ACS or of what a port speaks, there is none.
var (
	p2pWords = []P2PStatus{
		P2POK, P2PChipsetNotSupported, P2PGPUNotSupported, P2PTopologyNotSupported, P2PNotSupported, P2PDisabledByRegKey, P2PUnknown,
	}
	iommuWords = []IOMMU{IOMMUOff, IOMMUPassthrough, IOMMUTranslate}
	acsWords   = []ACSState{ACSOff, ACSRedirect}
	netWords   = []NetKind{InfiniBand, RoCE, Ethernet}
)

// checkWord is an error for a word that is none of the admitted ones: whoever reads it would take it for one of them, or for nothing.
func checkWord[T ~string](field string, word T, admitted []T) error {
	if slices.Contains(admitted, word) {
		return nil
	}
	var want []string
	for _, a := range admitted {
		want = append(want, string(a))
	}
	return fmt.Errorf("%s=%q; want one of %s", field, shorten(string(word)), strings.Join(want, ", "))
}

// Bounds for files from strangers, well above what any host has: NVLinks of a GPU (18), depth of a PCI tree, nodes (some
// hundreds), GPUs or cards in a matrix (32), NUMA nodes (Linux ends at 1024).
const (
	maxNVLinks = 1024
	maxDepth   = 64
	maxNodes   = 8192
	maxDevices = 256
	maxCPUs    = 1024
)

var parentsOf = map[NodeType][]NodeType{GPU: {PCI, CPU}, PCI: {PCI, CPU}, NIC: {PCI, CPU}, NET: {NIC}}

func (g *Graph) checkNode(id NodeID) error {
	n := &g.Nodes[id]
	parents, hasParent := parentsOf[n.Type]
	switch {
	case n.Type == CPU || n.Type == NVS:
		if n.Parent != NoNode {
			return fmt.Errorf("%s has a parent", n.Type)
		}
	case !hasParent:
		return fmt.Errorf("type %q is unknown", n.Type)
	case n.Parent < 0 || n.Parent >= id:
		return fmt.Errorf("parent %d is no node before it", n.Parent)
	case !slices.Contains(parents, g.Nodes[n.Parent].Type):
		return fmt.Errorf("a %s below a %s", n.Type, g.Nodes[n.Parent].Type)
	}
	if n.Type == CPU && n.CPU == nil {
		return fmt.Errorf("CPU without its details")
	}
	if (n.Type == GPU || n.Type == PCI) && n.Bus == nil {
		return fmt.Errorf("%s without a bus", n.Type)
	}
	if d := n.CPU; d != nil && (d.NUMA < -1 || d.Family < 0 || d.Model < 0) {
		return fmt.Errorf("NUMA node %d, family %d, model %d", d.NUMA, d.Family, d.Model)
	}
	if d := n.Net; d != nil && (d.Name == "" || d.Port < 0 || d.Mbps < 0 || d.MaxConn < 0) {
		return fmt.Errorf("network port %q: port %d of %d Mbit/s, %d connections", d.Name, d.Port, d.Mbps, d.MaxConn)
	}
	if d := n.Net; d != nil && d.Kind != "" {
		if err := checkWord("kind", d.Kind, netWords); err != nil {
			return fmt.Errorf("network port %q: %w", d.Name, err)
		}
	}
	if n.GPU != nil {
		for _, c := range n.GPU.C2C {
			if c.MBs < 0 || c.Count < 0 || c.Count > maxNVLinks {
				return fmt.Errorf("C2C of %d links of %d MB/s", c.Count, c.MBs)
			}
		}
	}
	if n.Bus != nil {
		canonical, err := ParseBusID(n.Bus.ID)
		if err != nil {
			return err
		}
		if canonical != n.Bus.ID {
			return fmt.Errorf("bus id %s; want %s", n.Bus.ID, canonical)
		}
		if n.Bus.Width < 0 || n.Bus.Width > 32 || n.Bus.GTs < 0 || n.Bus.GTs > 1024 {
			return fmt.Errorf("PCI link of %v GT/s and %d lanes", n.Bus.GTs, n.Bus.Width)
		}
		if n.Bus.ACS != "" {
			if err := checkWord("acs", n.Bus.ACS, acsWords); err != nil {
				return fmt.Errorf("%s: %w", n.Bus.ID, err)
			}
		}
	}
	return nil
}
