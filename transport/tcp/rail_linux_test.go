package tcp

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/transport"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func rails(all ...railAt) []railAt { return all }

func TestWays(t *testing.T) {
	at := netip.MustParseAddrPort
	a := address{at: at("10.0.0.1:1"), flows: 2, rails: rails(railAt{Rail{prefix("10.1.0.1/24"), 1}, 2}, railAt{Rail{prefix("10.2.0.1/24"), 3}, 3})}
	for _, tt := range []struct {
		name string
		peer address
		want []string // to
	}{
		{"no rails", address{at: at("10.0.0.2:9"), flows: 1}, []string{"10.0.0.2:9", "10.0.0.2:9"}},
		{"the peer wants more", address{at: at("10.0.0.2:9"), flows: 3}, []string{"10.0.0.2:9", "10.0.0.2:9", "10.0.0.2:9"}},
		{"one in common, of two", address{at: at("10.0.0.2:9"), rails: rails(railAt{Rail{prefix("10.3.0.2/24"), 1}, 7}, railAt{Rail{prefix("10.1.0.2/24"), 1}, 8})},
			[]string{"10.0.0.2:9", "10.1.0.2:8", "10.0.0.2:9"}},
		{"both, by turns", address{at: at("10.0.0.2:9"), rails: rails(railAt{Rail{prefix("10.2.0.2/24"), 1}, 7}, railAt{Rail{prefix("10.1.0.2/24"), 2}, 8})},
			[]string{"10.0.0.2:9", "10.1.0.2:8", "10.2.0.2:7", "10.0.0.2:9", "10.1.0.2:8", "10.2.0.2:7", "10.2.0.2:7"}},
		{"a network of another size", address{at: at("10.0.0.2:9"), rails: rails(railAt{Rail{prefix("10.1.0.2/16"), 1}, 8})}, []string{"10.0.0.2:9", "10.0.0.2:9"}},
		{"another host's bridge like ours", address{at: at("10.0.0.2:9"), rails: rails(railAt{Rail{prefix("10.1.0.1/24"), 1}, 8})}, []string{"10.0.0.2:9", "10.0.0.2:9"}},
		{"many", address{at: at("10.0.0.2:9"), flows: 16, rails: rails(railAt{Rail{prefix("10.1.0.2/24"), 16}, 8})}, nil},
	} {
		var got []string
		for _, w := range a.ways(tt.peer) {
			got = append(got, w.to.String())
		}
		require.Len(t, tt.peer.ways(a), len(got), "%s: both ends count alike", tt.name)
		if tt.want == nil {
			require.Len(t, got, maxFlows)
			continue
		}
		require.Equal(t, tt.want, got, tt.name)
	}
	back, err := parseAddress(a.bytes())
	require.NoError(t, err)
	require.Equal(t, a, back)
	for name, r := range map[string]railAt{
		"loopback": {Rail{prefix("127.0.0.2/8"), 1}, 8}, "link-local": {Rail{prefix("fe80::2/64"), 1}, 8}, "many flows": {Rail{prefix("10.1.0.2/16"), 17}, 8}, "no port": {Rail{prefix("10.1.0.2/16"), 1}, 0},
	} {
		bad := a
		bad.rails = rails(r)
		_, err := parseAddress(bad.bytes())
		require.Error(t, err, name)
	}
	for cut := range len(a.bytes()) {
		b, err := parseAddress(a.bytes()[:cut])
		require.True(t, err != nil || len(b.rails) < 2, "%d bytes", cut)
	}
}

// TestRailsThatLeadNowhere: what can't be listened on is left out, and a peer that can't be reached over a rail is reached all the same.
func TestRailsThatLeadNowhere(t *testing.T) {
	_, err := Open(Config{Addr: netip.MustParseAddr("127.0.0.1"), Rails: []Rail{{Addr: prefix("::1/64")}}}, small)
	require.ErrorContains(t, err, "Rails has the address ::1/64")
	_, err = Open(Config{Addr: netip.MustParseAddr("127.0.0.1"), Rails: []Rail{{Addr: prefix("10.0.0.1/24"), Flows: 17}}}, small)
	require.ErrorContains(t, err, "17 flows")

	var lines log
	a := openAt(t, Config{Flows: 2, Log: slog.New(slog.NewTextHandler(&lines, nil)), Rails: []Rail{{Addr: prefix("192.0.2.7/24")}}}, small)
	require.Empty(t, a.(*endpoint).address.rails)
	require.Contains(t, lines.lines()[0], "192.0.2.7")
	b := openAt(t, Config{}, small)
	for _, e := range []*endpoint{a.(*endpoint), b.(*endpoint)} { // as if they had one, that is down
		own := map[transport.Endpoint]string{a: "192.0.2.7/24", b: "192.0.2.8/24"}[e]
		e.address.rails = rails(railAt{Rail{prefix(own), 2}, 9})
	}
	x, y := connect(t, a, b)
	pass(t, x.Stream(0), y.Stream(0), 100_000, a, b)
	pass(t, y.Stream(1), x.Stream(1), 100_000, a, b)
	require.Len(t, x.(*conn).flows, 4)
	require.Len(t, y.(*conn).flows, 4)
	said := 0
	for _, line := range lines.lines() {
		if strings.Contains(line, "does not lead") {
			said++
		}
	}
	require.LessOrEqual(t, said, 1, "a rail is tried once with a peer, of two sockets")
	for _, f := range x.(*conn).flows {
		name, err := unix.Getpeername(f.fd)
		require.NoError(t, err)
		require.Equal(t, [4]byte{127, 0, 0, 1}, name.(*unix.SockaddrInet4).Addr)
	}
}

// TestEndsThatWantDifferentFlows connect by the larger number, whoever dials.
func TestEndsThatWantDifferentFlows(t *testing.T) {
	for _, flows := range [][2]int{{1, 3}, {3, 1}, {0, 2}} {
		a, b := openAt(t, Config{Flows: flows[0]}, small), openAt(t, Config{Flows: flows[1]}, small)
		x, y := connect(t, a, b)
		pass(t, x.Stream(0), y.Stream(0), 100_000, a, b)
		pass(t, y.Stream(0), x.Stream(0), 100_000, a, b)
		require.Len(t, x.(*conn).flows, max(flows[0], flows[1]))
		require.Len(t, y.(*conn).flows, max(flows[0], flows[1]))
	}
}

func FuzzRail(f *testing.F) {
	f.Add(appendRail(nil, railAt{Rail{prefix("10.1.0.2/16"), 1}, 8}))
	f.Add(appendRail(nil, railAt{Rail{prefix("2001:db8::1/64"), 1}, 8}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, rest, err := parseRail(b)
		if err != nil {
			return
		}
		require.True(t, bytes.Equal(b, append(appendRail(nil, r), rest...)), "one way to write it")
	})
}
