package bootstrap

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func TestIDRoundTrip(t *testing.T) {
	id, err := NewID(addr("192.0.2.1:29500"), addr("[2001:db8::1]:29500"), addr("[fe80::1%eth0]:1"))
	require.NoError(t, err)
	again, err := ParseID(id.String())
	require.NoError(t, err)
	require.Equal(t, id, again)
	again, err = IDFromBytes(id.Bytes())
	require.NoError(t, err)
	require.Equal(t, id, again)
	require.Len(t, id.String(), 171)
	require.Equal(t, []string{"192.0.2.1:29500", "[2001:db8::1]:29500", "[fe80::1%ib0]:1"}, id.Roots("ib0"), "the scope is the reader's")
	require.True(t, id.Authenticated())
	require.Len(t, id.Secret(), 32)

	other, err := NewID(addr("192.0.2.1:29500"))
	require.NoError(t, err)
	require.NotEqual(t, id.Secret(), other.Secret())
	require.NotEqual(t, id.Hash(), other.Hash())

	id.Secret()[0]++ // copies
	id.Bytes()[0]++
	require.Equal(t, again, id)
}

func TestDerivedIDs(t *testing.T) {
	derive := func(root, secret string, labels ...string) ID {
		id, err := DeriveID(root, secret, labels...)
		require.NoError(t, err)
		return id
	}
	base := derive("head:29500", "s", "job", "1")
	require.Equal(t, base, derive("head:29500", "s", "job", "1"))
	require.Equal(t, []string{"head:29500"}, base.Roots(""))
	require.True(t, base.Authenticated())
	require.False(t, derive("head:29500", "", "job", "1").Authenticated())
	for _, other := range []ID{derive("head:29500", "t", "job", "1"), derive("head:29500", "s", "job1", ""), derive("head:29500", "s", "job", "2"),
		derive("head:29500", "s", "job"), derive("head:29500", "", "s", "job", "1")} {
		require.NotEqual(t, base.Secret(), other.Secret())
		require.NotEqual(t, base.Hash(), other.Hash())
	}
	require.Equal(t, []string{"[2001:db8::5]:80"}, derive("[2001:db8::5]:80", "s").Roots(""))
	long := strings.Repeat("n", maxName)
	require.Equal(t, []string{long + ":80"}, derive(long+":80", "s").Roots(""))
	_, err := DeriveID(long+"n:80", "s")
	require.ErrorContains(t, err, "is longer than")
}

func TestBadIDs(t *testing.T) {
	for _, addrs := range [][]netip.AddrPort{nil, {{}}, {addr("0.0.0.0:1")}, {addr("192.0.2.1:0")}, make([]netip.AddrPort, 4)} {
		_, err := NewID(addrs...)
		require.ErrorContains(t, err, "make an id")
	}
	for _, root := range []string{"", "head", "head:", ":80", "head:0", "head:x", "head:65536", "2001:db8::1:80"} {
		_, err := DeriveID(root, "s")
		require.ErrorContains(t, err, "want host:port", "%q", root)
	}
	id, err := NewID(addr("192.0.2.1:29500"))
	require.NoError(t, err)
	text := id.String()
	for says, in := range map[string]string{
		"unique id of 0 characters":   "",
		"unique id of 170 characters": text[:170],
		"unique id of 171 characters": text[:170] + "=",
		"unique id is not set":        ID{}.String(),
	} {
		_, err := ParseID(in)
		require.ErrorContains(t, err, says)
	}
	for i := range id {
		bad := id
		bad[i] ^= 0x10
		_, err := IDFromBytes(bad[:])
		require.Error(t, err, "byte %d changed", i)
	}
	_, err = IDFromBytes(id[:127])
	require.ErrorContains(t, err, "127 bytes instead of 128")
}

func FuzzParseID(f *testing.F) {
	id, _ := NewID(addr("192.0.2.1:29500"))
	f.Add(id.String())
	named, _ := DeriveID("head:1", "")
	f.Add(named.String())
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err != nil {
			return
		}
		require.Equal(t, s, id.String())
		require.NotEmpty(t, id.Roots(""))
	})
}
