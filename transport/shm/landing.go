//go:build linux && (amd64 || arm64)

package shm

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
)

// landing is memory from Alloc where the receiver of a message wants it, so that the sender can make it right there. It is in the ring of the
// receiver's half of the stream, and belongs to one message:
//
//	 0  state  the message's number << 2 | landingOffered, or landingTaken from when the sender began to write there
//	 8  offset in the receiver's segment, of whole pages
//	16  bytes
//
// Offered, it is withdrawn by a swap, after which the sender does not write there. Taken, it is the receiver's again when the message has come. A
// receiver that must go before, because the call failed while the sender stood still, leaves these pages to it and puts others in their place.
type landing struct{ state, off, bytes uint64 }

// States of a landing.
const (
	landingNone = iota
	landingOffered
	landingTaken
)

// landFrom is the shortest message that is offered a landing. It was not measured finely: below, copies are cheap and offers are too.
const landFrom = 32 << 10

var _ transport.Lander = (*stream)(nil)

// offer is what a receiver knows of the landing that it offered last. Peers cannot write here.
type offer struct {
	seq uint64
	off int64
	n   int // 0: there was none
}

// Land offers b to the peer. See transport.Lander.
func (s *stream) Land(ahead uint64, b transport.Buf) {
	t, r, seg := &s.tx, &s.rx, s.c.e.seg
	off, inside := seg.offset(b.Ptr, b.N)
	if t.short == 0 || !b.Shared || b.N < landFrom || !inside || off%seg.page != 0 || int64(b.N)%seg.page != 0 {
		return
	}
	r.offer = offer{r.seq + ahead, off, b.N}
	at := t.ring.landing()
	atomic.StoreUint64(&at.off, uint64(off))
	atomic.StoreUint64(&at.bytes, uint64(b.N))
	atomic.StoreUint64(&at.state, r.offer.seq<<2|landingOffered)
}

// Landing returns where the peer wants the next message. See transport.Lander.
func (s *stream) Landing(n int) unsafe.Pointer {
	t, r, peer := &s.tx, &s.rx, s.c.p
	if n < landFrom || t.short == 0 || r.ring.base == nil {
		return nil
	}
	if full, err := t.full(1); full || err != nil {
		return nil
	}
	at := r.ring.landing()
	offered := t.seq<<2 | landingOffered
	if atomic.LoadUint64(&at.state) != offered {
		return nil
	}
	off := atomic.LoadUint64(&at.off)
	if atomic.LoadUint64(&at.bytes) != uint64(n) || !peer.holds(off, int64(n), 1) || peer.check(int64(off), int64(n)) != nil ||
		!atomic.CompareAndSwapUint64(&at.state, offered, t.seq<<2|landingTaken) {
		return nil
	}
	t.staged, t.lands = int64(off), true
	return peer.at(int64(off))
}

// landed returns where a message lies that the peer says it made where we wanted it.
func (s *stream) landed(off uint64, n int) (unsafe.Pointer, error) {
	r, seg := &s.rx, s.c.e.seg
	if want := (offer{r.seq, int64(off), n}); r.offer != want || n == 0 {
		return nil, s.fail("receive", &descriptorError{What: "a message in our memory", Offset: off, Bytes: int64(n), Segment: seg.size})
	}
	return seg.at(int64(off)), nil
}

// withdraw returns when the peer cannot write any more to what Land offered.
func (s *stream) withdraw() {
	t, r, c := &s.tx, &s.rx, s.c
	o := r.offer
	if r.offer = (offer{}); o.n == 0 || int64(o.seq-r.seq) < 0 {
		return // its message has come
	}
	if at := t.ring.landing(); atomic.CompareAndSwapUint64(&at.state, o.seq<<2|landingOffered, landingNone) {
		return
	}
	for !c.unread && !r.holds(o.seq) && c.e.seg.detach(o.off, int64(o.n)) != nil && !c.p.dead() {
		time.Sleep(time.Millisecond) // without room for a mapping we can only wait for the peer, which takes microseconds unless it stands still
	}
}
