package comm

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/transport/tcp"
)

// TestUC53_SocketsOfRails: a bond's first address has a socket for each member, and further rails have theirs.
func TestUC53_SocketsOfRails(t *testing.T) {
	at := listenAt{addr: netip.MustParseAddr("10.0.0.1"), rails: []topology.Rail{
		{Name: "bond0", Addr: netip.MustParsePrefix("10.0.0.1/24"), Flows: 2}, {Name: "eth1", Addr: netip.MustParsePrefix("10.1.0.1/24"), Flows: 1},
	}}
	require.Equal(t, tcp.Config{Addr: at.addr, Flows: 2, Rails: []tcp.Rail{{Addr: netip.MustParsePrefix("10.1.0.1/24"), Flows: 1}}}, at.sockets())
	for range 20 {
		at.rails = append(at.rails, topology.Rail{Addr: netip.MustParsePrefix("10.2.0.1/24"), Flows: 64})
	}
	most := at.sockets()
	require.Len(t, most.Rails, 15)
	require.Equal(t, 16, most.Rails[14].Flows)
	require.Equal(t, tcp.Config{Addr: at.addr}, listenAt{addr: at.addr}.sockets())
}
