package verbs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

func goodHello(kind uint8) hello {
	h := hello{
		kind: kind, instance: 1<<63 + 5, key: transport.Key{Comm: 1 << 60, Channel: transport.PointToPoint, Self: 1, Peer: 2},
		firstSeq: ^uint64(0), most: 64 << 20, slot: 1 << 20, slots: 256, streams: 64, checksum: true, fallback: true,
	}
	if kind == kindMend {
		h.mends, h.number = 0xabcdef_fedcba, 1<<32-1
		h.records, h.queues = []record{goodRecord()}, 1
	} else if kind == kindRing {
		h.key.Self, h.key.Peer = 2, 1
		h.address = goodAddress("2001:db8::7").bytes()
	} else {
		h.records, h.queues = []record{goodRecord(), goodRecord()}, 2
	}
	return h
}

func goodAddress(ip string) address {
	return address{at: netip.AddrPortFrom(netip.MustParseAddr(ip), 4711), link: ibv.Ethernet, ports: 2, qps: 3, instance: 99}
}

func TestHello(t *testing.T) {
	for _, kind := range []uint8{kindRing, kindOffer, kindMend} {
		want := goodHello(kind)
		b := want.bytes()
		require.Len(t, b, helloSize+want.follows())
		got, err := parseHello(b[:helloSize])
		require.NoError(t, err)
		got.records, err = parseRecords(b[helloSize:])
		require.NoError(t, err)
		if kind != kindRing {
			got.address = nil
		}
		require.Equal(t, want, got)
		require.NoError(t, got.agree(&want))

		wrongWay := want
		wrongWay.key.Self, wrongWay.key.Peer = want.key.Peer, want.key.Self
		_, err = parseHello(wrongWay.bytes()[:helloSize])
		require.ErrorContains(t, err, "kind", "the lower rank offers, the higher one rings")
		b = b[:helloSize]
		b[7]++
		_, err = parseHello(b)
		require.ErrorIs(t, err, transport.ErrMismatch)
		b[0]++
		_, err = parseHello(b)
		require.ErrorContains(t, err, "no hello")
	}
	for field, change := range map[string]func(*hello){
		"Streams": func(h *hello) { h.streams-- }, "MaxMessage": func(h *hello) { h.most-- }, "Checksum": func(h *hello) { h.checksum = false },
		"Config.Fallback": func(h *hello) { h.fallback = false },
		"FirstSeq":        func(h *hello) { h.firstSeq-- }, "Config.Slot ": func(h *hello) { h.slot /= 2 }, "Config.Slots": func(h *hello) { h.slots /= 2 },
	} {
		ours, theirs := goodHello(kindOffer), goodHello(kindOffer)
		change(&theirs)
		require.ErrorContains(t, theirs.agree(&ours), field)
	}
}

func TestReply(t *testing.T) {
	for _, want := range []reply{{verdict: welcome, records: []record{goodRecord(), goodRecord()}}, {verdict: noEntry, reason: strings.Repeat("é", 500)}, {verdict: later}} {
		b := want.bytes()
		require.Len(t, b, replySize+len(want.records)*recordSize)
		got, err := parseReply(b[:replySize])
		require.NoError(t, err)
		require.Equal(t, len(b)-replySize, got.follows())
		got.records, err = parseRecords(b[replySize:])
		require.NoError(t, err)
		require.Equal(t, want.verdict, got.verdict)
		require.Equal(t, want.records, got.records)
		require.True(t, strings.HasPrefix(want.reason, got.reason) && (want.reason == "" || len(got.reason) > 200))
		b = b[:replySize]
		b[replySize-1] = queuesMost + 1
		_, err = parseReply(b)
		require.ErrorContains(t, err, "65 QPs")
		b[replySize-1], b[8] = 0, 9
		_, err = parseReply(b)
		require.Error(t, err)
	}
}

