package tcp

import (
	"encoding/hex"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// hostile is an endpoint's conn whose other end is a socket of the test's.
type hostile struct {
	t  testing.TB
	e  *endpoint
	c  *conn
	fd int
}

func newHostile(t testing.TB, o transport.Options) *hostile {
	e := loopback(1, 64<<10)(t, []transport.Options{o})[0].(*endpoint)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	k := transport.Key{Comm: 1, Self: 0, Peer: 1}
	e.mu.Lock()
	m := e.meet(k)
	m.over, m.link = true, &link{fds: fds[:1], window: 64 << 10}
	e.mu.Unlock()
	h := &hostile{t: t, e: e, fd: fds[1]}
	peer := address{at: e.address.at, instance: 1}
	c, err := e.Conn(k, peer.bytes())
	require.NoError(t, err)
	h.c = c.(*conn)
	return h
}

func (h *hostile) close() {
	unix.Close(h.fd)
	require.NoError(h.t, h.e.Close())
}

func (h *hostile) frame(f header, payload []byte) {
	var b [headerSize]byte
	f.put(&b)
	h.write(append(b[:], payload...))
}

func (h *hostile) write(b []byte) {
	_, err := unix.Write(h.fd, b)
	require.NoError(h.t, err)
}

func bufOf(b []byte) transport.Buf {
	if len(b) == 0 {
		return transport.Buf{}
	}
	return transport.Buf{Ptr: unsafe.Pointer(&b[0]), N: len(b)}
}

// TestBadFrames: a peer that breaks the protocol is an error that names what it
// did, at once on all streams, and never data.
func TestBadFrames(t *testing.T) {
	piece := func(i uint64, n int) header {
		return header{kind: kindPiece, number: i, bytes: uint32(n), length: uint32(n), tag: 1, place: uint32(i) * uint32(span(n))}
	}
	for want, send := range map[string]func(h *hostile){
		"wrong checksum":             func(h *hostile) { h.write(make([]byte, headerSize)) },
		"wrong checksum ":            func(h *hostile) { h.write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n        ")) },
		"stream 2, there are 2":      func(h *hostile) { f := piece(0, 8); f.stream = 2; h.frame(f, make([]byte, 8)) },
		"message of 70000 bytes":     func(h *hostile) { f := piece(0, 70000); h.frame(f, nil) },
		"credit 2 for stream 0":      func(h *hostile) { h.frame(header{kind: kindCredit, credit: 2}, nil) },
		"message 40 of stream 0":     func(h *hostile) { f := piece(40, 8); f.bytes, f.offset = 16, 8; h.frame(f, make([]byte, 8)) },
		"piece at 8 of message 0":    func(h *hostile) { f := piece(0, 8); f.bytes, f.offset = 16, 8; h.frame(f, make([]byte, 8)) },
		"lies at 64, want 0":         func(h *hostile) { f := piece(0, 8); f.place = 64; h.frame(f, make([]byte, 8)) },
		"ahead of a window of 65536": func(h *hostile) { h.frame(piece(0, 60000), make([]byte, 60000)); h.frame(piece(1, 60000), nil) },
		"message 0 of stream 0 contradict": func(h *hostile) {
			f := piece(0, 16)
			f.length = 8
			h.frame(f, make([]byte, 8))
			f.offset, f.tag = 8, 2
			h.frame(f, make([]byte, 8))
		},
	} {
		t.Run(want, func(t *testing.T) {
			h := newHostile(t, transport.Options{Streams: 2, MaxMessage: 64 << 10})
			defer h.close()
			send(h)
			b := make([]byte, 8)
			_, err := h.c.Stream(1).Recv(1, bufOf(b))
			require.ErrorIs(t, err, transport.ErrCorrupt)
			require.ErrorContains(t, err, want[:len(want)-1])
			_, err = h.c.Stream(0).Send(1, bufOf(b))
			require.ErrorIs(t, err, transport.ErrCorrupt)
			n, err := unix.Read(h.fd, b)
			require.True(t, n <= 0, "the peer sees the end: %d, %v", n, err)
			require.False(t, errors.Is(err, unix.EAGAIN), "the peer sees the end")
		})
	}
}

// TestNoGoodbye: the end of the socket after, and in the middle of, a message.
func TestNoGoodbye(t *testing.T) {
	for _, cut := range []int{0, 1, headerSize - 1, headerSize, headerSize + 1, headerSize + 7} {
		h := newHostile(t, transport.Options{Streams: 1, MaxMessage: 64})
		f := header{kind: kindPiece, bytes: 8, length: 8, tag: 1}
		h.frame(f, []byte("received"))
		f.number, f.place = 1, 64
		var b [headerSize]byte
		f.put(&b)
		h.write(append(b[:], "the cut!"...)[:cut])
		unix.Shutdown(h.fd, unix.SHUT_RDWR)
		in := make([]byte, 8)
		ok, err := h.c.Stream(0).Recv(1, bufOf(in))
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "received", string(in))
		ok, err = h.c.Stream(0).Recv(1, bufOf(in))
		require.False(t, ok)
		require.ErrorIs(t, err, transport.ErrGone)
		require.ErrorContains(t, err, "died or was killed")
		require.ErrorContains(t, err, "rank 1 at 127.0.0.1")
		h.close()
	}
}

// TestResetIsNamed: the kernel tells that a connection was reset once, to who sends next or to who reads next. A receive says so in both cases, at both
// ends: at the one whose socket is no longer connected the kernel says that then.
func TestResetIsNamed(t *testing.T) {
	for name, row := range map[string]struct{ sends, ours bool }{
		"seen by a receive": {}, "seen by a send": {sends: true}, "of ours, seen by a receive": {ours: true}, "of ours, seen by a send": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := openAt(t, Config{}, small), openAt(t, Config{}, small)
			x, y := connect(t, a, b)
			pass(t, x.Stream(0), y.Stream(0), 8, a, b)
			fd := y.(*conn).flows[0].fd
			if row.ours {
				fd = x.(*conn).flows[0].fd
			}
			nowhere := make([]byte, 16) // AF_UNSPEC: the connection ends with a reset
			_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&nowhere[0])), 16)
			require.Zero(t, errno)
			if row.sends {
				_, err := x.Stream(0).Send(1, bufOf(make([]byte, 8)))
				require.ErrorIs(t, err, unix.ECONNRESET)
			}
			var err error
			wait(t, "the error", func() bool {
				_, err = x.Stream(1).Recv(1, bufOf(make([]byte, 8))) // the other one has ended with the send
				return err != nil
			})
			require.ErrorIs(t, err, transport.ErrGone)
			require.ErrorIs(t, err, unix.ECONNRESET)
		})
	}
}

