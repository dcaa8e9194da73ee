package comm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gccl-project/gccl/transport"
)

// Path is how we reach a rank.
type Path struct {
	Rank      int
	Transport string
	Reason    string // why this transport
	Place     string // host and process
}

// Paths returns the path to every other rank, in order.
func (c *Comm) Paths() []Path {
	var out []Path
	for r, w := range c.world {
		if r == c.rank {
			continue
		}
		to := c.family.routes[w]
		out = append(out, Path{Rank: r, Transport: to.endpoint.Name(), Reason: to.reason, Place: to.place})
	}
	return out
}

// pathSummary says how many ranks are reached by which transport.
func (c *Comm) pathSummary() string {
	n := map[string]int{}
	for _, p := range c.Paths() {
		n[p.Transport]++
	}
	var parts []string
	for name, k := range n {
		parts = append(parts, fmt.Sprintf("%s×%d", name, k))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
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
	for _, e := range c.family.endpoints {
		s.Transports[e.Name()] = e.Stats()
	}
	return s
}
