package topology

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Graph returns the host as a graph: NUMA nodes that have CPUs or devices, the GPUs and network cards, and the switches above
// them.
//
// A device is as fast as the slower of itself and the port above it, at its most. One whose NUMA node nobody gives hangs on the
// only node there is, or else on one of its own (-1), far from everything, since a guess would make it look near. Ports
// that can't be used are there, with the reason. If there are RDMA devices a RoCE port's network device is not a second port.
func (h *Host) Graph() *Graph {
	b := &hostGraph{h: h, g: &Graph{IOMMU: h.IOMMU.Or("")}, cpus: map[int]NodeID{}, at: map[string]NodeID{}, devices: map[string]*PCIFacts{}}
	pci := h.PCI.Or(nil)
	for i := range pci {
		b.devices[pci[i].Bus] = &pci[i]
	}
	ports, cards := b.ports()
	b.addCPUs()
	driven := map[string]*GPUFacts{}
	for i, f := range h.GPUs.Or(nil) {
		if id, err := ParseBusID(f.Bus); err == nil {
			driven[id] = &h.GPUs.value[i]
		}
	}
	for i := range pci {
		d := &pci[i]
		switch {
		case driven[d.Bus] != nil || driven[d.Bus] == nil && len(driven) == 0 && d.isGPU():
			id := b.add(Node{Type: GPU, Parent: b.parent(d), Bus: b.bus(d)}, d.Bus)
			b.g.Nodes[id].GPU = b.gpu(driven[d.Bus])
		case slices.Contains(cards, d.Bus):
			b.add(Node{Type: NIC, Parent: b.parent(d), Bus: b.bus(d)}, d.Bus)
		}
	}
	for _, bus := range slices.Sorted(maps.Keys(driven)) {
		if _, placed := b.at[bus]; !placed { // /sys hides it
			b.add(Node{Type: GPU, Parent: b.cpu(b.numa(&PCIFacts{})), Bus: &Bus{ID: bus}, GPU: b.gpu(driven[bus])}, bus)
		}
	}
	b.addPorts(ports)
	b.addNVLinks(driven)
	return b.g
}

func (b *hostGraph) gpu(f *GPUFacts) *GPUDetails {
	if f == nil {
		return nil
	}
	way, _ := ChooseGDR(f.DMABuf, b.h.PeerMemory)
	return &GPUDetails{Dev: f.Dev, Rank: -1, SM: f.SM, UUID: f.UUID, Fabric: f.Fabric, GDR: way != NoGDR}
}

// isGPU goes by class and vendor: many boards have a display controller that is no GPU for computing.
func (d *PCIFacts) isGPU() bool {
	class, vendor := d.Class.Or(""), d.Vendor.Or("")
	switch {
	case strings.HasPrefix(class, "0x0302"), strings.HasPrefix(class, "0x0380"), strings.HasPrefix(class, "0x1200"):
		return vendor == "0x10de" || vendor == "0x1002" || vendor == "0x8086"
	case strings.HasPrefix(class, "0x0300"):
		return vendor == "0x10de" || vendor == "0x1002"
	}
	return false
}

type hostGraph struct {
	h       *Host
	g       *Graph
	cpus    map[int]NodeID // by NUMA node
	at      map[string]NodeID
	devices map[string]*PCIFacts
}

func (b *hostGraph) add(n Node, bus string) NodeID {
	b.g.Nodes = append(b.g.Nodes, n)
	id := NodeID(len(b.g.Nodes) - 1)
	if bus != "" {
		b.at[bus] = id
	}
	return id
}

func (b *hostGraph) addCPUs() {
	for _, n := range b.h.CPU.Nodes.Or(nil) {
		if n.CPUs.Or(nil).Len() > 0 {
			b.cpu(n.ID)
		}
	}
	if len(b.cpus) == 0 {
		b.cpu(0)
	}
}

// cpu returns the node for a NUMA node. Where the host shows none it is node 0 with all CPUs.
func (b *hostGraph) cpu(numa int) NodeID {
	if id, ok := b.cpus[numa]; ok {
		return id
	}
	c := b.h.CPU
	d := &CPUDetails{NUMA: numa, Arch: c.Arch.Or(""), Vendor: c.Vendor.Or(""), Family: c.Family.Or(0), Model: c.Model.Or(0)}
	for _, n := range c.Nodes.Or(nil) {
		if n.ID == numa {
			d.CPUs = n.CPUs.Or(nil)
		}
	}
	if !c.Nodes.known {
		d.CPUs = c.Online.Or(nil)
	}
	b.cpus[numa] = b.add(Node{Type: CPU, Parent: NoNode, CPU: d}, "")
	return b.cpus[numa]
}

// numa is the node of a device, or of the nearest port above it that knows.
func (b *hostGraph) numa(d *PCIFacts) int {
	if n, ok := d.NUMA.Get(); ok {
		return n
	}
	above := d.Above.Or(nil)
	for i := len(above) - 1; i >= 0; i-- {
		if p := b.devices[above[i]]; p != nil && p.NUMA.known {
			return p.NUMA.value
		}
	}
	only, count := -1, 0
	for n := range b.cpus {
		if n >= 0 {
			only, count = n, count+1
		}
	}
	if count == 1 {
		return only
	}
	return -1
}

// parent returns the node above a device. A switch is a port towards the root and ports away from it; it stands in the graph by
// the former, so every second port above a device, counted from the device, is a switch.
func (b *hostGraph) parent(d *PCIFacts) NodeID {
	at := b.cpu(b.numa(d))
	above := d.Above.Or(nil)
	for i := len(above) % 2; i+1 < len(above); i += 2 {
		bus := above[i]
		if id, ok := b.at[bus]; ok {
			at = id
			continue
		}
		port := b.devices[bus]
		if port == nil {
			continue
		}
		at = b.add(Node{Type: PCI, Parent: at, Bus: b.bus(port)}, bus)
	}
	return at
}