// TestByteByByte: frames may arrive in parts of any size.
func TestByteByByte(t *testing.T) {
	for _, step := range []int{1, 3, 47, 49, 5000} {
		h := newHostile(t, transport.Options{Streams: 2, MaxMessage: 64 << 10, Checksum: true})
		var wire []byte
		var want [][]byte
		r := rand.New(rand.NewPCG(1, uint64(step)))
		place := [2]uint32{}
		for i := range 10 {
			m := make([]byte, []int{0, 1, 8, 5000, 3}[i%5])
			for k := range m {
				m[k] = byte(r.Uint32())
			}
			want = append(want, m)
			f := header{kind: kindPiece, stream: uint16(i % 2), number: uint64(i / 2), tag: uint32(i), bytes: uint32(len(m)), place: place[i%2]}
			place[i%2] += uint32(span(len(m)))
			for from, first := 0, true; first || from < len(m); first = false { // in two pieces
				to := len(m)
				if from == 0 {
					to = (len(m) + 1) / 2
				}
				f.offset, f.length, f.crc = uint32(from), uint32(to-from), crc32.Checksum(m[from:to], castagnoli)
				var b [headerSize]byte
				f.put(&b)
				wire = append(append(wire, b[:]...), m[from:to]...)
				from = to
			}
		}
		at := 0
		for i, m := range want {
			got := make([]byte, len(m))
			for {
				ok, err := h.c.Stream(i%2).Recv(uint32(i), bufOf(got))
				require.NoError(t, err)
				if ok {
					break
				}
				require.Less(t, at, len(wire), "message %d does not come", i)
				to := min(at+step, len(wire))
				h.write(wire[at:to])
				at = to
			}
			require.Equal(t, m, got, "message %d in steps of %d", i, step)
		}
		h.close()
	}
}

