//go:build linux && (amd64 || arm64)

package shm

import (
	"errors"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/spin"
)

// sender is the outgoing half of a stream, all of it in our own segment.
type sender struct {
	ring     ring    // none: not established
	short    uint    // messages of fewer bytes may take the short way
	first    uint64  // number of the first message
	seq      uint64  // of the next one
	head     uint64  // the reader's count, as last seen
	bell     *uint32 // the peer's sleep word
	counters *counters

	skew    uint64 // lines used more than messages sent: messages sent twice by a Hook
	lends   int    // lines that carry a lent message and are not read yet
	lent    [ringLines]bool
	staging staging
	staged  int64 // the slot that Stage returned
	lands   bool  // it is the peer's memory, from Landing
	asked   bool  // the Hook was, about the next message
	fate    transport.Fate
	until   time.Time // when a delayed message may go
	timer   *time.Timer
}

func (t *sender) attach(at ring, o transport.Options) {
	// The rings may be used, not fresh: nothing old must look new.
	for k := range uint64(ringLines) {
		seq := o.FirstSeq + k
		atomic.StoreUint64(at.line(seq), (seq-ringLines)<<32)
	}
	atomic.StoreUint64(at.head(), o.FirstSeq)
	atomic.StoreUint64(&at.landing().state, landingNone)
	t.ring = at
	if o.Hook == nil && !o.Checksum {
		t.short = uint(at.inline()) + 1
	}
}

// Send hands b to the peer. See transport.Stream.
func (s *stream) Send(tag uint32, b transport.Buf) (bool, error) {
	t := &s.tx
	if uint(b.N) >= t.short || b.Ptr == nil && b.N > 0 || t.seq-t.head >= ringLines {
		return s.sendLong(tag, b)
	}
	p := t.ring.line(t.seq)
	if to := payload(p, b.N); b.N == 8 {
		*(*uint64)(to) = *(*uint64)(b.Ptr)
	} else {
		copyBytes(to, b.Ptr, b.N)
	}
	*(*uint64)(unsafe.Add(unsafe.Pointer(p), 8)) = uint64(b.N) | s.rx.ack()
	t.publish(p, tag, b.N)
	lines := 1
	if b.N > besideFlag {
		lines = (behindAt + b.N + lineBytes - 1) / lineBytes
	}
	spin.Own(t.ring.line(t.seq), lines) // the next message will be alike, and the peer has its lines from the last time round
	return true, nil
}

// publish lets the reader see the line, and wakes it if it sleeps. Atomic accesses have
// one order: either we see the peer's sleep word, or the peer sees our line.
func (t *sender) publish(p *uint64, tag uint32, n int) {
	atomic.StoreUint64(p, t.seq<<32|uint64(tag))
	t.seq++
	t.counters.messagesSent++
	t.counters.bytesSent += uint64(n)
	if atomic.LoadUint32(t.bell) != 0 {
		wake(t.bell)
	}
}

func (s *stream) sendLong(tag uint32, b transport.Buf) (bool, error) {
	c, t := s.c, &s.tx
	switch {
	case s.err != nil:
		return false, s.err
	case b.N < 0 || b.N > c.e.opts.MaxMessage:
		return false, s.fail("send", s.tooLong(b.N))
	case b.Ptr == nil && b.N > 0:
		return false, s.fail("send", fmt.Errorf("a message of %d bytes at a nil pointer", b.N))
	case c.over != nil:
		return false, s.fail("send", c.over)
	}
	if t.ring.base == nil {
		if err := c.establish(); err != nil {
			return false, s.fail("send", err)
		}
	}
	if full, err := t.full(1); err != nil {
		return false, s.fail("send", err)
	} else if full {
		return false, s.blocked()
	}
	if c.e.opts.Hook != nil {
		return s.sendHooked(tag, b)
	}
	return s.write(tag, b, 0)
}

// blocked is what Send says when there is no room: nothing, or that there will
// never be.
func (s *stream) blocked() error {
	if s.c.look(); s.c.over != nil {
		return s.fail("send", s.c.over)
	}
	return nil
}

