package topology

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// readHosts reads the rows of interfaces.tsv that list interfaces.
func readHosts(t *testing.T, path string) map[string][]Interface {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	hosts := map[string][]Interface{}
	for line := range strings.Lines(string(text)) {
		col := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") || len(col) < 3 {
			continue
		}
		list, _, _ := strings.Cut(col[1], " and ") // "… and IFNAME=ib9"
		var ifaces []Interface
		for item := range strings.SplitSeq(list, ";") {
			f := strings.Split(item, ",")
			if len(f) == 1 && strings.Contains(item, "resolves") {
				continue // says what the host's name resolves to
			}
			if len(f) == 2 { // lo,4,127.0.0.1 of the short form
				t.Fatalf("row %s: cannot read %q", col[0], item)
			}
			i := Interface{Name: f[0], Up: true, Running: true, Loopback: f[0] == "lo"}
			if len(f) > 3 {
				i.Up = strings.HasPrefix(f[3], "UP")
				i.Running = !strings.Contains(f[3], "no carrier")
				i.PointToPoint = strings.Contains(f[3], "ptp")
			}
			if !strings.Contains(f[0], "mlx5") && f[2] != "none" {
				p, err := netip.ParsePrefix(f[2])
				if err != nil {
					a, err := netip.ParseAddr(f[2])
					require.NoError(t, err, col[0])
					p = netip.PrefixFrom(a, map[bool]int{true: 24, false: 64}[a.Is4()])
				}
				i.Addrs = []netip.Prefix{p}
			}
			if len(ifaces) > 0 && ifaces[len(ifaces)-1].Name == i.Name {
				ifaces[len(ifaces)-1].Addrs = append(ifaces[len(ifaces)-1].Addrs, i.Addrs...)
				continue
			}
			ifaces = append(ifaces, i)
		}
		hosts[col[0]] = ifaces
	}
	return hosts
}

func filter(t *testing.T, s string) Filter {
	f, err := ParseFilter(s)
	require.NoError(t, err)
	return f
}

// What each row of interfaces.tsv asks for. An empty want is an error that holds every text of errs.
var wanted = map[string][]struct {
	filter   string
	toward   string
	sameHost bool
	want     string
	errs     []string
}{
	"docker0-first":         {{want: "eth0 192.0.2.11"}},
	"all-hosts-same-172.17": {{want: "ens3 192.0.2.12"}},
	"veth-linklocal":        {{want: "ib0 198.51.100.11"}},
	"ip6tnl-fe80":           {{want: "bond0 192.0.2.13"}},
	"lxcbr-tailscale":       {{want: "enp5s0 192.0.2.14"}},
	"vlan-prefix": {
		{filter: "bond0", want: "bond0.2973 192.0.2.15"},
		{filter: "=bond0", errs: []string{"bond0: it has no address"}},
	},
	"numbers-prefix": {
		{filter: "eth1", want: "eth1 192.0.2.16"},
		{filter: "eth1", toward: "198.51.100.1", want: "eth10 198.51.100.16"}, // takes both, so the subnet decides
		{filter: "=eth1", toward: "198.51.100.1", want: "eth1 192.0.2.16"},
	},
	"hca-prefix": {}, // TestUC15_HCAs
	"only-loopback": {
		{sameHost: true, want: "lo 127.0.0.1"},
		{toward: "127.0.0.1", want: "lo 127.0.0.1"},
		{filter: "lo", want: "lo 127.0.0.1"},
		{errs: []string{"lo: it is loopback"}},
		{toward: "192.0.2.1", errs: []string{"lo: it is loopback"}},
	},
	"ifname-missing":       {{filter: "ib9", errs: []string{"no interface matches ib9; have: eth0"}}},
	"hostname-to-loopback": {{toward: "127.0.1.1", want: "eth0 192.0.2.18"}},
	"ipv6-only-global":     {{want: "eth0 2001:db8::11"}},
	"macvlan-/32":          {{want: "net1 192.0.2.61"}},
}

func testHosts(t *testing.T, path string) {
	hosts := readHosts(t, path)
	require.Len(t, hosts, len(wanted), "every row has its expectation")
	for name, cases := range wanted {
		require.Contains(t, hosts, name)
		for _, c := range cases {
			t.Run(name+"/"+c.filter+c.toward, func(t *testing.T) {
				q := Query{Filter: filter(t, c.filter), SameHost: c.sameHost}
				if c.toward != "" {
					q.Toward = netip.MustParseAddr(c.toward)
				}
				got, err := Choose(hosts[name], q)
				if c.want == "" {
					require.ErrorIs(t, err, ErrNoInterface)
					for _, e := range c.errs {
						require.ErrorContains(t, err, e)
					}
					return
				}
				require.NoError(t, err)
				require.Equal(t, c.want, got.Interface.Name+" "+got.Addr.String())
				require.Len(t, got.Reasons, len(hosts[name])-1, "every other one has a reason: %q", got.Reasons)
				require.NotEmpty(t, got.Reason)
			})
		}
	}
}