// FuzzFrames lets a peer send any frames, most with valid headers, whole or in
// two parts. Nothing may panic, hang or stage more than the window.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 0, 0, 8, 0, 8, 0, 0}, uint64(0))
	f.Add([]byte{0, 0, 0, 8, 0, 8, 0, 0, 0, 1, 0, 8, 0, 8, 64, 0, 1, 0, 0, 0, 0, 0, 0, 3}, uint64(1))
	f.Add([]byte{0, 0, 0, 8, 0, 8, 0, 0, 0, 1, 0, 8, 0, 8, 64, 0}, uint64(3))
	f.Add([]byte{0, 0, 0, 200, 0, 100, 0, 0, 0, 0, 100, 200, 0, 100, 0, 0}, uint64(2)) // in two pieces
	f.Add([]byte{0, 0, 0, 200, 0, 100, 0, 0, 0, 0, 100, 201, 0, 100, 0, 0}, uint64(2)) // that contradict each other
	f.Add([]byte{0, 0, 0, 8, 0, 8, 255, 255}, uint64(0))                               // outside of the window
	f.Add([]byte{0, 0, 0, 8, 9, 8, 0, 0}, uint64(0))                                   // credit for nothing
	f.Add([]byte{0, 5, 0, 8, 0, 8, 0, 0}, uint64(0))                                   // out of order
	f.Add([]byte{0x70, 0, 0, 0, 1, 0, 0, 0}, uint64(5))
	f.Add([]byte("0\x00\x00\x14\x00\x14\x0000\x01\x00\x14\x00\x140000000000000\x140000"), uint64(152)) // a second one at another place, then asked for
	for seed := range uint64(24) {
		f.Add([]byte{0x50, 0, 0, 0, 0, 0, 0, 0}, seed)                                                                                                      // goodbye
		f.Add([]byte{0x60, 0, 0, 0, 0, 0, 0, 0}, seed)                                                                                                      // no header
		f.Add([]byte{4, 0, 0, 200, 0, 200, 0, 192, 0, 1, 0, 8, 0, 8, 255, 0x21, 4, 1, 0, 8, 0, 8, 255, 0x21}, seed)                                         // long ones, in parts
		f.Add([]byte{8, 0, 0, 250, 0, 250, 0, 192, 0, 1, 0, 8, 0, 8, 0, 0}, seed)                                                                           // later than asked for
		f.Add([]byte{0, 0, 0, 20, 0, 20, 0, 0, 0, 1, 0, 20, 0, 20, 1, 0, 0, 2, 0, 20, 0, 20, 2, 0, 0, 3, 0, 20, 0, 20, 3, 0, 0, 9, 0, 0, 0, 0, 4, 0}, seed) // some in their order
		f.Add([]byte{0, 0, 0, 20, 0, 10, 0, 0, 0, 0, 9, 20, 0, 10, 0, 0}, seed)                                                                             // overlapping
		f.Add([]byte{0, 0, 0, 20, 0, 20, 9, 0}, seed)                                                                                                       // at another place
	}
	f.Fuzz(func(t *testing.T, script []byte, seed uint64) {
		o := transport.Options{Streams: 2, MaxMessage: 32 << 10, Checksum: seed%4 == 3}
		h := newHostile(t, o)
		defer h.close()
		r := rand.New(rand.NewPCG(seed, 0))
		in, out := make([]byte, 32<<10), make([]byte, 100)
		for len(script) >= 8 {
			var s [8]byte
			copy(s[:], script)
			script = script[8:]
			b := frame8(s)
			if s[0]&8 != 0 { // asked for before it comes
				h.c.Stream(0).Recv(0, bufOf(in[:int(s[3])*multiple(s)]))
			}
			if s[0]&4 != 0 {
				cut := r.IntN(len(b))
				unix.Write(h.fd, b[:cut]) // may be closed or full
				h.c.Stream(r.IntN(2)).Recv(0, bufOf(in[:int(s[3])*multiple(s)]))
				b = b[cut:]
			}
			unix.Write(h.fd, b)
			for range 1 + r.IntN(3) {
				st := h.c.Stream(r.IntN(2))
				switch r.IntN(6) {
				case 0:
					st.Recv(0, bufOf(in[:r.IntN(2)*int(s[3])*multiple(s)]))
				case 1:
					st.View(0, int(s[3])*multiple(s))
				case 2:
					st.Release()
				case 3:
					st.Send(0, bufOf(out[:r.IntN(100)]))
				case 4:
					st.Sent()
				case 5:
					h.e.Progress()
				}
			}
			require.LessOrEqual(t, h.e.Stats().Memory, int64(2*(64<<10)+bufferSize+32<<10))
		}
	})
}

