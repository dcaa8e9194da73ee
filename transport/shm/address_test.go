package shm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func someAddress() *address {
	return &address{
		identity: Identity{HostID: "h", BootID: "ed582d69-b79f-48dc-8820-140b380a5f21", HostName: "node.a", ShmDevice: "0:24"},
		path:     "/dev/shm/" + name{uid: 1000, pidns: 4026531836, pid: 4711, start: 99, random: 7}.String(),
		nonce:    [16]byte{1, 2, 3}, size: 1 << 30, pid: 4711,
	}
}

func TestAddressRoundTrip(t *testing.T) {
	a := someAddress()
	b, err := a.marshal()
	require.NoError(t, err)
	got, err := parseAddress(b)
	require.NoError(t, err)
	require.Equal(t, a, got)
	for n := range b {
		_, err := parseAddress(b[:n])
		require.Error(t, err, "cut to %d bytes", n)
	}
	_, err = parseAddress(append(b, 0))
	require.ErrorContains(t, err, "1 bytes too many")
}

func TestAddressRefused(t *testing.T) {
	for _, c := range []struct {
		change func(*address)
		says   string
	}{
		{func(a *address) { a.size = 1 << 50 }, "segment of 1125899906842624 bytes"},
		{func(a *address) { a.size = 1<<30 + 1 }, "multiple of 4096"},
		{func(a *address) { a.size = 0 }, "segment of 0 bytes"},
		{func(a *address) { a.pid = 0 }, "pid 0"},
		{func(a *address) { a.pid = 1 << 31 }, "pid 2147483648"},
		{func(a *address) { a.path = "gccl-1-2-3-4-0000000000000007" }, "absolute"},
		{func(a *address) { a.path = "/etc/passwd" }, `"passwd"`},
		{func(a *address) { a.path = "/dev/shm/gccl-1-2-3-4-7" }, "not the name of a socket"},
		{func(a *address) { a.path = "/dev/shm/gccl-1-2-3-4-0000000000000007/" }, "not the name of a socket"},
	} {
		a := someAddress()
		c.change(a)
		b, err := a.marshal()
		require.NoError(t, err)
		_, err = parseAddress(b)
		require.ErrorContains(t, err, c.says)
	}
	a := someAddress()
	a.identity.HostID = strings.Repeat("x", 1000)
	_, err := a.marshal()
	require.ErrorContains(t, err, "at most 1024")
	_, err = parseAddress(append([]byte{1}, make([]byte, 45)...))
	require.ErrorContains(t, err, "version 1, want 2")
}

func FuzzAddress(f *testing.F) {
	b, err := someAddress().marshal()
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte("not an address"))
	f.Add(append([]byte{addressVersion + 1}, b[1:]...))
	for _, n := range []int{len(b) - 1, len(b) - 20, 29, 30, 34} {
		f.Add(b[:n:n])
	}
	f.Add(append(b[:len(b):len(b)], 0))
	for _, edit := range []func(*address){
		func(a *address) { a.size = minSegment - 4096 }, func(a *address) { a.size++ }, func(a *address) { a.pid = 0 },
		func(a *address) { a.path = "not/absolute" }, func(a *address) { a.path = "/dev/shm/gccl-" }, func(a *address) { a.path += "\x00" },
	} {
		wrong := *someAddress()
		edit(&wrong)
		b, err := wrong.marshal()
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAddress(b)
		if err != nil {
			return
		}
		again, err := a.marshal()
		require.NoError(t, err)
		require.Equal(t, b, again)
	})
}

func TestName(t *testing.T) {
	n := name{uid: 0, pidns: 4026531836, pid: 1, start: 12345678, random: 0xfedc}
	require.Equal(t, "gccl-0-4026531836-1-12345678-000000000000fedc", n.String())
	got, err := parseName(n.String())
	require.NoError(t, err)
	require.Equal(t, n, got)
	for _, s := range []string{"", "gccl-", "gccl-test-123", "gccl-0-1-2-3-4", "gccl-00-4026531836-1-12345678-000000000000fedc",
		"gccl--1-4026531836-1-12345678-000000000000fedc", "nccl-0-4026531836-1-12345678-000000000000fedc",
		"gccl-0-4026531836-1-12345678-000000000000fedc.old", "gccl-99999999999999999999-1-1-1-000000000000fedc",
		"gccl-0-1-1-1-000000000000FEDC"} {
		_, err := parseName(s)
		require.Error(t, err, "%q", s)
	}
}
