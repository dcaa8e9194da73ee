package topology

import (
	"slices"
	"strconv"
)

// Graph is one host: its CPUs, PCI switches, GPUs and network devices as a forest, and the NVLinks across it. It is plain data,
// which [ParseXML], [ParseMatrix], [ParseJSON], [Merge] and [Host.Graph] make, to which [Graph.ReadP2P] adds, and which
// everything else only reads; reading it from several goroutines is safe.
type Graph struct {
	Nodes   []Node   `json:"nodes"`
	NVLinks []NVLink `json:"nvlinks,omitempty"`
	P2P     []P2P    `json:"p2p,omitempty"`   // what the driver says of GPU pairs, where it was asked
	IOMMU   IOMMU    `json:"iommu,omitempty"` // "" unknown
}

// NodeID is a node's place in [Graph.Nodes].
type NodeID int32

// NoNode stands where there is no node.
const NoNode NodeID = -1

// NodeType is NCCL's word for what a node is.
type NodeType string

// CPU is a NUMA node, PCI a switch, NVS all NVSwitches of the host as one, NIC a card, NET one of its ports.
const (
	GPU NodeType = "GPU"
	PCI NodeType = "PCI"
	NVS NodeType = "NVS"
	CPU NodeType = "CPU"
	NIC NodeType = "NIC"
	NET NodeType = "NET"
)

// of returns the nodes of a type in the graph's order.
func (g *Graph) of(t NodeType) []NodeID {
	var ids []NodeID
	for i := range g.Nodes {
		if g.Nodes[i].Type == t {
			ids = append(ids, NodeID(i))
		}
	}
	return ids
}

// GPUs returns the GPUs: by the driver's number where every one has its own, else in the graph's order.
func (g *Graph) GPUs() []NodeID {
	return g.numbered(GPU, func(n *Node) int {
		if n.GPU == nil {
			return -1
		}
		return n.GPU.Dev
	})
}

// Nets returns the ports of network cards: by NCCL's number where every one has its own, else in the graph's order.
func (g *Graph) Nets() []NodeID {
	return g.numbered(NET, func(n *Node) int {
		if n.Net == nil {
			return -1
		}
		return n.Net.Dev
	})
}

func (g *Graph) numbered(t NodeType, number func(*Node) int) []NodeID {
	ids := g.of(t)
	seen := map[int]bool{}
	for _, id := range ids {
		n := number(&g.Nodes[id])
		if n < 0 || seen[n] {
			return ids
		}
		seen[n] = true
	}
	slices.SortFunc(ids, func(a, b NodeID) int { return number(&g.Nodes[a]) - number(&g.Nodes[b]) })
	return ids
}

// CPUs returns the NUMA nodes in the graph's order.
func (g *Graph) CPUs() []NodeID { return g.of(CPU) }

// ByBus returns the node at a bus id, in any case and with or without its domain, or NoNode.
func (g *Graph) ByBus(id string) NodeID {
	id, err := ParseBusID(id)
	if err != nil {
		return NoNode
	}
	for i := range g.Nodes {
		if b := g.Nodes[i].Bus; b != nil && b.ID == id {
			return NodeID(i)
		}
	}
	return NoNode
}

// CPUOf returns the NUMA node that a node hangs on, or NoNode.
func (g *Graph) CPUOf(id NodeID) NodeID {
	for id != NoNode && g.Nodes[id].Type != CPU {
		id = g.Nodes[id].Parent
	}
	return id
}

// Name returns what people call a node: GPU3, mlx5_0, CPU1 (CPU? if its number is not known), NVS, or its bus id.
func (g *Graph) Name(id NodeID) string {
	if id < 0 || int(id) >= len(g.Nodes) {
		return "nothing"
	}
	n := &g.Nodes[id]
	switch n.Type {
	case CPU:
		if n.CPU.NUMA < 0 {
			return "CPU?"
		}
		return "CPU" + strconv.Itoa(n.CPU.NUMA)
	case GPU:
		return "GPU" + strconv.Itoa(slices.Index(g.GPUs(), id))
	case NET:
		if n.Net != nil {
			return n.Net.Name
		}
		return g.Name(n.Parent)
	case NIC:
		if n.Bus != nil {
			return "NIC " + n.Bus.ID
		}
		return "NIC"
	case PCI:
		return "PCI " + n.Bus.ID
	}
	return string(n.Type)
}
