package topology

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// AddrSize is the length of an encoded address: 16 bytes of IPv6 (IPv4 in its mapped form) and the port, big-endian.
const AddrSize = 18

// EncodeAddr returns a in the form in which it goes to other hosts. The zone is left out: a scope means something only on the
// host that wrote it. It fails only for an invalid address.
func EncodeAddr(a netip.AddrPort) (b [AddrSize]byte, err error) {
	if !a.IsValid() {
		return b, fmt.Errorf("encode address: %v is not valid", a)
	}
	ip := a.Addr().As16()
	copy(b[:], ip[:])
	binary.BigEndian.PutUint16(b[16:], a.Port())
	return b, nil
}

// DecodeAddr reads what [EncodeAddr] wrote on another host. Zone is the local interface through which that host is reached;
// it becomes the zone of an IPv6 link-local address, which without it is an error, and is ignored for any other.
func DecodeAddr(b []byte, zone string) (netip.AddrPort, error) {
	if len(b) != AddrSize {
		return netip.AddrPort{}, fmt.Errorf("decode address: %d bytes instead of %d", len(b), AddrSize)
	}
	a := netip.AddrFrom16([16]byte(b[:16]))
	return rescope(netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[16:])), zone)
}

// FormatAddr returns a as "192.0.2.1:80" or "[2001:db8::1]:80", without zone, for other hosts to [ParseAddr].
func FormatAddr(a netip.AddrPort) string {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port()).String()
}

// ParseAddr reads "192.0.2.1:80", "[2001:db8::1]:80" or "[fe80::1]:80". Zone is as for [DecodeAddr]; a zone in the text is the
// writer's and is not used.
func ParseAddr(s, zone string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("parse address %q: want address:port, with IPv6 in brackets: %w", s, err)
	}
	return rescope(a, zone)
}

func rescope(a netip.AddrPort, zone string) (netip.AddrPort, error) {
	ip := a.Addr().Unmap().WithZone("")
	if ip.Is6() && ip.IsLinkLocalUnicast() {
		if zone == "" {
			return netip.AddrPort{}, fmt.Errorf("address %s is link-local: it needs the local interface through which to reach it", ip)
		}
		ip = ip.WithZone(zone)
	}
	return netip.AddrPortFrom(ip, a.Port()), nil
}
