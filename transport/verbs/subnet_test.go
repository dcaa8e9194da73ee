//go:build linux && cgo

package verbs

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

func TestSubnetsOfAConnectionThatFailed(t *testing.T) {
	gid := func(a string) ibv.GID { return ibv.GID(netip.MustParseAddr(a).As16()) }
	local := []netip.Prefix{netip.MustParsePrefix("192.0.2.5/24"), netip.MustParsePrefix("198.51.100.5/25"), netip.MustParsePrefix("2001:db8::5/48")}
	for _, c := range []struct {
		link         ibv.LinkLayer
		ours, theirs string
		says         string
	}{
		{ibv.Ethernet, "192.0.2.5", "192.0.2.9", "192.0.2.5 and 192.0.2.9 are in one, 192.0.2.0/24"},
		{ibv.Ethernet, "198.51.100.5", "198.51.100.200", "198.51.100.200 is not in 198.51.100.0/25, where 198.51.100.5 is: "},
		{ibv.Ethernet, "192.0.2.5", "198.51.100.9", "198.51.100.9 is not in 192.0.2.0/24, where 192.0.2.5 is: for RDMA there has to be a router between them"},
		{ibv.Ethernet, "2001:db8::5", "2001:db8:0:1::9", "are in one, 2001:db8::/48"},
		{ibv.Ethernet, "203.0.113.1", "203.0.113.2", "203.0.113.1 and 203.0.113.2, in subnets that are not known here"},
		{ibv.Ethernet, "fe80::1", "fe80::2", "are in one, fe80::/64"},
		{ibv.InfiniBand, "fe80::1", "fec0:0:0:1::2", "fec0:0:0:1::2 is not in fe80::/64, where fe80::1 is"},
		{ibv.InfiniBand, "fec0:0:0:1::1", "fec0:0:0:1::2", "are in one, fec0:0:0:1::/64"},
	} {
		require.Contains(t, subnets(c.link, gid(c.ours), gid(c.theirs), local), c.says)
	}
	require.NotEmpty(t, localPrefixes())
}