func TestUC13_InterfaceChoice(t *testing.T) { testHosts(t, "testdata/interfaces.tsv") }

func TestUC13_InterfaceChoiceFromFixtures(t *testing.T) {
	dir := os.Getenv("GCCL_FIXTURES")
	if dir == "" {
		t.Skip("GCCL_FIXTURES is not set: no folder of recorded machines")
	}
	testHosts(t, filepath.Join(dir, "net", "interfaces.tsv"))
}

func iface(name string, addrs ...string) Interface {
	i := Interface{Name: name, Up: true, Running: true, Loopback: name == "lo"}
	for _, a := range addrs {
		i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
	}
	return i
}

func TestChoose(t *testing.T) {
	lo := iface("lo", "127.0.0.1/8", "::1/128")
	eth := iface("eth0", "fe80::2/64", "192.0.2.2/24", "2001:db8::2/64")
	ib := iface("ib0", "198.51.100.2/24")
	docker := iface("docker0", "172.17.0.1/16")
	wg := iface("wg0", "10.9.0.2/24")
	down := iface("eth5", "192.0.2.55/24")
	down.Up = false
	v6 := iface("eth6", "fe80::6/64", "2001:db8:6::6/64")
	local := iface("eth7", "fe80::7/64")

	tests := []struct {
		name   string
		ifaces []Interface
		query  Query
		want   string // "" for an error
		says   string // in the reasons or the error
	}{
		{"kernel order among equals", []Interface{lo, ib, eth}, Query{}, "ib0 198.51.100.2", "eth0: as good as ib0"},
		{"route wins", []Interface{lo, eth, ib}, Query{Toward: netip.MustParseAddr("203.0.113.9"), Route: "ib0"}, "ib0 198.51.100.2", "ib0 leads to the root"},
		{"route wins even over docker", []Interface{lo, eth, docker}, Query{Toward: netip.MustParseAddr("172.17.0.9"), Route: "docker0"}, "docker0 172.17.0.1", ""},
		{"a filter beats the route", []Interface{lo, eth, ib}, Query{Filter: Filter{items: []filterItem{{name: "eth"}}}, Toward: netip.MustParseAddr("198.51.100.9"), Route: "ib0"}, "eth0 192.0.2.2", "filter eth does not take it"},
		{"root on this host", []Interface{lo, eth, ib}, Query{Toward: netip.MustParseAddr("198.51.100.2"), Route: "lo"}, "ib0 198.51.100.2", ""},
		{"root on this host, v6", []Interface{lo, ib, eth}, Query{Toward: netip.MustParseAddr("2001:db8::2"), Route: "lo"}, "eth0 2001:db8::2", ""},
		{"root mapped", []Interface{lo, eth, ib}, Query{Toward: netip.MustParseAddr("::ffff:198.51.100.77")}, "ib0 198.51.100.2", "root's subnet"},
		{"root's family", []Interface{lo, ib, eth}, Query{Toward: netip.MustParseAddr("2001:db8:ffff::1")}, "eth0 2001:db8::2", "not of the root's family"},
		{"VPN after plain", []Interface{wg, eth}, Query{}, "eth0 192.0.2.2", "wg0: a VPN"},
		{"VPN before docker", []Interface{docker, wg}, Query{}, "wg0 10.9.0.2", "docker0: a container bridge"},
		{"docker before lo", []Interface{lo, docker}, Query{SameHost: true}, "docker0 172.17.0.1", "lo: loopback"},
		{"down", []Interface{down, ib}, Query{}, "ib0 198.51.100.2", "eth5: it is down"},
		{"asked for but down", []Interface{down, ib}, Query{Filter: Filter{items: []filterItem{{name: "eth5"}}}}, "", "eth5: it is down"},
		{"IPv4 before IPv6", []Interface{v6, ib}, Query{}, "ib0 198.51.100.2", "has an IPv4 address"},
		{"global before link-local", []Interface{local, v6}, Query{}, "eth6 2001:db8:6::6", "eth7: its address fe80::7 is link-local"},
		{"link-local when nothing else", []Interface{lo, local}, Query{}, "eth7 fe80::7%eth7", ""},
		{"route without address", []Interface{iface("eth9"), eth}, Query{Route: "eth9"}, "eth0 192.0.2.2", "eth9: it has no address"},
		{"none at all", nil, Query{}, "", "the host has none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Choose(tt.ifaces, tt.query)
			if tt.want == "" {
				require.ErrorIs(t, err, ErrNoInterface)
				require.ErrorContains(t, err, tt.says)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got.Interface.Name+" "+got.Addr.String())
			require.Contains(t, strings.Join(got.Reasons, "\n"), tt.says)
			for _, i := range tt.ifaces {
				if i.Name != got.Interface.Name {
					require.Contains(t, strings.Join(got.Reasons, "\n"), i.Name+": ")
				}
			}
		})
	}
}