func (b *hostGraph) bus(d *PCIFacts) *Bus {
	bus := &Bus{
		ID: d.Bus, Class: d.Class.Or(""), Vendor: d.Vendor.Or(""), Device: d.Device.Or(""),
		SubsystemVendor: d.SubsystemVendor.Or(""), SubsystemDevice: d.SubsystemDevice.Or(""), Bridge: d.Bridge.Or(""),
		GTs: d.MaxGTs.Or(d.GTs.Or(0)), Width: d.MaxWidth.Or(d.Width.Or(0)),
	}
	above := d.Above.Or(nil)
	if len(above) == 0 {
		return bus
	}
	bus.Port = above[len(above)-1]
	if p := b.devices[bus.Port]; p != nil {
		bus.GTs = slower(bus.GTs, p.MaxGTs.Or(0))
		bus.Width = slower(bus.Width, p.MaxWidth.Or(0))
		if a, ok := p.ACS.Get(); ok {
			bus.ACS = a.State()
		}
	}
	return bus
}

// slower is the smaller of the two that are known.
func slower[T cmp.Ordered](a, b T) T {
	var unknown T
	if a == unknown || b != unknown && b < a {
		return b
	}
	return a
}

// port is one to be.
type port struct {
	bus string // "" for a virtual card
	net *NetDetails
}

// ports returns the network ports of the host, and the cards on PCI that have them.
func (b *hostGraph) ports() (ports []port, cards []string) {
	taken := map[string]bool{}
	for _, d := range b.h.RDMA.Or(nil) {
		for _, p := range d.Ports {
			n := &NetDetails{Name: d.Name, Port: p.Number, Mbps: p.Mbps.Or(0), GUID: d.CardGUID.Or(""), Kind: p.kind(), Subnet: p.Subnet.Or(""), Down: p.down()}
			n.GDR = !d.Software
			ports = append(ports, port{d.Bus.Or(""), n})
			if p.NetDevice.known {
				taken[p.NetDevice.value] = true
			}
		}
	}
	for _, d := range b.h.Nets.Or(nil) {
		if !d.Bus.known || taken[d.Name] || d.Type.Or(1) != 1 {
			continue
		}
		n := &NetDetails{Name: d.Name, Mbps: d.Mbps.Or(0), Kind: Ethernet}
		if !d.Up() {
			n.Down = fmt.Sprintf("%s is %s", d.Name, d.State)
		}
		ports = append(ports, port{d.Bus.value, n})
	}
	for _, p := range ports {
		if p.bus != "" && b.devices[p.bus] != nil {
			cards = append(cards, p.bus)
		}
	}
	return ports, cards
}

// addPorts numbers the ports by kind, then by place, as NCCL does by place alone.
func (b *hostGraph) addPorts(ports []port) {
	rank := func(p port) int { return btoi(p.net.Kind == Ethernet) }
	slices.SortStableFunc(ports, func(p, q port) int {
		return cmp.Or(rank(p)-rank(q), len(p.bus)-len(q.bus), cmp.Compare(p.bus, q.bus), p.net.Port-q.net.Port)
	})
	for i, p := range ports {
		p.net.Dev = i
		card, ok := b.at[p.bus]
		if !ok {
			card = b.add(Node{Type: NIC, Parent: b.cpu(b.numa(&PCIFacts{}))}, "")
		}
		if b.g.Nodes[card].Type == NIC {
			b.add(Node{Type: NET, Parent: card, Net: p.net}, "")
		}
	}
}

func (p PortFacts) kind() NetKind {
	switch p.Layer.Or("") {
	case "InfiniBand":
		return InfiniBand
	case "Ethernet":
		return RoCE
	}
	return ""
}

// down is why a port can't be used. An InfiniBand port does not need its network device (IPoIB) to be up.
func (p PortFacts) down() string {
	if state, ok := p.State.Get(); ok && state != "ACTIVE" {
		return fmt.Sprintf("%s port %d is %s", p.Device, p.Number, state)
	}
	if layer, ok := p.Layer.Get(); ok && layer != "InfiniBand" && layer != "Ethernet" {
		return fmt.Sprintf("%s port %d has the link layer %q, which gccl doesn't speak", p.Device, p.Number, shorten(layer)) // EFA
	}
	return ""
}

func (b *hostGraph) addNVLinks(driven map[string]*GPUFacts) {
	nvs := NoNode
	for _, from := range b.g.GPUs() {
		f := driven[b.g.Nodes[from].Bus.ID]
		if f == nil {
			continue
		}
		for _, l := range f.NVLinks {
			target, err := ParseBusID(l.Target)
			if err != nil {
				continue
			}
			link := NVLink{from, NoNode, target, l.Count, lower(l.Class)}
			if strings.HasPrefix(link.Class, "0x068000") {
				if nvs == NoNode {
					nvs = b.add(Node{Type: NVS, Parent: NoNode}, "")
				}
				link.To = nvs
			} else if to, ok := b.at[target]; ok && to != from && b.g.Nodes[to].Type == GPU {
				link.To = to
			}
			b.g.NVLinks = append(b.g.NVLinks, link)
		}
		for peer, status := range f.P2P {
			if to := b.g.ByBus(peer); to > from && b.g.Nodes[to].Type == GPU {
				b.g.P2P = append(b.g.P2P, P2P{from, to, status})
			}
		}
	}
	slices.SortFunc(b.g.P2P, func(p, q P2P) int { return cmp.Or(int(p.A-q.A), int(p.B-q.B)) })
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
