package topology

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUC17_AddressesTravelWithoutScope(t *testing.T) {
	tests := []struct{ here, text, there string }{
		{"192.0.2.1:80", "192.0.2.1:80", "192.0.2.1:80"},
		{"[2001:db8::1]:65535", "[2001:db8::1]:65535", "[2001:db8::1]:65535"},
		{"[fe80::1%eth0]:7", "[fe80::1]:7", "[fe80::1%ib5]:7"},
		{"[fe80::1%3]:7", "[fe80::1]:7", "[fe80::1%ib5]:7"},
		{"[::ffff:192.0.2.1]:9", "192.0.2.1:9", "192.0.2.1:9"},
		{"[::1]:1", "[::1]:1", "[::1]:1"},
		{"0.0.0.0:0", "0.0.0.0:0", "0.0.0.0:0"},
	}
	for _, tt := range tests {
		here, there := netip.MustParseAddrPort(tt.here), netip.MustParseAddrPort(tt.there)

		b, err := EncodeAddr(here)
		require.NoError(t, err)
		got, err := DecodeAddr(b[:], "ib5")
		require.NoError(t, err)
		require.Equal(t, there, got, tt.here)

		require.Equal(t, tt.text, FormatAddr(here))
		got, err = ParseAddr(tt.text, "ib5")
		require.NoError(t, err)
		require.Equal(t, there, got, tt.here)
		got, err = ParseAddr(tt.here, "ib5")
		require.NoError(t, err)
		require.Equal(t, there, got, "a foreign zone is not used")
	}
}

func TestUC17_LinkLocalNeedsAnInterface(t *testing.T) {
	b, err := EncodeAddr(netip.MustParseAddrPort("[fe80::1%eth0]:7"))
	require.NoError(t, err)
	_, err = DecodeAddr(b[:], "")
	require.ErrorContains(t, err, "fe80::1 is link-local")
	_, err = ParseAddr("[fe80::1%eth0]:7", "")
	require.ErrorContains(t, err, "fe80::1 is link-local")
}

func TestBadAddresses(t *testing.T) {
	_, err := EncodeAddr(netip.AddrPort{})
	require.ErrorContains(t, err, "not valid")
	_, err = DecodeAddr(make([]byte, 17), "")
	require.ErrorContains(t, err, "17 bytes instead of 18")
	for _, s := range []string{"", "192.0.2.1", "fe80::1:7", "[192.0.2.1]", "host:80", "192.0.2.1:99999"} {
		_, err = ParseAddr(s, "eth0")
		require.ErrorContains(t, err, "want address:port", "%q", s)
	}
}