// frame8 makes a frame of 8 bytes of a script, or what is none.
func frame8(s [8]byte) []byte {
	f := header{
		kind: kindPiece, stream: uint16(s[0] & 1), number: uint64(int64(int8(s[1]))), offset: uint32(s[2]),
		bytes: uint32(s[3]) * uint32(multiple(s)), length: uint32(s[5]) * uint32(multiple(s)), place: uint32(s[6]) * unit << (s[7] >> 4 & 2), credit: uint32(s[4]),
	}
	var b [headerSize]byte
	switch s[0] & 0x70 {
	case 0x50:
		f = header{kind: kindBye}
	case 0x60:
		copy(b[:], s[1:])
		return b[:]
	case 0x70:
		f = header{kind: kindCredit, stream: f.stream, credit: f.credit}
	}
	f.put(&b)
	return append(b[:], make([]byte, f.length)...)
}

// multiple is by how much the lengths in 8 bytes of a script are too small.
func multiple(s [8]byte) int { return 1 + int(s[7]>>6)*24 }

// TestPlacesWrap starts streams just below the wraps of what the wire has 32 bits
// for: the place in the stream and the count of consumed messages.
func TestPlacesWrap(t *testing.T) {
	o := transport.Options{Streams: 1, MaxMessage: 200 << 10}
	for _, at := range []struct{ place, count uint64 }{
		{1<<32 - 64, 0}, {1<<32 - 64<<10, 1<<31 - 3}, {1<<32 - 128<<10 - 64, 1<<32 - 3}, {1<<33 - 64, 1<<31 - 40},
	} {
		eps := loopback(1, 64<<10)(t, []transport.Options{o, o})
		var s [2]*stream
		for i := range s {
			c, err := eps[i].Conn(transport.Key{Self: int32(i), Peer: int32(1 - i)}, eps[1-i].Address())
			require.NoError(t, err)
			s[i] = c.Stream(0).(*stream)
			s[i].prepare()
			tx, rx := &s[i].tx, &s[i].rx
			tx.place, tx.accepted, tx.cut, tx.done, tx.acked = at.place, at.count, at.count, at.count, at.count
			rx.place, rx.first, rx.consumed, rx.told, rx.limit = at.place, at.count, at.count, at.count, at.place+64<<10
		}
		for k := range 200 {
			n := k * 1000
			out, in := make([]byte, n), make([]byte, n)
			for i := range out {
				out[i] = byte(i * (k + 3) / 7)
			}
			deadline := time.Now().Add(time.Minute)
			sent := false
			for got := false; !got; {
				var err error
				if !sent {
					sent, err = s[0].Send(uint32(k), bufOf(out))
					require.NoError(t, err)
				}
				got, err = s[1].Recv(uint32(k), bufOf(in))
				require.NoError(t, err)
				eps[0].Progress()
				eps[1].Progress()
				require.True(t, time.Now().Before(deadline), "message %d is stuck", k)
			}
			require.Equal(t, hex.EncodeToString(out), hex.EncodeToString(in), "message %d from %+v", k, at)
		}
		for _, e := range eps {
			require.NoError(t, e.Close())
		}
	}
}

