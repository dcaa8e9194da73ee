package topology

import (
	"cmp"
	"maps"
)

// Merge places the devices of a host as a topology file says, as NCCL does with NCCL_TOPO_FILE: in virtual machines the file
// knows better than the firmware. Place, NUMA node and link speeds are the file's, what the devices are is the host's. Devices
// that the host doesn't have are left out, and those that the file doesn't name stay where the host has them; the reasons say
// so. A file that names none of the host's GPUs and network cards is of another machine, and the host is returned as it is.
func Merge(file, host *Graph) (*Graph, []Reason) {
	m := &merger{file: file, host: host, g: &Graph{IOMMU: host.IOMMU}, at: map[string]NodeID{}, cpus: map[int]NodeID{}, moved: map[NodeID]NodeID{}}
	common := 0
	for i := range file.Nodes {
		if id := m.twin(NodeID(i)); id != NoNode {
			common++
		}
	}
	if common == 0 {
		return host, []Reason{"the topology file names no GPU or network card of this host: it is ignored"}
	}
	m.needed()
	for i := range file.Nodes {
		m.fromFile(NodeID(i))
	}
	for i := range host.Nodes {
		if n := &host.Nodes[i]; n.Type == GPU || n.Type == NIC {
			if _, done := m.moved[NodeID(i)]; !done {
				m.why = append(m.why, because("the topology file doesn't name %s, which stays where the host has it", host.Name(NodeID(i))))
				m.moved[NodeID(i)] = m.fromHost(NodeID(i))
			}
		}
	}
	for i := range host.Nodes {
		if n := host.Nodes[i]; n.Type == NET || n.Type == NVS {
			if n.Type == NET {
				n.Parent = m.moved[n.Parent]
			}
			m.moved[NodeID(i)] = m.add(n)
		}
	}
	m.links()
	return m.g, m.why
}

type merger struct {
	file, host, g *Graph
	at            map[string]NodeID // in g, by bus id
	cpus          map[int]NodeID    // in g, by NUMA node
	moved         map[NodeID]NodeID // from host to g
	keep          []bool            // nodes of the file with a device of the host at or below them
	placed        []NodeID          // from file to g
	why           []Reason
}

func (m *merger) add(n Node) NodeID {
	m.g.Nodes = append(m.g.Nodes, n)
	id := NodeID(len(m.g.Nodes) - 1)
	if n.Bus != nil {
		m.at[n.Bus.ID] = id
	}
	return id
}

// twin is the host's GPU or card at the bus id of a node of the file.
func (m *merger) twin(id NodeID) NodeID {
	if b := m.file.Nodes[id].Bus; b != nil {
		if h := m.host.ByBus(b.ID); h != NoNode && (m.host.Nodes[h].Type == GPU || m.host.Nodes[h].Type == NIC) {
			return h
		}
	}
	return NoNode
}

func (m *merger) needed() {
	m.keep, m.placed = make([]bool, len(m.file.Nodes)), make([]NodeID, len(m.file.Nodes))
	for i := len(m.file.Nodes) - 1; i >= 0; i-- {
		n := &m.file.Nodes[i]
		m.keep[i] = m.keep[i] || n.Type == CPU || m.twin(NodeID(i)) != NoNode
		if m.keep[i] && n.Parent != NoNode {
			m.keep[n.Parent] = true
		}
	}
}

