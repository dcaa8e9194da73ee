package bootstrap

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFrameRoundTrip(t *testing.T) {
	for _, n := range []int{0, 1, 100, 1 << 20, 5<<20 + 3} {
		body := bytes.Repeat([]byte{7}, n)
		typ, got, err := readFrame(bytes.NewReader(makeFrame(frameMessage, body)), n)
		require.NoError(t, err)
		require.Equal(t, frameMessage, typ)
		require.True(t, bytes.Equal(body, got))
	}
}

func TestFrameLimits(t *testing.T) {
	_, _, err := readFrame(bytes.NewReader(makeFrame(frameMessage, make([]byte, 11))), 10)
	var p *protocolError
	require.ErrorAs(t, err, &p)
	require.ErrorContains(t, err, "announces 11 bytes; at most 10")

	_, _, err = readFrame(bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff, 1}), maxFrame)
	require.ErrorAs(t, err, &p)

	whole := makeFrame(frameMessage, make([]byte, 100))
	for n := range whole {
		_, _, err := readFrame(bytes.NewReader(whole[:n]), 100)
		require.True(t, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF))
		if n >= frameHeader {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		}
	}
}

// A length alone must not make us hold memory: a reader that gives little costs little.
func TestAnnouncedLengthCostsNothing(t *testing.T) {
	header := appendHeader(nil, frameMessage, MaxPayload)
	got := testing.AllocsPerRun(5, func() {
		_, _, err := readFrame(io.MultiReader(bytes.NewReader(header), bytes.NewReader(make([]byte, 10))), maxFrame)
		require.Error(t, err)
	})
	require.Less(t, got, 50.0)
	b, err := readBody(bytes.NewReader(make([]byte, 10)), MaxPayload)
	require.Error(t, err)
	require.Nil(t, b)
}

func TestJoinWireRoundTrip(t *testing.T) {
	j := joinRequest{proto: protocolVersion, rank: 3, world: 1 << 19, token: [16]byte{1, 2}, listen: addr("[2001:db8::1]:99"),
		wildcard: true, version: "v0.1", arch: "arm64", host: "node", pid: 7, heartbeat: 500, silentAfter: 2000}
	got, err := parseJoin(j.body())
	require.NoError(t, err)
	require.Equal(t, j, got)

	p := progress{home: nobody, world: 9, joined: 5, missing: []int{1, 2, 3}, left: []int{4}, others: "; two of them"}
	gotP, err := parseProgress(p.body())
	require.NoError(t, err)
	require.Equal(t, p, gotP)

	e := &RefusedError{Code: RefusedDuplicate, Root: "r", Ranks: []int{5}, Text: "rank 5 claimed twice"}
	gotE, err := parseRefusal(e.body(), "r")
	require.NoError(t, err)
	require.Equal(t, e, gotE)

	tab := table{home: 1, nonce: [16]byte{9}}
	tab.addrs = append(tab.addrs, addr("192.0.2.1:1"), addr("[fe80::1%eth0]:2"))
	gotT, err := parseTable(tab.body(), 2, "ib0")
	require.NoError(t, err)
	require.Equal(t, "[fe80::1%ib0]:2", gotT.addrs[1].String())
	require.Equal(t, tab.addrs[0], gotT.addrs[0])
	_, err = parseTable(tab.body(), 3, "")
	require.Error(t, err)
}

// What a proven peer sends must never crash us, and nothing that is too short or too long passes.
func FuzzRootWire(f *testing.F) {
	f.Add(joinRequest{proto: 1, listen: addr("192.0.2.1:1")}.body())
	f.Add(progress{world: 9, missing: []int{1}}.body())
	f.Add((&RefusedError{Code: 1, Ranks: []int{1}, Text: "x"}).body())
	f.Add([]byte{0, 2, 0xff, 0xff, 0xff, 0xff})
	f.Add(joinRequest{proto: protocolVersion, version: "v", arch: "arm64", host: "h", wildcard: true, listen: addr("[fe80::1]:1")}.body())
	f.Add(append(joinRequest{proto: protocolVersion, listen: addr("192.0.2.1:1")}.body(), 1))
	f.Add([]byte{0xff, 0xff, 0, 0, 0, 1})
	f.Add([]byte{9})
	f.Add(table{addrs: []netip.AddrPort{addr("192.0.2.1:1"), addr("[fe80::1]:1"), addr("[::1]:1")}}.body())
	f.Fuzz(func(t *testing.T, b []byte) {
		if j, err := parseJoin(b); err == nil && j.proto == protocolVersion {
			again, err := parseJoin(j.body())
			require.NoError(t, err)
			require.Equal(t, j, again)
		}
		if p, err := parseProgress(b); err == nil {
			require.Equal(t, b, p.body())
		}
		if e, err := parseRefusal(b, ""); err == nil && len(e.Text) < 1<<15 {
			require.Equal(t, b, e.body())
		}
		parseTable(b, 3, "")
	})
}