// TestReassembly cuts messages of two streams into pieces of any size, spreads
// them over three flows in any order that the protocol allows, and receives at
// random times by Recv and View, so that pieces are staged, arrive ahead of their
// message's first piece, and are asked for in the middle.
func TestReassembly(t *testing.T) {
	const flows, streams, messages, window = 3, 2, 24, 64 << 10
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		o := transport.Options{Streams: streams, MaxMessage: 4 << 20, Checksum: seed%2 == 0}
		e := loopback(flows, window)(t, []transport.Options{o})[0].(*endpoint)
		l := &link{window: window}
		var peer [flows]int
		for i := range flows {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			l.fds = append(l.fds, fds[0])
			peer[i] = fds[1]
		}
		e.mu.Lock()
		m := e.meet(transport.Key{Self: 0, Peer: 1})
		m.over, m.link = true, l
		e.mu.Unlock()
		c, err := e.Conn(m.key, address{at: e.address.at, instance: 1}.bytes())
		require.NoError(t, err)

		var wire [flows][]byte // what is still to be written
		var want [streams][messages][]byte
		for s := range streams {
			place := uint32(0)
			for i := range messages {
				// Small enough that all of a stream fits into the window: the
				// sender of this test knows no credit.
				b := make([]byte, r.IntN(window/messages-unit))
				for k := range b {
					b[k] = byte(r.Uint32())
				}
				want[s][i] = b
				f := header{kind: kindPiece, stream: uint16(s), number: uint64(i), tag: 7, bytes: uint32(len(b)), place: place}
				place += uint32(span(len(b)))
				for from := 0; ; {
					to := min(len(b), from+1+r.IntN(len(b)/2+1))
					on := s % flows
					if from > 0 {
						on = r.IntN(flows)
					}
					f.offset, f.length = uint32(from), uint32(to-from)
					if o.Checksum {
						f.crc = crc32.Checksum(b[from:to], castagnoli)
					}
					var h [headerSize]byte
					f.put(&h)
					wire[on] = append(append(wire[on], h[:]...), b[from:to]...)
					if from = to; from == len(b) {
						break
					}
				}
			}
		}
		var got [streams]int
		var dst [streams][]byte
		view := [streams]bool{}
		for steps := 0; got != [streams]int{messages, messages}; steps++ {
			require.Less(t, steps, 1_000_000, "seed %d: stuck after %v", seed, got)
			if on := r.IntN(flows); len(wire[on]) > 0 {
				n, err := unix.Write(peer[on], wire[on][:min(len(wire[on]), 1+r.IntN(3000))])
				if err == nil {
					wire[on] = wire[on][n:]
				}
			}
			s := r.IntN(streams)
			if got[s] == messages || r.IntN(3) > 0 {
				continue
			}
			b := want[s][got[s]]
			if dst[s] == nil {
				dst[s], view[s] = make([]byte, len(b)), r.IntN(2) == 0
			}
			if view[s] {
				p, err := c.Stream(s).View(7, len(b))
				require.NoError(t, err, "seed %d", seed)
				if p == nil {
					continue
				}
				copy(dst[s], unsafe.Slice((*byte)(p), len(b)))
				c.Stream(s).Release()
			} else if ok, err := c.Stream(s).Recv(7, bufOf(dst[s])); !ok {
				require.NoError(t, err, "seed %d", seed)
				continue
			}
			require.Equal(t, hex.EncodeToString(b), hex.EncodeToString(dst[s]), "seed %d, stream %d, message %d", seed, s, got[s])
			got[s]++
			dst[s] = nil
		}
		for _, fd := range peer {
			unix.Close(fd)
		}
		require.NoError(t, e.Close())
	}
}
