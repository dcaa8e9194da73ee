package tcp

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

func TestConfig(t *testing.T) {
	good := Config{Addr: netip.MustParseAddr("127.0.0.1")}
	c, err := good.validate()
	require.NoError(t, err)
	require.Equal(t, Config{Addr: good.Addr, Flows: 1, Window: 1 << 20, ConnectTimeout: time.Minute, Linger: time.Second}, c)
	for want, change := range map[string]func(*Config){
		"Addr is invalid IP":                  func(c *Config) { c.Addr = netip.Addr{} },
		"Addr is 0.0.0.0":                     func(c *Config) { c.Addr = netip.IPv4Unspecified() },
		"Addr is ::":                          func(c *Config) { c.Addr = netip.IPv6Unspecified() },
		"Addr is fe80::1, want a zone":        func(c *Config) { c.Addr = netip.MustParseAddr("fe80::1") },
		"Ports is [2 1]":                      func(c *Config) { c.Ports = [2]uint16{2, 1} },
		"Ports is [0 1]":                      func(c *Config) { c.Ports = [2]uint16{0, 1} },
		"Flows is 17, want 1 to 16":           func(c *Config) { c.Flows = 17 },
		"Flows is -1":                         func(c *Config) { c.Flows = -1 },
		"Window is 65537, want a power":       func(c *Config) { c.Window = 64<<10 + 1 },
		"Window is 32768":                     func(c *Config) { c.Window = 32 << 10 },
		"Window is 134217728":                 func(c *Config) { c.Window = 128 << 20 },
		"ConnectTimeout is -1s, want a posit": func(c *Config) { c.ConnectTimeout = -time.Second },
		"Linger is -1ns":                      func(c *Config) { c.Linger = -1 },
	} {
		c := good
		change(&c)
		_, err := Open(c, transport.Options{Streams: 1, MaxMessage: 64})
		require.ErrorContains(t, err, want)
	}
	_, err = Open(good, transport.Options{MaxMessage: 64})
	if !errors.Is(err, errors.ErrUnsupported) {
		require.ErrorContains(t, err, "Streams is 0")
	}
}

func TestAddress(t *testing.T) {
	for _, s := range []string{"127.0.0.1:1", "10.1.2.3:65535", "[::1]:80", "[2001:db8::5]:4711", "[fe80::1]:9", "[::ffff:10.0.0.1]:5"} {
		at := netip.MustParseAddrPort(s)
		got, err := parseAddress(address{at: at, instance: 0x0123456789abcdef}.bytes())
		require.NoError(t, err)
		require.Equal(t, address{at: netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), instance: 0x0123456789abcdef}, got)
	}
	zoned := address{at: netip.MustParseAddrPort("[fe80::1%eth9]:5"), instance: 1}
	got, err := parseAddress(zoned.bytes())
	require.NoError(t, err)
	require.Empty(t, got.at.Addr().Zone(), "a zone means nothing to another host")
	require.Equal(t, "[fe80::1%ib0]:5", got.from(netip.MustParseAddr("fe80::7%ib0")).String())
	require.Equal(t, "10.0.0.1:5", address{at: netip.MustParseAddrPort("10.0.0.1:5")}.from(netip.MustParseAddr("10.0.0.2")).String())
	require.ErrorContains(t, got.reachable(netip.MustParseAddr("10.0.0.2")), "IPv6")
	require.NoError(t, got.reachable(netip.MustParseAddr("::1")))

	good := zoned.bytes()
	for name, b := range map[string][]byte{
		"empty":     nil,
		"magic":     append([]byte("gccl-udp"), good[8:]...),
		"short":     good[:len(good)-1],
		"long":      append(good[:len(good):len(good)], 0),
		"version":   append(append([]byte("gccl-tcp"), 9), good[9:]...),
		"port 0":    address{at: netip.MustParseAddrPort("10.0.0.1:0"), instance: 1}.bytes(),
		"any":       address{at: netip.MustParseAddrPort("0.0.0.0:5"), instance: 1}.bytes(),
		"multicast": address{at: netip.MustParseAddrPort("224.0.0.1:5"), instance: 1}.bytes(),
	} {
		_, err := parseAddress(b)
		require.Error(t, err, name)
	}
}

