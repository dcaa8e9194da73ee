package comm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/transport"
)

// Path is how we reach a rank.
type Path struct {
	Rank      int
	Transport string
	Reason    string // why this transport
	Place     string // host and process

	// Topology is what the hosts' topologies say of it, GPU memory included: how the two should reach each other, and why. What can
	// be proven goes before it.
	Topology topology.TransportChoice
}

// Paths returns the path to every other rank, in order.
func (c *Comm) Paths() []Path {
	var out []Path
	for r, w := range c.world {
		if r == c.rank {
			continue
		}
		to := c.family.routes[w]
		p := Path{Rank: r, Transport: to.endpoint.Name(), Reason: to.reason, Place: to.place}
		if c.family.places != nil {
			p.Topology = c.family.places.way(c.world[c.rank], w)
		}
		out = append(out, p)
	}
	return out
}

// Way is by what a call on GPU memory gets to the other ranks.
type Way string

const (
	WayFused   Way = "fused"   // kernels and copies of one process, whose ranks all have GPUs here
	WayLinked  Way = "linked"  // kernels of processes with a GPU each, over the links between these
	WayProxied Way = "proxied" // the host's memory, over Paths
)

// Way says which way a call takes; "" for one on host memory, on another GPU than Config.Device, or where some rank has none.
func (c *Comm) Way(call Call) Way {
	own, d := c.family.device, call.memory().Device
	switch {
	case own == nil, own.Device.Device() != d:
		return ""
	case call.crosses(c):
		return WayLinked
	case c.proxy != nil:
		return WayProxied
	case c.gpu != nil:
		return WayFused
	}
	return ""
}

// pathSummary says how many ranks are reached by which transport.
func (c *Comm) pathSummary() string {
	n := map[string]int{}
	for r, w := range c.world {
		if r != c.rank {
			n[c.family.routes[w].endpoint.Name()]++
		}
	}
	var parts []string
	for name, k := range n {
		parts = append(parts, fmt.Sprintf("%s×%d", name, k))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// Site is where a communicator's ranks are, and what follows from that. All ranks decide alike.
type Site struct {
	Places []topology.Place // by rank; empty with the transport "mem" and for one rank alone
	// Orders are, for each channel, the order in which rings, chains and trees pass through the ranks, but where sums are promised to be in
	// the order of numbers. At least one. The rounds of a long message are dealt out to channels.
	Orders [][]int
	// CPUs are those near our GPU, or near our network port, that this process may run on. The communicator pins nothing: gccl run --pin
	// does, or the program.
	CPUs topology.Pinning
}

// Site may be called by anyone. The graphs in it are shared: read them only.
func (c *Comm) Site() Site {
	s := Site{}
	for _, order := range c.lineup.orders {
		s.Orders = append(s.Orders, slices.Clone(order))
	}
	p := c.family.places
	if p == nil {
		return s
	}
	for _, w := range c.world {
		s.Places = append(s.Places, p.of[w])
	}
	me := s.Places[c.rank]
	at := me.GPU
	if at == topology.NoNode {
		at = me.NIC.Net
	}
	if me.Graph != nil {
		s.CPUs = me.Graph.Pin(at, topology.Known(topology.CPUSetOf(processors()...)))
	}
	return s
}

// Crowded reports whether there are more ranks on our host than processors for them, so that waiting yields at once.
func (c *Comm) Crowded() bool { return c.family.crowded }

// Stats are counters since New, and what is held now.
type Stats struct {
	Calls      uint64                     // calls begun on this communicator
	Bytes      uint64                     // of their larger buffers
	PlanBytes  int                        // held by cached plans
	Transports map[string]transport.Stats // of the endpoints, which communicators split from one another share
}

// Memory is what is held, in bytes, without memory from Alloc.
func (s Stats) Memory() int64 {
	m := int64(s.PlanBytes)
	for _, t := range s.Transports {
		m += t.Memory
	}
	return m
}

// Stats may be called by anyone.
func (c *Comm) Stats() Stats {
	s := Stats{Transports: map[string]transport.Stats{}}
	c.mu.Lock()
	s.Calls, s.Bytes = c.calls, c.bytes
	c.mu.Unlock()
	c.plans.mu.Lock()
	s.PlanBytes = c.plans.bytes
	c.plans.mu.Unlock()
	for _, e := range c.family.live() {
		s.Transports[e.Name()] = e.Stats()
	}
	return s
}