func TestUC14_MissingInterfaceIsNamed(t *testing.T) {
	host := []Interface{iface("eth0", "192.0.2.2/24"), iface("lo", "127.0.0.1/8")}
	_, err := Choose(host, Query{Filter: filter(t, "nosuch0")})
	require.ErrorIs(t, err, ErrNoInterface)
	require.ErrorContains(t, err, "no interface matches nosuch0; have: eth0, lo")

	got, err := Choose(host, Query{Filter: filter(t, " eth0 , ")})
	require.NoError(t, err)
	require.Equal(t, "eth0", got.Interface.Name)
}

// TestUC22_NotUpYet: only what may still come up is worth waiting for.
func TestUC22_NotUpYet(t *testing.T) {
	down, bare, lo := iface("eth0", "192.0.2.2/24"), iface("eth1"), iface("lo", "127.0.0.1/8")
	down.Running = false
	for name, c := range map[string]struct {
		host  []Interface
		query Query
		wait  bool
	}{
		"no carrier":              {[]Interface{lo, down}, Query{}, true},
		"no address":              {[]Interface{lo, bare}, Query{}, true},
		"named, no carrier":       {[]Interface{lo, down}, Query{Filter: filter(t, "eth0")}, true},
		"loopback alone":          {[]Interface{lo}, Query{}, false},
		"the filter takes others": {[]Interface{lo, down}, Query{Filter: filter(t, "ib")}, false},
		"the filter takes none":   {[]Interface{lo, down}, Query{Filter: filter(t, "^eth")}, false},
	} {
		_, err := Choose(c.host, c.query)
		require.ErrorIs(t, err, ErrNoInterface, name)
		require.Equal(t, c.wait, errors.Is(err, ErrNotUp), "%s: %v", name, err)
	}
}

func TestUC16_ExcludingDockerKeepsLoopbackLast(t *testing.T) {
	eth, lo, docker := iface("eth0", "192.0.2.2/24"), iface("lo", "127.0.0.1/8"), iface("docker0", "172.17.0.1/16")
	for _, host := range [][]Interface{{lo, docker, eth}, {docker, eth, lo}, {eth, lo, docker}} {
		got, err := Choose(host, Query{Filter: filter(t, "^docker0"), SameHost: true})
		require.NoError(t, err)
		require.Equal(t, "eth0", got.Interface.Name)
	}
	got, err := Choose([]Interface{docker, lo}, Query{Filter: filter(t, "^docker0"), SameHost: true})
	require.NoError(t, err)
	require.Equal(t, "lo", got.Interface.Name)
	_, err = Choose([]Interface{docker, lo}, Query{Filter: filter(t, "^docker0")})
	require.ErrorContains(t, err, "lo: it is loopback")
}

func TestUC17_TunnelWithLinkLocalFirst(t *testing.T) {
	tunnel := iface("ip6tnl0", "fe80::1/64")
	got, err := Choose([]Interface{tunnel, iface("eth0", "fe80::9/64", "2001:db8::9/64")}, Query{})
	require.NoError(t, err)
	require.Equal(t, netip.MustParseAddr("2001:db8::9"), got.Addr)

	got, err = Choose([]Interface{tunnel, iface("eth0", "fe80::9/64")}, Query{})
	require.NoError(t, err)
	require.Equal(t, netip.MustParseAddr("fe80::9%eth0"), got.Addr)
}

// The order of the interfaces may matter only among those that are equally good.
func TestChoiceIsStableUnderOrder(t *testing.T) {
	host := []Interface{iface("lo", "127.0.0.1/8"), iface("docker0", "172.17.0.1/16"), iface("wg0", "10.9.0.2/24"),
		iface("eth0", "192.0.2.2/24"), iface("eth7", "fe80::7/64"), iface("veth1", "fe80::8/64")}
	for range len(host) {
		host = append(host[1:], host[0])
		for _, q := range []Query{{}, {Toward: netip.MustParseAddr("192.0.2.1")}, {SameHost: true}} {
			got, err := Choose(host, q)
			require.NoError(t, err)
			require.Equal(t, "eth0", got.Interface.Name)
		}
	}
}

func TestInterfacesOfThisHost(t *testing.T) {
	all, err := Interfaces()
	require.NoError(t, err)
	require.NotEmpty(t, all)
	for _, i := range all {
		require.NotEmpty(t, i.Name)
		for _, p := range i.Addrs {
			require.True(t, p.IsValid(), "%s %v", i.Name, p)
			require.False(t, p.Addr().Is4In6())
			own, ok := Owner(all, p.Addr().WithZone(""))
			require.True(t, ok)
			if !p.Addr().IsLinkLocalUnicast() {
				require.Equal(t, i.Name, own.Name)
			}
		}
	}
	_, err = Choose(all, Query{SameHost: true})
	require.NoError(t, err)
}
