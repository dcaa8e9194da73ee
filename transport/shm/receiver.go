//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cpu"
	"github.com/gccl-project/gccl/transport"
)

// receiver is the incoming half of a stream. What it reads lies in the peer's
// segment and is believed only after a check.
type receiver struct {
	ring     ring    // none: not found yet, or failed
	lines    ring    // ring, after a failure too
	seq      uint64  // number of the next message
	bell     *uint32 // the peer's sleep word
	counters *counters
	plain    bool // no checksums
	viewing  bool
	lent     bool // what is viewed may be taken back
	misses   uint32
	flag     uint64 // of the view
	bytes    int    // of the view
	known    extent // offsets of the peer's segment that were found readable
	offer    offer
	// idle is what each line holds until its next message arrives: what we read
	// last, not what is there now, so that a waiter cannot miss an arrival.
	idle [ringLines]uint64
}

func (r *receiver) attach(at ring) { r.ring, r.lines = at, at }

// holds reports whether a message that is not received yet has come, without asking whether it is right.
func (r *receiver) holds(seq uint64) bool {
	return r.lines.base != nil && uint32(atomic.LoadUint64(r.lines.line(seq))>>32) == uint32(seq)
}

// ack is how many of the peer's messages we have read, where a line has it: a peer that is answered need not look for it, which would take a line of the
// caches from us and back again.
func (r *receiver) ack() uint64 { return r.seq << ackShift }

// View shows the next message. See transport.Stream.
func (s *stream) View(tag uint32, n int) (unsafe.Pointer, error) {
	r := &s.rx
	if r.ring.base == nil {
		return nil, s.wait(n)
	}
	p, want := r.ring.line(r.seq), r.seq<<32|uint64(tag)
	if atomic.LoadUint64(p) != want {
		return nil, s.other(p, tag, n)
	}
	meta := *(*uint64)(unsafe.Add(unsafe.Pointer(p), 8))
	if r.plain {
		s.tx.hears(meta)
		if meta&(1<<ackShift-1) == uint64(n) && uint(n) <= uint(r.ring.inline()) {
			r.viewing, r.flag, r.bytes = true, want, n
			return payload(p, n), nil
		}
	}
	v, err := s.open(p, tag, meta, n)
	if err == nil && !r.plain {
		err = s.verify(meta, v, n)
	}
	if err != nil {
		return nil, err
	}
	r.viewing, r.lent, r.flag, r.bytes = true, meta&lentBit != 0, want, n
	return v, nil
}

// Recv receives the next message into b. See transport.Stream.
func (s *stream) Recv(tag uint32, b transport.Buf) (bool, error) {
	r := &s.rx
	if r.ring.base == nil {
		return false, s.wait(b.N)
	}
	if b.Ptr == nil && b.N > 0 {
		return false, s.fail("receive", fmt.Errorf("a message of %d bytes at a nil pointer", b.N))
	}
	p, want := r.ring.line(r.seq), r.seq<<32|uint64(tag)
	if atomic.LoadUint64(p) != want {
		return false, s.other(p, tag, b.N)
	}
	meta := *(*uint64)(unsafe.Add(unsafe.Pointer(p), 8))
	if r.plain {
		s.tx.hears(meta)
		if n := b.N; meta&(1<<ackShift-1) == uint64(n) && uint(n) <= uint(r.ring.inline()) {
			if from := payload(p, n); n == 8 {
				*(*uint64)(b.Ptr) = *(*uint64)(from)
			} else {
				copyBytes(b.Ptr, from, n)
			}
			r.done(want, n)
			return true, nil
		}
	}
	v, err := s.open(p, tag, meta, b.N)
	if err != nil {
		return false, err
	}
	if v == b.Ptr {
		// it was made there
	} else if b.Cold {
		cpu.CopyStreaming(b.Ptr, v, b.N)
	} else {
		copyBytes(b.Ptr, v, b.N)
	}
	if !r.plain {
		if err := s.verify(meta, b.Ptr, b.N); err != nil {
			return false, err
		}
	}
	r.viewing, r.lent, r.flag, r.bytes = true, meta&lentBit != 0, want, b.N
	if err := s.Release(); err != nil {
		return false, err
	}
	return true, nil
}

// Release ends the view. See transport.Stream.
func (s *stream) Release() error {
	r := &s.rx
	if !r.viewing {
		return nil
	}
	if r.lent {
		r.lent = false
		if err := s.c.takenBack(); err != nil {
			return s.fail("receive", err)
		}
	}
	r.viewing = false
	r.done(r.flag, r.bytes)
	return nil
}

