package tcp

import (
	"fmt"
	"net/netip"
)

// Rail is a further way to other hosts, beside Config.Addr.
type Rail struct {
	// Addr is the address of another device of this host, of Config.Addr's family, with the length of its network: peers that have a
	// rail in the same network are reached over it.
	Addr netip.Prefix
	// Flows is the number of sockets of a connection on this way, 1 to 16, as Config.Flows. Zero: 1.
	Flows int
}

// validate returns the rail with its defaults.
func (r Rail) validate(first netip.Addr) (Rail, error) {
	if r.Flows == 0 {
		r.Flows = 1
	}
	a := r.Addr.Addr()
	switch {
	case !r.Addr.IsValid() || !railAddr(a) || a == first:
		return r, fmt.Errorf("tcp config: Rails has the address %v, want another one of this host that peers can reach, with the length of its network", r.Addr)
	case a.Is4() != first.Is4():
		return r, fmt.Errorf("tcp config: Rails has the address %v, want one of the family of %v", r.Addr, first)
	case r.Flows < 1 || r.Flows > maxFlows:
		return r, fmt.Errorf("tcp config: Rails has %d flows at %v, want 1 to %d", r.Flows, r.Addr, maxFlows)
	}
	return r, nil
}

func railAddr(a netip.Addr) bool {
	return !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLinkLocalUnicast() && !a.IsLoopback()
}

const (
	maxFlows = 16 // of a connection
	maxRails = 15
)

// railAt is a rail with the port that it listens at.
type railAt struct {
	Rail
	port uint16
}

// way is where one socket of a connection goes.
type way struct {
	from netip.Addr
	to   netip.AddrPort
	rail bool // not the first address
}

// ways returns where the sockets of a connection to a peer go, in turn over the first addresses of both and every network in which both
// have a rail, as many on each as either end wants. Both ends come to the same number. Of a rank on this host the rails are ours, and not used.
func (a address) ways(peer address) []way {
	first := way{a.at.Addr(), peer.from(a.at.Addr()), false}
	kinds, wanted := []way{first}, []int{max(1, a.flows, peer.flows)}
	for _, ours := range a.rails {
		for _, theirs := range peer.rails {
			if ours.Addr.Masked() == theirs.Addr.Masked() && ours.Addr.Addr() != theirs.Addr.Addr() {
				kinds = append(kinds, way{ours.Addr.Addr(), netip.AddrPortFrom(theirs.Addr.Addr(), theirs.port), true})
				wanted = append(wanted, max(ours.Flows, theirs.Flows))
				break
			}
		}
	}
	var ways []way
	for turn := 0; ; turn++ {
		before := len(ways)
		for k := range kinds {
			if wanted[k] > turn && len(ways) < maxFlows {
				ways = append(ways, kinds[k])
			}
		}
		if len(ways) == before {
			return ways
		}
	}
}