func TestAddress(t *testing.T) {
	for _, ip := range []string{"192.0.2.1", "2001:db8::1", "fe80::1"} {
		want := goodAddress(ip)
		got, err := parseAddress(want.bytes())
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.LessOrEqual(t, len(want.bytes()), addressMost)
		for n := range addressPrefix + 4 {
			_, err := parseAddress(want.bytes()[:n])
			require.Error(t, err)
		}
	}
	infiniBand := goodAddress("192.0.2.1")
	infiniBand.link = ibv.InfiniBand
	require.ErrorContains(t, infiniBand.reachable(goodAddress("192.0.2.2")), "Ethernet")
	require.ErrorContains(t, goodAddress("2001:db8::1").reachable(goodAddress("192.0.2.2")), "IPv6")
	require.NoError(t, goodAddress("192.0.2.1").reachable(goodAddress("192.0.2.2")))

	other := goodAddress("192.0.2.2") // which has 2 ports and wants 3 QPs on each
	other.ports, other.qps = 3, 2
	require.Equal(t, 9, other.queues(goodAddress("192.0.2.1")), "the greater of both")
	other.ports, other.qps = 8, 32
	require.Equal(t, queuesMost, other.queues(goodAddress("192.0.2.1")))
	for at, bad := range map[int][]byte{12: {0, 9}, 13: {0, 65}} {
		for _, v := range bad {
			b := other.bytes()
			b[at] = v
			_, err := parseAddress(b)
			require.ErrorContains(t, err, "QPs")
		}
	}
}

func TestHeader(t *testing.T) {
	slot := make([]byte, 1024)
	want := header{number: ^uint64(0), tag: 1 << 31, bytes: 5000, offset: 976, length: 976, crc: 7, credit: ^uint32(0), use: 1 << 40}
	want.put(slot)
	var got header
	require.NoError(t, got.parse(slot, 5000))
	require.Equal(t, want, got)
	for name, change := range map[string]func(*header){
		"the longest": func(h *header) { h.bytes = 5001 }, "piece of 977": func(h *header) { h.length = 977 }, "piece of 0": func(h *header) { h.length = 0 },
		"at 4999": func(h *header) { h.offset = 4999 }, "at 5001": func(h *header) { h.offset = 5001 }, "of 4294967295": func(h *header) { h.length = ^uint32(0) },
	} {
		h := want
		change(&h)
		h.put(slot)
		require.ErrorContains(t, got.parse(slot, 5000), name)
	}
	for _, kind := range []int{immPiece, immCredit, immBye} {
		for _, stream := range []int{0, 1, 63} {
			for _, count := range []uint64{0, 1, 1<<24 - 1, 1 << 24, ^uint64(0)} {
				k, s, c := parseImmediate(immediate(kind, stream, count))
				require.Equal(t, []any{kind, stream, uint32(count & (1<<24 - 1))}, []any{k, s, c})
			}
		}
	}
}

func TestConfig(t *testing.T) {
	good := Config{Addr: netip.MustParseAddr("::ffff:192.0.2.1")}
	c, err := good.validate()
	require.NoError(t, err)
	require.True(t, c.Addr.Is4())
	require.Equal(t, []int{64 << 10, 8, 17, 6, 255}, []int{c.Slot, c.Slots, int(c.Timeout), int(c.Retry), int(c.HopLimit)})
	minus := -1
	for field, change := range map[string]func(*Config){
		"Addr": func(c *Config) { c.Addr = netip.Addr{} }, "Ports": func(c *Config) { c.Ports = [2]uint16{0, 5} }, "QPs": func(c *Config) { c.QPs = 33 }, "Budget": func(c *Config) { c.Budget = -1 }, "MTU": func(c *Config) { c.MTU = 1500 }, "Chunk": func(c *Config) { c.Pool, c.Chunk = 1, 2 }, "Pool": func(c *Config) { c.Pool = -1 },
		"GIDIndex": func(c *Config) { c.GIDIndex = &minus }, "Slot": func(c *Config) { c.Slot = 3000 }, "Slots": func(c *Config) { c.Slots = 2 },
		"Timeout": func(c *Config) { c.Timeout = 32 }, "Retry": func(c *Config) { c.Retry = 8 }, "ServiceLevel": func(c *Config) { c.ServiceLevel = 16 },
		"ConnectTimeout": func(c *Config) { c.ConnectTimeout = -1 }, "Linger": func(c *Config) { c.Linger = -1 }, "GPUs": func(c *Config) { c.GPUs = []GPU{nil} },
	} {
		c := good
		change(&c)
		_, err := c.validate()
		require.ErrorContains(t, err, "verbs config: "+field+" is ")
		_, err = Open(c, transport.Options{Streams: 1, MaxMessage: 64})
		require.ErrorContains(t, err, "verbs config: "+field+" is ")
	}
}