// done lets the sender have the line of the message of so many bytes whose flag that was.
func (r *receiver) done(flag uint64, bytes int) {
	r.idle[r.seq%ringLines] = flag
	r.seq++
	r.counters.messagesReceived++
	r.counters.bytesReceived += uint64(bytes)
	// As in publish: the peer may sleep until there is room.
	atomic.StoreUint64(r.ring.head(), r.seq)
	if atomic.LoadUint32(r.bell) != 0 {
		wake(r.bell)
	}
}

// Awaits is transport.Awaiter. Before the peer's first message it is the
// generation of the peer's directory.
func (s *stream) Awaits() (word *uint64, idle uint64) {
	r := &s.rx
	switch {
	case r.ring.base != nil:
		return r.ring.line(r.seq), r.idle[r.seq%ringLines]
	case s.err == nil:
		return &s.c.p.header().gen, s.c.gen
	}
	return nil, 0
}

// open returns where the payload of the next message lies.
func (s *stream) open(p *uint64, tag uint32, meta uint64, n int) (unsafe.Pointer, error) {
	r, peer := &s.rx, s.c.p
	if n < 0 || meta&lengthMask != uint64(n) {
		return nil, s.fail("receive", &transport.TagError{Seq: r.seq, Tag: tag, WantTag: tag, Bytes: int(meta & lengthMask), WantBytes: n})
	}
	if meta&farBit == 0 {
		if n > r.ring.inline() {
			return nil, s.fail("receive", &descriptorError{What: "a message in a line", Bytes: int64(n), Segment: peer.size})
		}
		return payload(p, n), nil
	}
	off := *(*uint64)(unsafe.Add(unsafe.Pointer(p), inlineAt))
	if r.plain && meta&landedBit != 0 {
		return s.landed(off, n)
	}
	if !peer.holds(off, int64(n), 1) {
		return nil, s.fail("receive", &descriptorError{What: "a message", Offset: off, Bytes: int64(n), Segment: peer.size})
	}
	if lo := int64(off); lo < r.known.lo || lo+int64(n) > r.known.hi {
		if err := peer.check(lo, int64(n)); err != nil {
			return nil, s.fail("receive", err)
		}
		r.known, _ = peer.known.around(lo, lo+int64(n))
	}
	return peer.at(int64(off)), nil
}

func (s *stream) verify(meta uint64, p unsafe.Pointer, n int) error {
	if got, want := checksum(p, n), uint32(meta>>32); got != want {
		return s.fail("receive", fmt.Errorf("message %d of %d bytes: CRC-32C %08x, want %08x: %w", s.rx.seq, n, got, want, transport.ErrCorrupt))
	}
	return nil
}

// wait is what a receive says before the peer's lines were found.
func (s *stream) wait(n int) error {
	if s.err != nil {
		return s.err
	}
	if n < 0 || n > s.c.e.opts.MaxMessage {
		return s.fail("receive", s.tooLong(n))
	}
	s.c.look()
	if s.rx.ring.base == nil && s.c.over != nil {
		return s.fail("receive", s.c.over)
	}
	return nil
}

// other is what a receive says when the line does not hold the message it wants:
// nothing if none came yet, else what is wrong.
func (s *stream) other(p *uint64, tag uint32, n int) error {
	r := &s.rx
	flag := atomic.LoadUint64(p)
	switch {
	case n < 0 || n > s.c.e.opts.MaxMessage:
		return s.fail("receive", s.tooLong(n))
	case flag == r.idle[r.seq%ringLines]:
		return s.none(p, flag)
	case uint32(flag>>32) == uint32(r.seq) && uint32(flag) == tag:
		return nil // it came just now
	case uint32(flag>>32) == uint32(r.seq):
		meta := *(*uint64)(unsafe.Add(unsafe.Pointer(p), 8))
		return s.fail("receive", &transport.TagError{Seq: r.seq, Tag: uint32(flag), WantTag: tag, Bytes: int(meta & lengthMask), WantBytes: n})
	}
	return s.fail("receive", &transport.SequenceError{Got: r.seq + uint64(int32(uint32(flag>>32)-uint32(r.seq))), Want: r.seq})
}

// none is what a receive says when the line is as it was: nothing, unless a
// message got lost or none will come.
func (s *stream) none(p *uint64, idle uint64) error {
	r, c := &s.rx, s.c
	c.look()
	over := c.over
	if r.misses++; over != nil || r.misses%64 == 0 {
		next := atomic.LoadUint64(r.ring.line(r.seq + 1))
		if atomic.LoadUint64(p) != idle {
			return nil // it came just now
		}
		if uint32(next>>32) == uint32(r.seq+1) {
			return s.fail("receive", &transport.SequenceError{Got: r.seq + 1, Want: r.seq})
		}
	}
	if over == nil {
		return nil
	}
	return s.fail("receive", over)
}
