package tcp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// address is what peers learn from the bootstrap:
//
//	"gccl-tcp" 8 | version 1 | instance 8 | flows 1 | port 2 | bits 1 | IP 4 or 16
//	for each rail: flows 1 | port 2 | bits 1 | IP 4 or 16
//
// Bits are of the network that an address is in, plus one and for IPv6 plus 64; of the first address all are.
//
// It has no zone: the zone of a link-local address is the name of an interface of
// whoever dials.
type address struct {
	at       netip.AddrPort
	instance uint64 // random; tells an endpoint from an earlier one on the port
	flows    int    // sockets to a peer's at; 0: 1
	rails    []railAt
}

const (
	addressMagic   = "gccl-tcp"
	addressVersion = 2
	addressPrefix  = len(addressMagic) + 1 + 8
)

func (a address) bytes() []byte {
	b := append([]byte(addressMagic), addressVersion)
	b = binary.BigEndian.AppendUint64(b, a.instance)
	at := a.at.Addr().Unmap().WithZone("")
	b = appendRail(b, railAt{Rail{netip.PrefixFrom(at, at.BitLen()), a.flows}, a.at.Port()})
	for _, r := range a.rails {
		b = appendRail(b, r)
	}
	return b
}

// six marks the length of an IPv6 network.
const six = 64

func appendRail(b []byte, r railAt) []byte {
	bits := r.Addr.Bits() + 1
	if r.Addr.Addr().Is6() {
		bits += six
	}
	b = append(b, byte(r.Flows))
	b = binary.BigEndian.AppendUint16(b, r.port)
	return append(append(b, byte(bits)), r.Addr.Addr().AsSlice()...)
}

// parseRail reads what appendRail wrote from the beginning of b.
func parseRail(b []byte) (r railAt, rest []byte, err error) {
	if len(b) < 4 {
		return r, nil, fmt.Errorf("tcp: address that ends with % x", b)
	}
	r.Flows, r.port = int(b[0]), binary.BigEndian.Uint16(b[1:])
	bits, size := int(b[3])-1, 4
	if bits > 32 {
		bits, size = bits-six, 16
	}
	if len(b) < 4+size {
		return r, nil, fmt.Errorf("tcp: address that ends with % x", b)
	}
	ip, _ := netip.AddrFromSlice(b[4 : 4+size])
	r.Addr = netip.PrefixFrom(ip, bits)
	if r.port == 0 || r.Flows > maxFlows || !r.Addr.IsValid() || ip.IsUnspecified() || ip.IsMulticast() || ip.Is4In6() {
		return r, nil, fmt.Errorf("tcp: address with IP % x, a network of %d bits, %d flows and port %d, which is none", b[4:4+size], bits, r.Flows, r.port)
	}
	return r, b[4+size:], nil
}

func parseAddress(b []byte) (address, error) {
	if len(b) < addressPrefix || string(b[:len(addressMagic)]) != addressMagic {
		return address{}, fmt.Errorf("tcp: %q is not the address of a tcp endpoint", b)
	}
	if v := b[len(addressMagic)]; v != addressVersion {
		return address{}, fmt.Errorf("tcp: address of version %d, we know %d: all ranks must run the same release", v, addressVersion)
	}
	a := address{instance: binary.BigEndian.Uint64(b[len(addressMagic)+1:])}
	first, b, err := parseRail(b[addressPrefix:])
	if err != nil {
		return address{}, err
	}
	if !first.Addr.IsSingleIP() {
		return address{}, fmt.Errorf("tcp: address %v, want one without a network", first.Addr)
	}
	a.at, a.flows = netip.AddrPortFrom(first.Addr.Addr(), first.port), first.Flows
	for len(b) > 0 {
		var r railAt
		if r, b, err = parseRail(b); err != nil {
			return address{}, err
		}
		if len(a.rails) == maxRails || !railAddr(r.Addr.Addr()) {
			return address{}, fmt.Errorf("tcp: address with a rail at %v behind %d others, which is none", r.Addr, len(a.rails))
		}
		a.rails = append(a.rails, r)
	}
	return a, nil
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
