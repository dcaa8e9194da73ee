package comm

import (
	"maps"

	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs"
)

// openRDMA opens the RDMA ports that the configuration names, or else that the topology chooses.
func (f *family) openRDMA(mine hello, at listenAt) (transport.Endpoint, error) {
	cfg, r := f.cfg, f.cfg.RDMA
	r.Addr, r.Ports, r.ConnectTimeout, r.Log = at.addr, [2]uint16{cfg.Ports.Low, cfg.Ports.High}, cfg.InitTimeout, f.log
	r.Fallback = !cfg.NoRDMAFallback
	if r.Devices == nil {
		var err error
		if r.Devices, err = f.rdmaDevices(mine); err != nil {
			return nil, err
		}
	}
	if cfg.RDMAPin && r.Near == nil {
		r.Near = func(device string, port int) []int { return nearPort(f.graph, device, port, processors()) }
	}
	r.Slot = cfg.slot()
	return verbs.Open(r, f.options())
}

// slot is how much memory a short piece of a message takes, which is pinned for every connection.
func (c Config) slot() int {
	if c.RDMA.Slot == 0 && c.Size > 4 {
		return 16 << 10
	}
	return c.RDMA.Slot
}

// joinRDMA opens an endpoint of RDMA for the ranks on other hosts that are best reached by it, with "auto", and returns its address. Without
// one they are reached by TCP, which is also what a connection falls back to that turns out not to work.
func (f *family) joinRDMA(self int, mine hello, at listenAt) []byte {
	if f.cfg.Transport != "auto" || f.cfg.NoRDMA || !f.places.byRDMA(self, mine.Ports != "") {
		return nil
	}
	var e transport.Endpoint
	err := verbs.MayPin(f.pinned(self))
	if err == nil {
		e, err = f.openRDMA(mine, at)
	}
	if err != nil {
		f.log.Warn("no RDMA, TCP instead", "reason", err)
		return nil
	}
	f.attach(e)
	return e.Address()
}

// pinned is how much memory connections with all ranks on other hosts take: one that cannot be made is an error.
func (f *family) pinned(self int) int64 {
	r := f.cfg.RDMA
	r.Slot = f.cfg.slot()
	each, all := r.Pinned(f.cfg.Lanes), int64(0)
	for _, at := range f.places.of {
		if at.Host != f.places.of[self].Host {
			all += each
		}
	}
	return all
}

// byRDMA reports whether any rank is best reached by RDMA. A device that is on no bus is software, and slower than TCP: it is used where
// it was named.
func (p *places) byRDMA(self int, named bool) bool {
	at := p.of[self]
	if at.Graph == nil || at.NIC.Net == topology.NoNode || !named && at.Graph.Software(at.NIC.Net) {
		return false
	}
	for r := range p.of {
		if topology.NoRDMA(at, p.of[r]) == "" {
			return true
		}
	}
	return false
}

// withRDMA is what all told, with the addresses of those who opened an endpoint of RDMA after that.
func (t *told) withRDMA(cfg Config, addresses [][]byte) (*told, error) {
	m, err := cfg.modelOf(verbs.Name)
	if err != nil {
		return nil, err
	}
	more := *t
	more.hellos = append([]hello(nil), t.hellos...)
	for r, a := range addresses {
		if len(a) == 0 {
			continue
		}
		h := &more.hellos[r]
		h.Addresses, h.Model = with(h.Addresses, verbs.Name, a), with(h.Model, verbs.Name, m)
	}
	return &more, nil
}

// with is a copy of m with one entry more.
func with[V any](m map[string]V, key string, v V) map[string]V {
	c := map[string]V{key: v}
	maps.Copy(c, m)
	return c
}

// rdmaDevices is which devices and ports this rank uses: what the configuration names, or else the one that the topology chooses for its GPU,
// or for its host memory; nil, which leaves it to the transport, where the topology knows of none, or of none with a place: those of
// Soft-RoCE are near nothing.
func (f *family) rdmaDevices(mine hello) (func(device string, port int) bool, error) {
	if filter, err := topology.ParseFilter(f.cfg.RDMADevice); err != nil || filter.IsSet() {
		return filter.Match, err
	}
	p, err := newPlaces([]hello{mine})
	if err != nil {
		return nil, err
	}
	at := p.of[0]
	if at.NIC.Net == topology.NoNode || at.Graph.Nodes[at.NIC.Net].Net == nil {
		return nil, nil
	}
	nic := at.Graph.Nodes[at.NIC.Net].Net
	if nic.Sockets() || at.Graph.Software(at.NIC.Net) {
		return nil, nil
	}
	f.log.Debug("RDMA device", "device", nic.Name, "port", nic.Port, "reasons", at.NIC.Reasons)
	return func(device string, port int) bool { return device == nic.Name && port == nic.Port }, nil
}

// nearPort is the processors near an RDMA port, of those that this process may use; none if the topology does not know the port.
func nearPort(g *topology.Graph, device string, port int, may []int) []int {
	for _, id := range g.Nets() {
		if n := g.Nodes[id].Net; n != nil && n.Name == device && n.Port == port {
			return g.Pin(id, topology.Known(topology.CPUSetOf(may...))).CPUs.List()
		}
	}
	return nil
}
