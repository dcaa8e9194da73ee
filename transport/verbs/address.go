package verbs

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// address is what peers learn from the bootstrap:
//
//	"gccl-ibv" 8 | version 1 | link layer 1 | port 2 | instance 8 | IP 4 or 16
//
// It has no zone: the zone of a link-local address is the name of an interface of whoever dials.
type address struct {
	at       netip.AddrPort // where connections are set up
	link     ibv.LinkLayer
	instance uint64 // random; tells an endpoint from an earlier one on the port
}

const (
	addressMagic   = "gccl-ibv"
	addressVersion = 1
	addressPrefix  = len(addressMagic) + 1 + 1 + 2 + 8
	addressMost    = addressPrefix + 16
)

func (a address) bytes() []byte {
	b := append([]byte(addressMagic), addressVersion, byte(a.link))
	b = binary.BigEndian.AppendUint16(b, a.at.Port())
	b = binary.BigEndian.AppendUint64(b, a.instance)
	return append(b, a.at.Addr().WithZone("").AsSlice()...)
}

func parseAddress(b []byte) (address, error) {
	if len(b) < addressPrefix || string(b[:len(addressMagic)]) != addressMagic {
		return address{}, fmt.Errorf("verbs: %q is not the address of a verbs endpoint", b)
	}
	b = b[len(addressMagic):]
	if b[0] != addressVersion {
		return address{}, fmt.Errorf("verbs: address of version %d, we know %d: all ranks must run the same release", b[0], addressVersion)
	}
	ip, ok := netip.AddrFromSlice(b[12:])
	port := binary.BigEndian.Uint16(b[2:])
	if !ok || port == 0 || ip.IsUnspecified() || ip.IsMulticast() {
		return address{}, fmt.Errorf("verbs: address with IP % x and port %d, which is none", b[12:], port)
	}
	return address{at: netip.AddrPortFrom(ip.Unmap(), port), link: ibv.LinkLayer(b[1]), instance: binary.BigEndian.Uint64(b[4:])}, nil
}

// reachable says why an endpoint with the address ours cannot reach a.
func (a address) reachable(ours address) error {
	if ours.at.Addr().Is4() != a.at.Addr().Is4() {
		return fmt.Errorf("verbs: we listen on %v and the peer on %v: one is IPv4, the other IPv6", ours.at, a.at)
	}
	if ours.link != a.link {
		return fmt.Errorf("verbs: our RDMA port is %v, the peer's %v", ours.link, a.link)
	}
	return nil
}
