package bootstrap

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// quiet is a connection that takes everything and says nothing.
type quiet struct{ net.Conn }

func (quiet) Write(b []byte) (int, error)      { return len(b), nil }
func (quiet) Close() error                     { return nil }
func (quiet) SetDeadline(time.Time) error      { return nil }
func (quiet) SetReadDeadline(time.Time) error  { return nil }
func (quiet) SetWriteDeadline(time.Time) error { return nil }

// still returns a session of five ranks in which no goroutine runs, with a ring, and its links.
func still() (*session, []*link) {
	c := &Config{Log: slog.New(slog.DiscardHandler), Heartbeat: DefaultHeartbeat, SilentAfter: DefaultSilentAfter}
	s := newSession(2, 7, make([]netip.AddrPort, 5), nil, c)
	var links []*link
	for _, peer := range []int{1, 3, 4} {
		l := &link{s: s, peer: peer, conn: quiet{}, sure: true, space: make(chan struct{}), wake: make(chan struct{}, 1)}
		s.links[l] = struct{}{}
		s.to[peer] = l
		links = append(links, l)
	}
	s.prev, s.next = links[0], links[1]
	s.gathers.ready, s.formed = true, true
	s.box.waiting[envelope{1, 5}] = []chan []byte{make(chan []byte, 1)}
	s.questions.open[0] = &question{link: links[0], done: make(chan struct{})}
	s.agreement.decided[2] = []int{1, 2}
	s.agreement.leads, s.agreement.attempt, s.agreement.proposed, s.agreement.accepted = 1, 1, []int{2}, map[int]struct{}{}
	s.Answer(func(_ int, q []byte) []byte { return q })
	return s, links
}

// frames of every kind between ranks, right and wrong.
func framesBetweenRanks() [][]byte {
	five := make([]fate, 5)
	five[4] = fate{status: Dead, by: 1, reason: "gone"}
	var out [][]byte
	add := func(f []byte) { out = append(out, f) }
	for _, n := range []int{0, 1, 7, 8, 12, 13, 21, 40} {
		for t := frameHello; t <= frameAgree+1; t++ {
			add(makeFrame(t, make([]byte, n)))
		}
	}
	add(makeFrame(frameGather, append([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}, "block"...)))
	add(makeFrame(frameMessage, append(make([]byte, 8), "message"...)))
	add(abortFrame(Notice{From: 1, Reason: "why"}))
	add(abortFrame(Notice{From: 1, Ranks: []int{0, 4}, Reason: "why"}))
	add(abortFrame(Notice{From: 1, Ranks: []int{5}, Reason: "why"}))
	add(abortFrame(Notice{From: 1, Ranks: make([]int, maxCulprits+1), Reason: "why"}))
	add(deadFrame(4, fate{by: 1, sure: true, reason: "gone"}))
	add(deadFrame(2, fate{by: 1, reason: "gone"}))
	add(closedFrame(1, farewell{last: 3}))
	add(closedFrame(4, farewell{last: 3, said: true, word: 7}))
	add(closedFrame(3, farewell{last: unknownLast}))
	add(closedFrame(3, farewell{last: 3}))
	add(makeFrame(frameGather, append([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5}, "block"...)))
	add(makeFrame(frameMessage, append([]byte{0, 0, 0, 0, 0, 0, 0, 5}, "waited for"...)))
	add(makeFrame(frameQuestion, append(make([]byte, 8), "question"...)))
	add(makeFrame(frameAnswer, append(make([]byte, 9), "answer"...)))
	add(makeFrame(frameBeat, []byte{byte(beatAsk)}))
	add(makeFrame(frameGivenUp, givenUp{by: 1, alone: true, silent: []int{2, 3}, ended: []int{4}, reason: "silent"}.body()))
	add(makeFrame(frameAnswer, append(make([]byte, 8), byte(tooBusy))))
	add(makeFrame(frameGather, append([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1}, "block"...)))
	add(makeFrame(frameGather, append([]byte{0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1}, "block"...)))
	for step := stepCollect; step <= steps; step++ {
		add(agreeMessage{step: step, number: 2, attempt: 1, ranks: []int{1, 3}}.frame())
		add(agreeMessage{step: step, number: 3, attempt: 1, ranks: []int{1, 3}}.frame())
		add(agreeMessage{step: step, number: 1, attempt: 1, ranks: []int{1, 2, 3}}.frame())
		add(agreeMessage{step: step, number: 1, attempt: 1, ranks: []int{1, 2, 3, 4}, fates: []rankFate{{0, five[4]}, {4, fate{status: Closed, by: 4, farewell: farewell{last: 2}}}}}.frame())
	}
	return out
}

