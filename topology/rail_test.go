package topology

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUC53_RailsAndFlows: every device that is as good as the chosen one is used, and a bond of two by two flows.
func TestUC53_RailsAndFlows(t *testing.T) {
	iface := func(name string, addrs ...string) Interface {
		i := Interface{Name: name, Up: true, Running: true, Loopback: name == "lo"}
		for _, a := range addrs {
			i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
		}
		return i
	}
	down := iface("eth9", "10.9.0.1/24")
	down.Running = false
	bond := func(mode string, members ...string) *BondFacts {
		return &BondFacts{Mode: Known(mode), Policy: Known("layer3+4"), Members: Known(members)}
	}
	ifaces := []Interface{
		iface("lo", "127.0.0.1/8"), iface("eth0", "10.0.0.1/24"), iface("eth1", "10.1.0.1/24", "2001:db8:1::1/64"), iface("eth2", "10.0.0.9/24"),
		iface("eth3", "10.3.0.1/24"), iface("docker0", "172.17.0.1/16"), iface("wg0", "10.7.0.1/24"), iface("eth4", "fe80::1/64"), iface("eth5", "10.5.0.1/32"),
		down, iface("bond0", "10.8.0.1/24"), iface("bond1", "10.10.0.1/24"),
	}
	nets := []NetFacts{
		{Name: "eth0", Mbps: Known(25000)}, {Name: "eth1", Mbps: Known(25000)}, {Name: "eth2", Mbps: Known(25000)}, {Name: "eth3", Mbps: Known(1000)},
		{Name: "eth4", Mbps: Known(25000)}, {Name: "eth5", Mbps: Known(25000)}, {Name: "bond0", Mbps: Known(50000), Bond: bond("802.3ad", "a", "b")},
		{Name: "bond1", Mbps: Known(25000), Bond: bond("active-backup", "c", "d")},
	}
	names := func(rails []Rail) (all []string) {
		for _, r := range rails {
			all = append(all, r.Name)
		}
		return all
	}
	choose := func(q Query) Choice {
		c, err := Choose(ifaces, q)
		require.NoError(t, err)
		return c
	}
	c := choose(Query{})
	require.Equal(t, "eth0", c.Interface.Name)
	use, dropped := Rails(ifaces, nets, Query{}, c)
	require.Equal(t, []string{"eth0", "eth1", "bond0", "bond1"}, names(use))
	require.Equal(t, []int{1, 1, 2, 1}, []int{use[0].Flows, use[1].Flows, use[2].Flows, use[3].Flows})
	require.Equal(t, netip.MustParsePrefix("10.1.0.1/24"), use[1].Addr)
	require.Equal(t, []Reason{
		"lo: it is loopback, which ranks on other hosts cannot reach",
		"eth2: it is in a network that another one is in, and the kernel would send to it by that one",
		"eth3: 1000 Mbit/s is less than half of the fastest's 50000",
		"docker0: it is a container bridge, pair or tunnel", "wg0: it is a VPN or point-to-point link",
		"eth4: it has no routable address of the family, in a network", "eth5: it has no routable address of the family, in a network",
		"eth9: it has no carrier",
	}, dropped)

	filter, err := ParseFilter("=eth1,bond0")
	require.NoError(t, err)
	q := Query{Filter: filter}
	use, _ = Rails(ifaces, nets, q, choose(q))
	require.Equal(t, []string{"eth1", "bond0"}, names(use))

	// Nothing is known of speeds, as in a container: all are of a kind, unless only some are known.
	use, _ = Rails(ifaces, nil, q, choose(q))
	require.Equal(t, []string{"eth1", "bond0"}, names(use))
	use, dropped = Rails(ifaces, nets[:2], q, choose(q))
	require.Equal(t, []string{"eth1"}, names(use))
	require.Contains(t, dropped, Reason("bond0: its speed or that of eth1 is not known"))

	// One host alone, or a container's bridge.
	filter, err = ParseFilter("docker")
	require.NoError(t, err)
	q = Query{Filter: filter}
	use, dropped = Rails(ifaces, nets, q, choose(q))
	require.Equal(t, []string{"docker0"}, names(use))
	require.Len(t, dropped, 1)
}