// full reports whether fewer lines than that are free. Only then it reads how far the reader is, which costs as much as a line takes from there to here.
func (t *sender) full(lines uint64) (bool, error) {
	if t.ring.base == nil || t.seq+t.skew+lines-t.head <= ringLines {
		return false, nil
	}
	err := t.refresh()
	return t.seq+t.skew+lines-t.head > ringLines, err
}

// refresh reads how far the reader is.
func (t *sender) refresh() error {
	if t.ring.base == nil {
		return nil
	}
	head := atomic.LoadUint64(t.ring.head())
	if head-t.head > t.seq+t.skew-t.head {
		return &transport.SequenceError{Got: head, Want: t.head}
	}
	t.passes(head)
	return nil
}

// hears takes the reader's count from a message of the peer's. It is not news if we have looked since, and nothing if it cannot be true.
func (t *sender) hears(meta uint64) {
	if read := uint64(uint16(meta>>ackShift) - uint16(t.head)); read != 0 && read <= t.seq+t.skew-t.head {
		t.passes(t.head + read)
	}
}

// passes notes that the reader is done with the lines before head.
func (t *sender) passes(head uint64) {
	if t.lends == 0 {
		t.head = head
		return
	}
	for ; t.head != head; t.head++ {
		if l := &t.lent[t.head%ringLines]; *l {
			*l = false
			t.lends--
		}
	}
}

// write puts b into the next line, which is free. Flip, if > 0, is the bit to
// spoil plus one.
func (s *stream) write(tag uint32, b transport.Buf, flip int) (bool, error) {
	c, t := s.c, &s.tx
	at := t.seq + t.skew
	p := t.ring.line(at)
	to := payload(p, b.N)
	meta := uint64(b.N)
	if c.e.opts.Checksum {
		meta |= uint64(checksum(b.Ptr, b.N)) << 32
	} else {
		meta |= s.rx.ack()
	}
	if b.N > t.ring.inline() {
		var off int64
		lend := b.Shared && flip == 0 && s.Lends(b.N)
		if lend {
			off, lend = c.e.seg.offset(b.Ptr, b.N)
		}
		if !lend {
			var err error
			if off, err = t.stage(c.e, b.N, b.Shared && !c.p.puts.far); errors.Is(err, errBusy) {
				return false, s.blocked()
			} else if err != nil {
				return false, s.fail("send", c.refuse(err))
			}
			c.p.puts.copy(c.e.seg.at(off), b.Ptr, b.N)
		}
		if t.lent[at%ringLines] = lend; lend {
			t.lends++
		}
		meta |= farBit
		if lend {
			meta |= lentBit
		}
		*(*uint64)(unsafe.Add(unsafe.Pointer(p), inlineAt)) = uint64(off)
		to = c.e.seg.at(off)
	} else {
		copyBytes(to, b.Ptr, b.N)
	}
	if flip > 0 && b.N > 0 {
		bit := (flip - 1) % (b.N * 8)
		*(*byte)(unsafe.Add(to, bit/8)) ^= 1 << (bit % 8)
	}
	*(*uint64)(unsafe.Add(unsafe.Pointer(p), 8)) = meta
	t.publish(p, tag, b.N)
	return true, nil
}

// Sent counts the messages whose memory is ours again: all but those lent, and
// those behind the first one lent. See transport.Stream.
func (s *stream) Sent() (uint64, error) {
	t := &s.tx
	if s.err != nil {
		return 0, s.err
	}
	if t.lends == 0 {
		return t.seq - t.first, nil
	}
	at := t.firstLent()
	if at != t.seq+t.skew {
		if err := t.refresh(); err != nil {
			return 0, s.fail("send", err)
		}
		if at = t.firstLent(); at != t.seq+t.skew {
			if err := s.blocked(); err != nil {
				return 0, err
			}
		}
	}
	return at - t.skew - t.first, nil
}

func (t *sender) firstLent() uint64 {
	end := t.seq + t.skew
	for at := t.head; at != end; at++ {
		if t.lent[at%ringLines] {
			return at
		}
	}
	return end
}

func (t *sender) free() {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.staging.free()
}

func copyBytes(dst, src unsafe.Pointer, n int) {
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
}

func checksum(p unsafe.Pointer, n int) uint32 {
	return crc32.Checksum(unsafe.Slice((*byte)(p), n), castagnoli)
}