// FuzzHello: no hello makes us panic, and what is accepted is written the same.
func FuzzHello(f *testing.F) {
	for _, kind := range []uint8{kindRing, kindOffer, kindMend} {
		h := goodHello(kind)
		f.Add(h.bytes()[:helloSize])
	}
	for _, change := range []func(*hello){
		func(h *hello) { h.streams = 63 }, func(h *hello) { h.most = 64 }, func(h *hello) { h.checksum = false }, func(h *hello) { h.firstSeq = 0 },
		func(h *hello) { h.slot = 1 << 19 }, func(h *hello) { h.slots = 8 }, func(h *hello) { h.key.Peer = h.key.Self },
	} {
		h := goodHello(kindOffer)
		change(&h)
		f.Add(h.bytes())
	}
	f.Add(append([]byte(helloMagic), make([]byte, helloSize-8)...))
	for at, v := range map[int]byte{0: 'x', 7: 99, 65: 255, 8: 9} {
		h := goodHello(kindRing)
		b := h.bytes()
		b[at] = v
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err != nil {
			return
		}
		b = h.bytes()
		again, err := parseHello(b[:helloSize])
		require.NoError(t, err)
		require.Equal(t, h, again)
		ours := goodHello(kindOffer)
		if h.agree(&ours) == nil {
			require.Equal(t, ours.slots, h.slots)
		}
	})
}

// FuzzReply: the same of what answers a hello, and of an endpoint's address.
func FuzzReply(f *testing.F) {
	for _, r := range []reply{{verdict: welcome, records: make([]record, 2)}, {verdict: welcome}, {verdict: differs, reason: "why"}, {verdict: later}, {}, {verdict: verdicts + 1}} {
		f.Add(r.bytes(), goodAddress("2001:db8::7").bytes())
		f.Add(r.bytes()[:replySize], goodAddress("0.0.0.0").bytes())
	}
	f.Add([]byte(helloMagic), append(append([]byte(addressMagic), addressVersion+1), make([]byte, 20)...))
	f.Add(make([]byte, replySize), []byte(addressMagic))
	f.Fuzz(func(t *testing.T, b, at []byte) {
		if r, err := parseReply(b); err == nil && r.reason == strings.ToValidUTF8(r.reason, "") {
			said := r
			said.records = make([]record, r.queues)
			again, err := parseReply(said.bytes()[:replySize]) // the records follow
			require.NoError(t, err)
			require.Equal(t, r, again)
		}
		a, err := parseAddress(at)
		if err != nil {
			return
		}
		again, err := parseAddress(a.bytes())
		require.NoError(t, err)
		require.Equal(t, a, again)
		_ = a.reachable(goodAddress("192.0.2.1"))
	})
}

// FuzzSlot: whatever a peer writes into a slot, and says of it in an immediate, is an error or a piece that lies in its slot and its message.
func FuzzSlot(f *testing.F) {
	for _, h := range []header{
		{}, {bytes: 5000, offset: 976, length: 976, number: 1 << 63}, {bytes: 5001, length: 1}, {bytes: 10, offset: 11, length: 1}, {bytes: 10, length: 11},
		{bytes: 5000, length: 2000}, {bytes: 10}, {bytes: 10, offset: 5, length: ^uint32(0)},
	} {
		slot := make([]byte, headerSize)
		h.put(slot)
		f.Add(slot, uint32(immPiece)<<30|63<<24|countMask)
	}
	f.Fuzz(func(t *testing.T, in []byte, imm uint32) {
		slot := make([]byte, 1024)
		copy(slot, in)
		var h header
		if err := h.parse(slot, 5000); err == nil {
			require.LessOrEqual(t, uint64(h.offset)+uint64(h.length), uint64(h.bytes))
			require.LessOrEqual(t, h.bytes, uint32(5000))
			require.LessOrEqual(t, int(h.length), len(slot)-headerSize)
			clear(slot[creditAt+4 : useAt]) // no field
			again := append([]byte{}, slot...)
			h.put(again)
			require.Equal(t, slot, again)
		}
		kind, stream, count := parseImmediate(imm)
		require.Equal(t, imm, immediate(kind, stream, uint64(count)))
	})
}
