package tcp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// address is what peers learn from the bootstrap:
//
//	"gccl-tcp" 8 | version 1 | port 2 | instance 8 | IP 4 or 16
//
// It has no zone: the zone of a link-local address is the name of an interface of
// whoever dials.
type address struct {
	at       netip.AddrPort
	instance uint64 // random; tells an endpoint from an earlier one on the port
}

const (
	addressMagic   = "gccl-tcp"
	addressVersion = 1
	addressPrefix  = len(addressMagic) + 1 + 2 + 8
)

func (a address) bytes() []byte {
	b := append([]byte(addressMagic), addressVersion)
	b = binary.BigEndian.AppendUint16(b, a.at.Port())
	b = binary.BigEndian.AppendUint64(b, a.instance)
	return append(b, a.at.Addr().WithZone("").AsSlice()...)
}

func parseAddress(b []byte) (address, error) {
	if len(b) < addressPrefix || string(b[:len(addressMagic)]) != addressMagic {
		return address{}, fmt.Errorf("tcp: %q is not the address of a tcp endpoint", b)
	}
	b = b[len(addressMagic):]
	if b[0] != addressVersion {
		return address{}, fmt.Errorf("tcp: address of version %d, we know %d: all ranks must run the same release", b[0], addressVersion)
	}
	ip, ok := netip.AddrFromSlice(b[11:])
	port := binary.BigEndian.Uint16(b[1:])
	if !ok || port == 0 || ip.IsUnspecified() || ip.IsMulticast() {
		return address{}, fmt.Errorf("tcp: address with IP % x and port %d, which is none", b[11:], port)
	}
	return address{netip.AddrPortFrom(ip.Unmap(), port), binary.BigEndian.Uint64(b[3:])}, nil
}

// reachable says why an endpoint that listens on ours cannot dial a.
func (a address) reachable(ours netip.Addr) error {
	if ours.Is4() != a.at.Addr().Is4() {
		return fmt.Errorf("tcp: we listen on %v and the peer on %v: one is IPv4, the other IPv6", ours, a.at)
	}
	return nil
}

// from completes a with the zone of the interface that ours is on.
func (a address) from(ours netip.Addr) netip.AddrPort {
	if ip := a.at.Addr(); ip.Is6() && ip.IsLinkLocalUnicast() {
		return netip.AddrPortFrom(ip.WithZone(ours.Zone()), a.at.Port())
	}
	return a.at
}
