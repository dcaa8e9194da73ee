package verbs

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// address is what peers learn from the bootstrap:
//
//	"gccl-ibv" 8 | version 1 | link layer 1 | TCP port 2 | RDMA ports 1 | QPs of each 1 | instance 8 | IP 4 or 16
//
// It has no zone: the zone of a link-local address is the name of an interface of whoever dials.
type address struct {
	at       netip.AddrPort // where connections are set up
	link     ibv.LinkLayer
	ports    uint8  // of our devices
	qps      uint8  // on each
	instance uint64 // random; tells an endpoint from an earlier one on the port
}

const (
	addressMagic   = "gccl-ibv"
	addressVersion = 2
	addressPrefix  = len(addressMagic) + 1 + 1 + 2 + 2 + 8
	addressMost    = addressPrefix + 16
)

func (a address) bytes() []byte {
	b := append([]byte(addressMagic), addressVersion, byte(a.link))
	b = binary.BigEndian.AppendUint16(b, a.at.Port())
	b = append(b, a.ports, a.qps)
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
	ip, ok := netip.AddrFromSlice(b[14:])
	port := binary.BigEndian.Uint16(b[2:])
	if !ok || port == 0 || ip.IsUnspecified() || ip.IsMulticast() {
		return address{}, fmt.Errorf("verbs: address with IP % x and port %d, which is none", b[14:], port)
	}
	if b[4] < 1 || b[4] > portsMost || b[5] < 1 || b[5] > queuesMost {
		return address{}, fmt.Errorf("verbs: address with %d ports of %d QPs", b[4], b[5])
	}
	return address{ports: b[4], qps: b[5], at: netip.AddrPortFrom(ip.Unmap(), port), link: ibv.LinkLayer(b[1]), instance: binary.BigEndian.Uint64(b[6:])}, nil
}

// portsMost bounds how many ports an endpoint uses, and queuesMost how many QPs a connection has.
const (
	portsMost  = 8
	queuesMost = 64
)

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

// queues is how many QPs two ends have between them: as the one with more ports, and the one with more on each, wants.
func (a address) queues(peer address) int {
	return min(int(max(a.ports, peer.ports))*int(max(a.qps, peer.qps)), queuesMost)
}