func FuzzAddress(f *testing.F) {
	f.Add(address{at: netip.MustParseAddrPort("10.1.2.3:5"), instance: 7}.bytes())
	f.Add(address{at: netip.MustParseAddrPort("[fe80::1]:5"), instance: 7}.bytes())
	f.Add([]byte("gccl-udp"))
	f.Add(append([]byte("gccl-tcp"), make([]byte, 40)...))
	f.Add(address{at: netip.MustParseAddrPort("10.0.0.1:0"), instance: 1}.bytes())
	rail := func(network string) railAt { return railAt{Rail{netip.MustParsePrefix(network), 2}, 8} }
	several := address{at: netip.MustParseAddrPort("10.1.2.3:5"), flows: 1, instance: 7, rails: []railAt{rail("10.2.0.3/16"), rail("2001:db8::1/64")}}
	f.Add(several.bytes())
	f.Add(append(several.bytes(), 1))
	f.Add(appendRail(several.bytes(), rail("127.0.0.1/8")))
	f.Add(appendRail(several.bytes()[:addressPrefix], rail("10.1.2.3/16"))) // the first is no network
	f.Add(append([]byte(addressMagic+"\xff"), make([]byte, 40)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAddress(b)
		if err != nil {
			return
		}
		again, err := parseAddress(a.bytes())
		require.NoError(t, err)
		require.Equal(t, a, again)
	})
}

var sampleHello = hello{
	attempt: 0x0102030405060708, instance: 9, key: transport.Key{Comm: 1 << 63, Channel: -1, Self: 3, Peer: 2147483647},
	firstSeq: 1<<64 - 2, most: 64 << 20, window: 1 << 20, streams: 64, flow: 3, flows: 4, checksum: true,
}

func TestHello(t *testing.T) {
	b := sampleHello.bytes()
	require.Len(t, b, helloSize)
	got, err := parseHello(b)
	require.NoError(t, err)
	require.Equal(t, sampleHello, got)
	other := append([]byte{}, b...)
	other[7]++
	_, err = parseHello(other)
	require.ErrorIs(t, err, transport.ErrMismatch)
	require.ErrorContains(t, err, "version 3")
	_, err = parseHello([]byte("GET / HTTP/1.0\r\n"))
	require.ErrorContains(t, err, "GET")
	for field, change := range map[string]func(*hello){
		"Options.Streams is 63 at rank 3 and 64 at rank 3": func(h *hello) { h.streams-- },
		"Options.MaxMessage":        func(h *hello) { h.most-- },
		"Options.Checksum is false": func(h *hello) { h.checksum = false },
		"Options.FirstSeq":          func(h *hello) { h.firstSeq = 0 },
	} {
		ours := sampleHello
		change(&ours)
		require.ErrorContains(t, sampleHello.agree(&ours), field)
	}
	require.NoError(t, sampleHello.agree(&sampleHello))
}

func TestReply(t *testing.T) {
	for _, r := range []reply{
		{welcome, 1 << 20, ""}, {later, 0, "connected already"}, {differs, 0, strings.Repeat("ü", 119)}, {noEntry, 0, "no"}, {left, 0, "rank 3 has closed the connection"},
	} {
		got, err := parseReply(r.bytes())
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
	long := reply{differs, 0, strings.Repeat("ü", 500)}
	got, err := parseReply(long.bytes())
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("ü", 119), got.reason, "cut at a whole letter")
}

func FuzzHandshake(f *testing.F) {
	f.Add(sampleHello.bytes())
	for _, change := range []func(*hello){
		func(h *hello) { h.streams-- }, func(h *hello) { h.most-- }, func(h *hello) { h.checksum = false }, func(h *hello) { h.firstSeq = 0 },
		func(h *hello) { h.flows++ }, func(h *hello) { h.flow = h.flows }, func(h *hello) { h.window = 5 }, func(h *hello) { h.key.Self = -1 },
		func(h *hello) { h.streams = 65 }, func(h *hello) { h.attempt = 0 },
	} {
		h := sampleHello
		change(&h)
		f.Add(h.bytes())
	}
	f.Add(append([]byte(helloMagic), make([]byte, helloSize-8)...))
	for _, r := range []reply{{differs, 0, "why"}, {welcome, 1 << 20, ""}, {welcome, 5, ""}, {0, 0, ""}, {later, 0, "ü"}} {
		f.Add(r.bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parseHello(b); err == nil {
			if same := h.agree(&sampleHello) == nil; same {
				require.Equal(t, sampleHello.most, h.most)
			}
			again, err := parseHello(h.bytes())
			require.NoError(t, err)
			require.Equal(t, h, again)
		}
		if r, err := parseReply(b); err == nil && r.reason == strings.ToValidUTF8(r.reason, "") {
			again, err := parseReply(r.bytes())
			require.NoError(t, err)
			require.Equal(t, r, again)
		}
	})
}

