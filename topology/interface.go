package topology

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Interface is one network interface of a host, as far as choosing one needs to know it.
type Interface struct {
	Name         string
	Addrs        []netip.Prefix // in the kernel's order; IPv4 never in IPv6 form, link-local IPv6 without zone
	Up           bool           // administratively
	Running      bool           // has a carrier
	Loopback     bool
	PointToPoint bool
}

// Interfaces returns this host's interfaces in the kernel's order.
func Interfaces() ([]Interface, error) {
	live, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	all := make([]Interface, 0, len(live))
	for _, l := range live {
		i := Interface{
			Name:         l.Name,
			Up:           l.Flags&net.FlagUp != 0,
			Running:      l.Flags&net.FlagRunning != 0,
			Loopback:     l.Flags&net.FlagLoopback != 0,
			PointToPoint: l.Flags&net.FlagPointToPoint != 0,
		}
		addrs, err := l.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list addresses of network interface %s: %w", l.Name, err)
		}
		for _, a := range addrs {
			if p, ok := prefixOf(a); ok {
				i.Addrs = append(i.Addrs, p)
			}
		}
		all = append(all, i)
	}
	return all, nil
}

func prefixOf(a net.Addr) (netip.Prefix, bool) {
	n, ok := a.(*net.IPNet)
	if !ok {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	addr = addr.Unmap()
	ones, bits := n.Mask.Size()
	if bits == 0 {
		return netip.Prefix{}, false // a mask with holes
	}
	if addr.Is4() && bits == 128 {
		ones -= 96
	}
	p := netip.PrefixFrom(addr, ones)
	return p, p.IsValid()
}

// Owner returns the interface that has addr, whatever its zone.
func Owner(ifaces []Interface, addr netip.Addr) (Interface, bool) {
	addr = addr.Unmap().WithZone("")
	for _, i := range ifaces {
		for _, p := range i.Addrs {
			if p.Addr() == addr {
				return i, true
			}
		}
	}
	return Interface{}, false
}

// LeadingTo fills in Toward and Route: where the first of some roots is that the kernel has a route to, each "host:port". A name that does not
// resolve yet may do so later, and is passed over.
func (q Query) LeadingTo(roots []string, ifaces []Interface) Query {
	for _, root := range roots {
		// A UDP "connection" sends nothing; it asks the kernel for the route.
		conn, err := (&net.Dialer{Timeout: time.Second}).Dial("udp", root)
		if err != nil {
			continue
		}
		local, remote := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr(), conn.RemoteAddr().(*net.UDPAddr).AddrPort().Addr()
		conn.Close()
		q.Toward = remote
		if i, ok := Owner(ifaces, local); ok {
			q.Route = i.Name
		}
		break
	}
	return q
}