func (m *merger) fromFile(id NodeID) {
	n := m.file.Nodes[id]
	twin := m.twin(id)
	switch {
	case n.Type == CPU:
		if same, ok := m.cpus[n.CPU.NUMA]; ok {
			m.placed[id] = same
			return
		}
		d := *n.CPU
		if d.CPUs == nil {
			d.CPUs = m.hostCPUs(d.NUMA)
		}
		n.CPU = &d
		m.placed[id] = m.add(n)
		m.cpus[d.NUMA] = m.placed[id]
		return
	case !m.keep[id] && (n.Type == GPU || n.Type == NIC):
		m.why = append(m.why, because("the topology file names %s, which this host doesn't have", n.where()))
		return
	case !m.keep[id] || n.Parent == NoNode || n.Type == NET:
		return
	}
	n.Parent = m.placed[n.Parent]
	if twin != NoNode {
		h := m.host.Nodes[twin]
		n = Node{Type: h.Type, Parent: n.Parent, Bus: n.Bus.filled(h.Bus), GPU: h.GPU}
	}
	m.placed[id] = m.add(n)
	if twin != NoNode {
		m.moved[twin] = m.placed[id]
	}
}

func (n Node) where() string {
	if n.Bus != nil {
		return string(n.Type) + " " + n.Bus.ID
	}
	return "a virtual " + string(n.Type)
}

func (m *merger) hostCPUs(numa int) CPUSet {
	for _, c := range m.host.CPUs() {
		if m.host.Nodes[c].CPU.NUMA == numa {
			return m.host.Nodes[c].CPU.CPUs
		}
	}
	return nil
}

// fromHost adds a node of the host with what is above it there.
func (m *merger) fromHost(id NodeID) NodeID {
	n := m.host.Nodes[id]
	if n.Bus != nil {
		if at, ok := m.at[n.Bus.ID]; ok {
			return at
		}
	}
	if n.Type == CPU {
		if at, ok := m.cpus[n.CPU.NUMA]; ok {
			return at
		}
		m.cpus[n.CPU.NUMA] = m.add(n)
		return m.cpus[n.CPU.NUMA]
	}
	n.Parent = m.fromHost(n.Parent)
	return m.add(n)
}

// filled is b with what it doesn't know taken from the host's.
func (b Bus) filled(h *Bus) *Bus {
	b.Class, b.Vendor, b.Device = cmp.Or(h.Class, b.Class), cmp.Or(h.Vendor, b.Vendor), cmp.Or(h.Device, b.Device)
	b.SubsystemVendor, b.SubsystemDevice = cmp.Or(h.SubsystemVendor, b.SubsystemVendor), cmp.Or(h.SubsystemDevice, b.SubsystemDevice)
	b.GTs, b.Width = cmp.Or(b.GTs, h.GTs), cmp.Or(b.Width, h.Width)
	b.Bridge, b.Port, b.ACS = h.Bridge, h.Port, h.ACS
	b.Extra = maps.Clone(b.Extra)
	return &b
}

// links takes the host's NVLinks, or the file's where the host's are not known.
func (m *merger) links() {
	for _, l := range m.host.NVLinks {
		l.From = m.moved[l.From]
		if to, ok := m.moved[l.To]; ok {
			l.To = to
		} else {
			l.To = NoNode
		}
		m.g.NVLinks = append(m.g.NVLinks, l)
	}
	for _, p := range m.host.P2P {
		m.g.P2P = append(m.g.P2P, P2P{m.moved[p.A], m.moved[p.B], p.Status})
	}
	if len(m.host.NVLinks) > 0 {
		return
	}
	nvs := NoNode
	for _, l := range m.file.NVLinks {
		if m.twin(l.From) == NoNode {
			continue
		}
		l.From = m.moved[m.twin(l.From)]
		switch {
		case l.To == NoNode:
		case m.file.Nodes[l.To].Type == NVS:
			if nvs == NoNode {
				nvs = m.add(Node{Type: NVS, Parent: NoNode})
			}
			l.To = nvs
		case m.file.Nodes[l.To].Type == GPU && m.twin(l.To) != NoNode:
			l.To = m.moved[m.twin(l.To)]
		case m.file.Nodes[l.To].Type == CPU:
			l.To = m.placed[l.To]
		default:
			l.To = NoNode
		}
		if l.To == NoNode || m.g.Nodes[l.From].Type == GPU {
			m.g.NVLinks = append(m.g.NVLinks, l)
		}
	}
}
