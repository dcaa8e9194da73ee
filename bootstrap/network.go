package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// Network is how sessions and roots reach each other. The zero Network is TCP of this host; tests give one in memory. Both
// functions must be safe for concurrent use, and their errors should wrap the operating system's, as those of package net do:
// "connection refused" is retried, and "address already in use" is looked into.
type Network struct {
	// Dial connects to "host:port"; host may be a name.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Listen listens at "host:port"; port 0 lets the network choose.
	Listen func(ctx context.Context, address string) (net.Listener, error)
}

// keepAlive notices a host that was cut off, when nothing else is on the way, in about five seconds.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3}

func (n Network) orTCP() Network {
	if n.Dial == nil {
		d := &net.Dialer{KeepAliveConfig: keepAlive}
		n.Dial = func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
	}
	if n.Listen == nil {
		l := &net.ListenConfig{KeepAliveConfig: keepAlive}
		n.Listen = func(ctx context.Context, address string) (net.Listener, error) { return l.Listen(ctx, "tcp", address) }
	}
	return n
}

// PortRange limits the ports that sessions and roots listen at, for hosts whose firewall opens only some. The zero range lets
// the kernel choose.
type PortRange struct{ Low, High uint16 }

func (r PortRange) check() error {
	if r.Low > r.High || r.Low == 0 && r.High != 0 {
		return fmt.Errorf("port range %d-%d: want low-high with 1 ≤ low ≤ high", r.Low, r.High)
	}
	return nil
}

// listen listens at host, at the first free port of the range, of which up to need are wanted on one host.
func (r PortRange) listen(ctx context.Context, n Network, host string, need int) (net.Listener, error) {
	if r == (PortRange{}) {
		return n.Listen(ctx, net.JoinHostPort(host, "0"))
	}
	for port := int(r.Low); port <= int(r.High); port++ {
		ln, err := n.Listen(ctx, net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return ln, err
		}
	}
	have := int(r.High) - int(r.Low) + 1
	return nil, fmt.Errorf("the port range has %d ports, need up to %d, one for each rank on this host and one for the root: all of %d-%d at %q are taken: %w",
		have, need, r.Low, r.High, host, syscall.EADDRINUSE)
}

// bindError adds to an "address already in use" who holds the port.
func bindError(address string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		who := "by a process that cannot be seen from here"
		if _, port, e := net.SplitHostPort(address); e == nil {
			if n, e := strconv.ParseUint(port, 10, 16); e == nil {
				if h := portHolder(uint16(n)); h != "" {
					who = h
				}
			}
		}
		return fmt.Errorf("listen at %s: the port is held by %s: %w", address, who, err)
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("listen at %s: this is no address of this host; is rank 0 on the host that was meant? %w", address, err)
	}
	return fmt.Errorf("listen at %s: %w", address, err)
}

// addrPortOf returns a connection's or listener's address.
func addrPortOf(a net.Addr) (netip.AddrPort, error) {
	if a == nil {
		return netip.AddrPort{}, errors.New("no address")
	}
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address %q: %w", a, err)
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}

// addrSize is the length of an address on the wire: IPv6 (IPv4 in its mapped form) and the port, big-endian, without zone.
const addrSize = 18

func appendAddr(b []byte, a netip.AddrPort) []byte {
	ip := a.Addr().As16()
	b = append(b, ip[:]...)
	return append(b, byte(a.Port()>>8), byte(a.Port()))
}

// parseAddr reads addrSize bytes. Zone is the local interface for a link-local address: a scope has no meaning elsewhere.
func parseAddr(b []byte, zone string) netip.AddrPort {
	ip := netip.AddrFrom16([16]byte(b[:16])).Unmap()
	if ip.Is6() && ip.IsLinkLocalUnicast() {
		ip = ip.WithZone(zone)
	}
	return netip.AddrPortFrom(ip, uint16(b[16])<<8|uint16(b[17]))
}
