package topology

import (
	"fmt"
	"strconv"
)

func (m *matrix) graph() (*Graph, error) {
	self := make([]int, len(m.names))
	for i := range self {
		self[i] = i
	}
	bySwitch := m.clusters(pix, self)
	byTree := m.clusters(pxb, bySwitch)
	byBridge := m.clusters(phb, byTree)
	byCPU := m.clusters(node, byBridge)
	m.neighbours(byCPU)

	g := &Graph{}
	add := func(n Node) NodeID {
		g.Nodes = append(g.Nodes, n)
		return NodeID(len(g.Nodes) - 1)
	}
	bus := 0
	nextBus := func() string { bus++; return fmt.Sprintf("ffff:%02x:%02x.0", bus/32, bus%32) }
	cpus, switches := map[int]NodeID{}, map[[2]int]NodeID{}
	above := func(i int) (NodeID, string) {
		cpu, ok := cpus[byCPU[i]]
		if !ok {
			cpu = add(Node{Type: CPU, Parent: NoNode, CPU: m.cpu(byCPU, byCPU[i])})
			cpus[byCPU[i]] = cpu
		}
		bridge, at := "bridge"+strconv.Itoa(byBridge[i]), cpu
		for level, of := range [][]int{byTree, bySwitch} {
			if alone(of, i) && (level == 0 || alone(byTree, i)) {
				continue
			}
			if level == 0 && sameCluster(byTree, bySwitch, i) {
				continue // one switch alone
			}
			key := [2]int{level, of[i]}
			if _, ok := switches[key]; !ok {
				switches[key] = add(Node{Type: PCI, Parent: at, Bus: &Bus{ID: nextBus(), Class: "0x060400", Bridge: bridge}})
			}
			at = switches[key]
		}
		return at, bridge
	}
	ids := make([]NodeID, len(m.names))
	for i, name := range m.names {
		parent, bridge := above(i)
		b := &Bus{ID: nextBus(), Bridge: bridge}
		if i < m.gpus {
			b.Class = "0x030200"
			ids[i] = add(Node{Type: GPU, Parent: parent, Bus: b, GPU: &GPUDetails{Dev: i, Rank: -1}})
			continue
		}
		b.Class = "0x020000"
		ids[i] = add(Node{Type: NIC, Parent: parent, Bus: b})
		add(Node{Type: NET, Parent: ids[i], Net: &NetDetails{Name: name, Dev: i - m.gpus}})
	}
	m.addNVLinks(g, ids)
	adj := g.adjacency(g.pcieLinks())
	for i := range ids {
		paths := adj.paths(ids[i])
		for j := range i {
			if got := g.distance(ids[i], ids[j], paths[ids[j]].Type); m.far[i][j] != unknownDistance && got != m.far[i][j] {
				return nil, fmt.Errorf("%s and %s are said to be at %s, but what is said of the others makes it %s", m.names[j], m.names[i], m.far[i][j], got)
			}
		}
	}
	return g, g.Check()
}

// alone reports whether a device is its whole cluster.
func alone(of []int, i int) bool {
	n := 0
	for _, c := range of {
		if c == of[i] {
			n++
		}
	}
	return n == 1
}

// sameCluster reports whether a device's clusters of two levels have the same members.
func sameCluster(outer, inner []int, i int) bool {
	for j := range outer {
		if (outer[j] == outer[i]) != (inner[j] == inner[i]) {
			return false
		}
	}
	return true
}

func (m *matrix) cpu(of []int, cluster int) *CPUDetails {
	d := &CPUDetails{NUMA: -1}
	for i := range m.gpus {
		if of[i] == cluster {
			d.CPUs = d.CPUs.Or(m.cpus[i])
			if d.NUMA < 0 {
				d.NUMA = m.numa[i]
			}
		}
	}
	return d
}

// maxLinks is the most NVLinks that a GPU has, so far.
const maxLinks = 18

func (m *matrix) addNVLinks(g *Graph, ids []NodeID) {
	links, all := 0, m.gpus > 2
	for i := range m.gpus {
		for j := range m.gpus {
			if i == 0 {
				links += m.nv[0][j]
			}
			all = all && (i == j || m.nv[i][j] == m.nv[0][1])
		}
	}
	if all && links > maxLinks {
		g.Nodes = append(g.Nodes, Node{Type: NVS, Parent: NoNode})
		nvs := NodeID(len(g.Nodes) - 1)
		for i := range m.gpus {
			g.NVLinks = append(g.NVLinks, NVLink{ids[i], nvs, "ffff:ff:00.0", m.nv[0][1], "0x068000"})
		}
		return
	}
	for i := range m.gpus {
		for j := range m.gpus {
			if m.nv[i][j] > 0 {
				g.NVLinks = append(g.NVLinks, NVLink{ids[i], ids[j], g.Nodes[ids[j]].Bus.ID, m.nv[i][j], "0x030200"})
			}
		}
	}
}