// Whatever ranks that are proven say, on any link and in any order, a session takes it or ends the link with an error; it neither
// panics nor keeps more than its bounds.
func FuzzFrames(f *testing.F) {
	all := framesBetweenRanks()
	for i, frame := range all {
		f.Add(append([]byte{byte(i)}, frame...))
		f.Add(append([]byte{byte(i)}, append(bytes.Clone(frame), all[(i*7+3)%len(all)]...)...))
	}
	f.Add(append([]byte{0}, bytes.Join(all, nil)...))
	block := makeFrame(frameGather, append([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1}, "block"...))
	question := makeFrame(frameQuestion, append(make([]byte, 8), "question"...))
	for _, in := range [][]byte{block, append(bytes.Clone(block), block...), closedFrame(3, farewell{last: unknownLast}), question,
		append(closedFrame(3, farewell{last: unknownLast}), closedFrame(3, farewell{last: 3})...),
		makeFrame(frameMessage, append([]byte{0, 0, 0, 0, 0, 0, 0, 5}, "waited for"...)), makeFrame(frameMessage, make([]byte, 8))} {
		for state := range 5 {
			for link := range 3 {
				f.Add(append([]byte{byte(30 + 6*state + 25*link)}, in...)) // see which
			}
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s, links := still()
		if len(in) == 0 {
			return
		}
		in, which := in[1:], int(in[0])
		busy := 0 // bytes that wait on each link
		switch which % 5 {
		case 1:
			s.Answer(nil)
		case 2:
			s.Answer(func(int, []byte) []byte { return make([]byte, MaxQuestion+1) })
		case 3:
			s.box.count, busy = maxUnexpectedMessages, maxWriter+1
		case 4:
			s.agreement.called = 1
		}
		for _, l := range links {
			l.queued = busy
		}
		r := bytes.NewReader(in)
		for {
			typ, body, err := readFrame(r, maxFrame)
			if err != nil {
				break
			}
			l := links[which%len(links)]
			which /= 2
			if err := s.handle(l, typ, body); err != nil {
				s.linkEnded(l, err)
				require.NotNil(t, s.aborted)
			}
		}
		require.LessOrEqual(t, s.box.bytes, len(in))
		for _, l := range links {
			require.LessOrEqual(t, l.queued-busy, 64*(len(in)+1<<10), "answers in proportion to what came")
		}
		require.LessOrEqual(t, s.gone, 4)
		require.Equal(t, s.gone, len(s.fates))
	})
}

// readFrame on a stream that says anything, in pieces of any size: its body is what was sent or an error.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 3, 20, 1, 2, 3}, 10)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 20, 1, 2, 3}, maxFrame)
	f.Add([]byte{0, 0x20, 0, 0, 20, 1, 2, 3}, maxFrame)
	f.Add(append([]byte{0, 0x20, 0, 0, 20}, make([]byte, 1<<21)...), maxFrame)
	f.Add([]byte{0, 0, 0}, 10)
	f.Add([]byte{0, 0, 0, 3, 20}, 10)
	f.Add([]byte{0, 0, 0, 3, 20, 1}, 10)
	f.Fuzz(func(t *testing.T, in []byte, limit int) {
		limit = min(max(limit, 0), maxFrame)
		typ, body, err := readFrame(io.MultiReader(bytes.NewReader(in)), limit)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(body), limit)
		require.Equal(t, in[:frameHeader+len(body)], makeFrame(typ, body))
	})
}