// TestHeaderGolden holds the layout in the package comment.
func TestHeaderGolden(t *testing.T) {
	h := header{kind: kindPiece, stream: 0x0203, number: 0x0405060708090a0b, tag: 0x0c0d0e0f, bytes: 0x00101112,
		offset: 0x00001314, length: 0x00001516, crc: 0x1718191a, place: 0x1b1c1d1e, credit: 0x1f202122}
	var b [headerSize]byte
	h.put(&b)
	require.Equal(t, []byte{
		1, 0, 0x03, 0x02, 0x0b, 0x0a, 0x09, 0x08, 0x07, 0x06, 0x05, 0x04, 0x0f, 0x0e, 0x0d, 0x0c,
		0x12, 0x11, 0x10, 0, 0x14, 0x13, 0, 0, 0x16, 0x15, 0, 0, 0x1a, 0x19, 0x18, 0x17,
		0x1e, 0x1d, 0x1c, 0x1b, 0x22, 0x21, 0x20, 0x1f, 0, 0, 0, 0,
	}, b[4:])
	require.Equal(t, crc32.Checksum(b[4:], castagnoli), binary.LittleEndian.Uint32(b[:]))
	var got header
	require.NoError(t, got.parse(b[:], 0x204, 64<<20))
	require.Equal(t, h, got)
	for bit := range 8 * headerSize {
		flipped := b
		flipped[bit/8] ^= 1 << (bit % 8)
		require.ErrorIs(t, got.parse(flipped[:], 0x204, 64<<20), errHeader, "bit %d", bit)
	}
	for want, bad := range map[string]header{
		"kind 0":                       {},
		"kind 4":                       {kind: 4},
		"stream 4, there are 4":        {kind: kindPiece, stream: 4},
		"kind 2 with 1 bytes":          {kind: kindCredit, bytes: 1, length: 1},
		"kind 3 with 0 bytes":          {kind: kindBye, bytes: 1},
		"message of 1001 bytes":        {kind: kindPiece, bytes: 1001, length: 1001},
		"piece of 0 bytes":             {kind: kindPiece, bytes: 10},
		"piece of 11 bytes at 0":       {kind: kindPiece, bytes: 10, length: 11},
		"piece of 1 bytes at 10":       {kind: kindPiece, bytes: 10, offset: 10, length: 1},
		"piece of 4294967295 bytes at": {kind: kindPiece, bytes: 10, offset: 5, length: 1<<32 - 1},
	} {
		bad.put(&b)
		require.ErrorContains(t, got.parse(b[:], 4, 1000), want)
	}
}

// FuzzHeader: whatever a peer sends as a header, with the right checksum, is an error or a piece that lies within its message.
func FuzzHeader(f *testing.F) {
	for _, h := range []header{
		{}, {kind: 4}, {kind: kindPiece, stream: 4}, {kind: kindCredit, bytes: 1, length: 1}, {kind: kindBye, bytes: 1}, {kind: kindPiece, bytes: 1001, length: 1001},
		{kind: kindPiece, bytes: 10}, {kind: kindPiece, bytes: 10, length: 11}, {kind: kindPiece, bytes: 10, offset: 5, length: 1<<32 - 1}, {kind: kindPiece, bytes: 10, length: 10},
	} {
		var b [headerSize]byte
		h.put(&b)
		f.Add(b[:], true)
		f.Add(b[:], false)
	}
	f.Fuzz(func(t *testing.T, in []byte, sum bool) {
		var b [headerSize]byte
		copy(b[:], in)
		if sum {
			binary.LittleEndian.PutUint32(b[:], crc32.Checksum(b[4:], castagnoli))
		} else {
			b[0] ^= 1
		}
		var h header
		if err := h.parse(b[:], 4, 1000); err != nil {
			return
		}
		require.LessOrEqual(t, uint64(h.offset)+uint64(h.length), uint64(h.bytes))
		require.LessOrEqual(t, h.bytes, uint32(1000))
		require.Less(t, int(h.stream), 4)
		var again [headerSize]byte
		h.put(&again)
		require.Equal(t, b, again)
	})
}
