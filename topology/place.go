package topology

// Place is where a rank is, as all ranks of its job know it.
type Place struct {
	Host  string    // the same for all ranks of a host, such as its boot id
	Graph *Graph    // the host; nil: nothing is known of it
	GPU   NodeID    // NoNode: host memory
	CPU   NodeID    // the NUMA node that has all CPUs that the process may use; NoNode: they are of several, or not known
	NIC   NICChoice // the port for its messages to other hosts
}

// NUMA returns the NUMA node that has all of some CPUs, or NoNode.
func (g *Graph) NUMA(cpus CPUSet) NodeID {
	for _, id := range g.CPUs() {
		if n := cpus.Len(); n > 0 && g.Nodes[id].CPU.CPUs.And(cpus).Len() == n {
			return id
		}
	}
	return NoNode
}

// ByUUID returns the GPU with the driver's UUID, or NoNode.
func (g *Graph) ByUUID(uuid string) NodeID {
	for _, id := range g.GPUs() {
		if d := g.Nodes[id].GPU; d != nil && d.UUID != "" && d.UUID == uuid {
			return id
		}
	}
	return NoNode
}

// Between chooses how two ranks reach each other. On one host as [Graph.Transport] says for their GPUs, else through shared memory.
// On different hosts over a common NVLink fabric, by RDMA between GPU memories where both GPUs are close enough to their ports, by RDMA
// through host memory, or by TCP, also where nothing is known of a host.
func Between(a, b Place, l Levels) TransportChoice {
	if a.Host == b.Host {
		return onOneHost(a, b, l)
	}
	if a.Graph != nil && b.Graph != nil && a.GPU != NoNode && b.GPU != NoNode {
		x, y := a.Graph.Nodes[a.GPU].GPU, b.Graph.Nodes[b.GPU].GPU
		if x != nil && y != nil && x.Fabric.Joins(y.Fabric) {
			return TransportChoice{Kind: OverNVLink, Reasons: []Reason{because("both GPUs are in the NVLink fabric %s", x.Fabric.Cluster)}}
		}
	}
	if why := NoRDMA(a, b); why != "" {
		return TransportChoice{Kind: OverTCP, Reasons: []Reason{why}}
	}
	c := TransportChoice{Kind: OverRDMA}
	for _, p := range []Place{a, b} {
		if why := p.withoutGDR(l); why != "" {
			c.Reasons = append(c.Reasons, why)
		}
	}
	if len(c.Reasons) == 0 {
		c.Kind = OverGDR
		c.Reasons = []Reason{because("%s is at %s, %s at %s", a.Graph.Name(a.NIC.Net), a.NIC.Path.Type, b.Graph.Name(b.NIC.Net), b.NIC.Path.Type)}
	}
	if x, y := a.subnet(), b.subnet(); x != y && x != "" && y != "" { // no reason for TCP: there are networks whose every port is a subnet
		c.Reasons = append(c.Reasons, because("caution: %s of the one is in the subnet %s, %s of the other in %s: "+
			"without a router between them RDMA fails, and TCP takes its place", a.Graph.Name(a.NIC.Net), x, b.Graph.Name(b.NIC.Net), y))
	}
	return c
}

// subnet is that of a rank's port, "" if it is not known.
func (p Place) subnet() string {
	if d := p.Graph.Nodes[p.NIC.Net].Net; d != nil {
		return d.Subnet
	}
	return ""
}

func onOneHost(a, b Place, l Levels) TransportChoice {
	if a.Graph == nil || b.Graph == nil || a.GPU == NoNode || b.GPU == NoNode {
		return TransportChoice{Kind: OverSHM, Reasons: []Reason{"they are on one host, and one of them is in host memory"}}
	}
	if a.Graph != b.Graph { // containers, each of which sees a part
		id := b.Graph.Nodes[b.GPU].Bus.ID
		if b.GPU = a.Graph.ByBus(id); b.GPU == NoNode || a.Graph.Nodes[b.GPU].Type != GPU {
			return TransportChoice{Kind: OverSHM, Reasons: []Reason{because("they are on one host, and one of them does not see the GPU %s of the other", id)}}
		}
	}
	if a.GPU == b.GPU {
		return TransportChoice{Kind: OverP2P, Path: a.Graph.Path(a.GPU, a.GPU), Reasons: []Reason{"they share a GPU"}}
	}
	return a.Graph.Transport(a.GPU, b.GPU, l)
}

// NoRDMA is why the ports of two ranks aren't to be used between them, through host memory: the ranks are on one host, or the ports can't speak
// RDMA to each other. Empty: they can.
func NoRDMA(a, b Place) Reason {
	switch {
	case a.Host == b.Host:
		return "they are on one host"
	case a.Graph == nil || b.Graph == nil:
		return "the topology of one of the hosts is not known"
	}
	var kinds []NetKind
	for _, p := range []Place{a, b} {
		if p.NIC.Net == NoNode {
			return because("one has no network port that is usable")
		}
		d := p.Graph.Nodes[p.NIC.Net].Net
		if d == nil {
			kinds = append(kinds, "")
			continue
		}
		if d.Sockets() {
			return because("%s has no RDMA", d.Name)
		}
		kinds = append(kinds, d.Kind)
	}
	if kinds[0] != kinds[1] && kinds[0] != "" && kinds[1] != "" {
		return because("one port is %s, the other %s", kinds[0], kinds[1])
	}
	return ""
}

// withoutGDR is why a rank's GPU memory goes through host memory.
func (p Place) withoutGDR(l Levels) Reason {
	if p.GPU == NoNode {
		return "one is in host memory"
	}
	gpu, net := p.Graph.Nodes[p.GPU].GPU, p.Graph.Nodes[p.NIC.Net].Net
	t := p.NIC.Path.Type
	switch {
	case gpu == nil || net == nil || !gpu.GDR || !net.GDR:
		return because("whether %s can reach the memory of %s is not known, or it can't", p.Graph.Name(p.NIC.Net), p.Graph.Name(p.GPU))
	case t != PathPXN && t != PathP2C && t > l.GDR:
		return because("%s is at %s from %s, and GPUDirect RDMA reaches to %s", p.Graph.Name(p.NIC.Net), t, p.Graph.Name(p.GPU), l.GDR)
	}
	return ""
}