// The first words between two ranks.
func FuzzEntry(f *testing.F) {
	f.Add(byte(frameHello), hello{session: 1, from: 2, to: 3, use: forRing}.frame()[frameHeader:])
	f.Add(byte(frameHello), hello{use: purposes}.frame()[frameHeader:])
	f.Add(byte(frameWelcome), []byte{})
	f.Add(byte(frameNoEntry), []byte{byte(entryOver), 'x'})
	f.Add(byte(frameNoEntry), []byte{byte(entries), 'x'})
	f.Add(byte(frameNoEntry), append([]byte{byte(entryGivenUp)}, givenUp{by: 1, silent: []int{2, 3}}.body()...))
	f.Add(byte(frameNoEntry), append([]byte{byte(entryGivenUp)}, givenUp{by: 9}.body()...))
	ended, _ := still()
	ended.aborted = &Notice{From: 1, Reason: "why"}
	ended.fate[4] = fate{status: Dead, by: 1, reason: "gone"}
	for _, from := range []uint32{1, 4} {
		f.Add(byte(frameNoEntry), ended.epitaphLocked(farewell{last: 3}).answer(hello{from: from, to: 2})[frameHeader:])
	}
	for _, frame := range framesBetweenRanks() {
		f.Add(byte(frameNoEntry), append([]byte{byte(entryEnded)}, frame...))
	}
	f.Fuzz(func(t *testing.T, typ byte, body []byte) {
		if h, err := parseHello(frameType(typ), body); err == nil {
			require.Equal(t, makeFrame(frameType(typ), body), h.frame())
		}
		no, ok := parseWelcome(frameType(typ), body).(*noEntry)
		if ok && no.entry == entryEnded {
			s, links := still()
			if err := s.heardEpitaph(1, body[1:]); err != nil {
				require.ErrorAs(t, err, new(*protocolError))
			}
			require.LessOrEqual(t, s.gone, 4)
			require.Equal(t, s.gone, len(s.fates))
			for _, l := range links {
				require.LessOrEqual(t, l.queued, 64*(len(body)+1<<10))
			}
		}
		if ok && no.entry == entryGivenUp {
			s, _ := still()
			if err := s.noEntryHere(1, no); err == nil {
				g, err := parseGivenUp(body[1:], s.size)
				require.NoError(t, err)
				if len(body) < maxReason {
					require.Equal(t, body[1:], g.body())
				}
			}
		}
	})
}

func FuzzAgreeMessage(f *testing.F) {
	for _, frame := range framesBetweenRanks() {
		f.Add(frame[frameHeader:])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := parseAgree(&fields{b: body}, 5)
		if err != nil {
			return
		}
		again, err := parseAgree(&fields{b: m.frame()[frameHeader:]}, 5)
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}

// Text and bytes of ids come from people and launchers.
func FuzzID(f *testing.F) {
	id, err := NewID(netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("[fe80::1]:2"))
	require.NoError(f, err)
	f.Add(id.String(), id.Bytes())
	derived, err := DeriveID("node.example:7", "s")
	require.NoError(f, err)
	f.Add(derived.String(), derived.Bytes())
	f.Add("", make([]byte, IDSize))
	f.Add("", make([]byte, IDSize-1))
	for _, root := range []string{":7", "node", "node:0", "node:65536", "[::1]:7"} {
		f.Add(root, []byte(root))
	}
	for _, at := range []int{0, len(idMagic), idSum, idRoot} {
		wrong := id
		wrong[at] ^= 0x40
		if at == idRoot {
			binary.BigEndian.PutUint32(wrong[idSum:], crc32.Checksum(wrong[:idSum], castagnoli))
		}
		f.Add(wrong.String(), wrong.Bytes())
	}
	f.Fuzz(func(t *testing.T, text string, b []byte) {
		if id, err := ParseID(text); err == nil {
			require.Equal(t, text, id.String())
			require.NotEmpty(t, id.Roots("eth0"))
		}
		if host, port, err := splitRoot(text); err == nil {
			require.NotEmpty(t, host)
			require.NotZero(t, port)
		}
		if id, err := IDFromBytes(b); err == nil {
			require.NotEmpty(t, id.Roots(""))
		}
	})
}
