//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// queue is one QP of a link, on one of our ports. It is made in the background; from connect on the driver alone touches it.
type queue struct {
	link   *link
	index  int // in link.queues
	nic    *nic
	id     uint32
	qp     pair
	state  ibv.State
	inline int // bytes that a request may carry in itself
	lkey   uint32
	ours   record
	peer   record

	sq, rq   int    // capacities
	posted   uint32 // requests
	done     uint32 // of those, whose completion is known
	bulk     uint32 // the last of those that were a piece of a long message
	unposted int    // receives that were taken
	receives [repost]ibv.Recv
	batch    [batchMost]ibv.Send // to be posted
	filled   int
	gathers  bool   // a request may read a slot's header and a message where it lies
	loans    []loan // requests under way that do
	stall    stall

	detour     *detour // instead of a QP
	generation uint32  // number of the offer that it came by; 0: of the set-up
	first      *queue  // that was in its place then; nil: it is itself
	probing    bool    // it may take another's place if what was sent by it arrives
	failed     bool    // that it did not
	early      error   // why it failed before a conn took the link up
	broken     bool    // our QP is in ERR, and nothing more is posted to it
	told       bool    // of which the peer knows
	toldBy     *queue  // by which
	theirs     bool    // so is the peer's
	redone     bool    // what it may have lost is to be sent again by others
}

// pair is an *ibv.QP.
type pair interface {
	Modify(ibv.Attr) error
	Query() (ibv.Attr, error)
	Post([]ibv.Send) (int, error)
	PostRecv([]ibv.Recv) (int, error)
	Close() error
}

const (
	repost    = 16 // receives are posted again so many at once
	batchMost = 32 // requests are posted so many at once
	sendMost  = 1024
)

// newQueue makes a QP in the state INIT with all its receives posted.
func (l *link) newQueue(n *nic) (q *queue, err error) {
	if err := n.failed(); err != nil {
		return nil, err
	}
	streams, slots := l.e.options.Streams, l.e.config.Slots
	q = &queue{link: l, nic: n, lkey: l.memory.of.mrs[n.index].LKey()}
	// Every piece and every notice under way takes a receive at the other end. A stream has at most Slots pieces under way, and, as the
	// peer learns of credit by such receives only, at most 2 credits and one that is being written; then there is its end. One more
	// credit is for what other QPs, whose turn to be polled came first, let the peer send, and a parking has its words.
	rq := streams*(slots+5) + 1 + parkWords + repost
	sq := min(max(streams*(slots+2)+8, 64), sendMost, n.limits.MaxQPWR)
	if most := n.limits.MaxQPWR; rq > most {
		return nil, fmt.Errorf("%w: verbs: %s: a receive queue of %d, want %d for %d streams: use less Streams or Slots", transport.ErrSpace, n, most, rq, streams)
	}
	if err := n.reserve(sq + rq); err != nil {
		return nil, err
	}
	q.sq, q.rq = sq, rq
	want := ibv.Caps{SendWR: uint32(sq), RecvWR: uint32(rq), SendSGE: uint32(min(2, n.limits.MaxSGE)), RecvSGE: 1, Inline: inlineAsk}
	qp, got, err := n.pd.NewQP(ibv.RC, n.cq, n.cq, nil, want)
	if err != nil {
		n.vacate(q)
		return nil, n.explain(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, q.close())
		}
	}()
	q.qp, q.inline, q.gathers = qp, int(got.Inline), got.SendSGE >= 2
	n.enter(q)
	for i := range q.receives {
		q.receives[i].ID = q.requestID(0) | 1
	}
	if err := q.to(ibv.Init, path{port: n.port.Number, pkeyIndex: n.pkeyIndex, access: n.access()}); err != nil {
		return nil, err
	}
	if err := q.receive(rq); err != nil {
		return nil, err
	}
	q.ours = record{
		link: n.port.LinkLayer, mtu: n.mtu, lid: n.port.LID, qpn: qp.Number(), psn: rand.Uint32() & most24,
		rkey: l.memory.of.mrs[n.index].RKey(), addr: l.memory.addr(), bytes: uint64(l.half), gid: n.gid.GID, reads: n.reads(),
	}
	return q, nil
}

// to takes the QP to another state.
func (q *queue) to(state ibv.State, p path) error {
	a, err := transition{q.state, state}.attributes(ibv.RC, p)
	if err != nil {
		return err
	}
	if err := q.qp.Modify(a); err != nil {
		return q.nic.explain(err)
	}
	q.state = state
	return nil
}

// connect takes the QP to RTS.
func (q *queue) connect(peer record) error {
	if peer.vacant() {
		return errors.New("verbs: the peer has no QP there")
	}
	if peer.bytes != q.ours.bytes {
		return fmt.Errorf("verbs: the peer offers %d bytes of slots, want %d", peer.bytes, q.ours.bytes)
	}
	c := q.link.e.config
	p, err := q.ours.meets(peer, path{
		port: q.nic.port.Number, timeout: c.Timeout, retry: c.Retry,
		av: ibv.AddressVector{GIDIndex: uint8(q.nic.gid.Index), HopLimit: c.HopLimit, TrafficClass: c.TrafficClass, SL: c.ServiceLevel},
	})
	if err != nil {
		return err
	}
	q.peer = peer
	if err := q.to(ibv.RTR, p); err != nil {
		return err
	}
	return q.to(ibv.RTS, p)
}

// receive posts n receives that take an immediate only.
func (q *queue) receive(n int) error {
	for n > 0 {
		batch := q.receives[:min(n, len(q.receives))]
		if _, err := q.qp.PostRecv(batch); err != nil {
			return q.nic.explain(err)
		}
		n -= len(batch)
	}
	return nil
}

// requestID is the queue's number, the position in its send queue modulo 2^31, and a bit that says receive.
func (q *queue) requestID(position uint32) uint64 { return uint64(q.id)<<32 | uint64(position<<1) }

// room reports whether one more request fits.
func (q *queue) room() bool {
	return !q.broken && q.filled < batchMost && (q.detour != nil || int(q.posted-q.done)+q.filled < q.sq)
}

// origin is the QP that was in this place first.
func (q *queue) origin() *queue {
	if q.first != nil {
		return q.first
	}
	return q
}

// count is what words say of which QP they are about: its place, and the number of its offer modulo 2^16.
func (q *queue) count() uint32 { return uint32(uint16(q.generation))<<8 | uint32(q.index) }

// next is the place of one more request. There must be room.
func (q *queue) next() *ibv.Send {
	q.filled++
	return &q.batch[q.filled-1]
}

// say adds a request that carries an immediate and nothing else.
func (q *queue) say(imm, flags uint32) {
	*q.next() = ibv.Send{Op: ibv.WriteWithImm, Remote: q.peer.addr, RKey: q.peer.rkey, Imm: imm, Flags: flags}
}

// piece adds the request that writes so many bytes behind a slot's header. Of bulk a completion is asked for.
func (q *queue) piece(at, bytes int, imm uint32, bulk bool) {
	r := q.next()
	*r = ibv.Send{
		Addr: q.ours.addr + uint64(q.link.half+at), Bytes: uint32(headerSize + bytes), LKey: q.lkey, Op: ibv.WriteWithImm,
		Remote: q.peer.addr + uint64(at), RKey: q.peer.rkey, Imm: imm,
	}
	if headerSize+bytes <= q.inline {
		r.Flags = ibv.Inline
	}
	if bulk {
		r.Flags |= ibv.Signaled
		q.bulk = q.posted + uint32(q.filled)
	}
}

// busy reports whether a piece of a long message is under way, as far as the completions say.
func (q *queue) busy() bool { return !q.broken && int32(q.bulk-q.done) > 0 }

// flush hands the requests to the device. Only every so many ask for a completion, which stands for those before it.
func (q *queue) flush() error {
	batch := q.batch[:q.filled]
	q.filled = 0
	every := uint32(q.sq / 4)
	for i := range batch {
		q.posted++
		batch[i].ID = q.requestID(q.posted)
		if q.posted%every == 0 {
			batch[i].Flags |= ibv.Signaled
		}
	}
	if _, err := q.qp.Post(batch); err != nil {
		return q.nic.explain(err)
	}
	return nil
}

// settled reports whether the device is done with all that it was given. The last of that must have asked for a completion.
func (q *queue) settled() bool {
	if q.detour != nil {
		q.done = q.detour.written.Load()
	}
	return q.done == q.posted && q.filled == 0
}

// take notes a completion.
func (q *queue) take(c *ibv.Completion) {
	l := q.link
	switch {
	case l.failed != nil:
	case c.Status != ibv.Success && q.broken:
	case c.Status != ibv.Success && l.conn != nil && l.queues[q.index] != q:
		q.failed = true
		l.call()
	case c.Status == ibv.Flushed && c.ID&1 == 1:
		l.lose(q, fmt.Errorf("%w: our device broke the connection because of what the peer asked of it; the peer's error says more: %w", transport.ErrGone, c.Status))
	case c.Status != ibv.Success:
		// The device's own words come first; what it flushes afterwards says nothing.
		why := fmt.Errorf("%s: %w (vendor error %#x)", q, c.Status, c.Vendor)
		if c.Status.Local(c.ID&1 == 1) {
			l.lose(q, l.own(why))
		} else {
			l.lose(q, isGone(why))
		}
	case c.ID&1 == 0:
		if q.probing {
			l.call()
		}
		q.done += uint32(c.ID>>1-uint64(q.done)) & (1<<31 - 1)
		q.repay()
	default:
		if err := l.arrive(c.Imm); err != nil {
			l.fail(fmt.Errorf("%w: %w", transport.ErrCorrupt, err))
			return
		}
		if q.unposted++; q.unposted == repost && !q.broken {
			q.unposted = 0
			if err := q.receive(repost); err != nil {
				l.lose(q, l.own(err))
			}
		}
	}
}

// close destroys the QP, after which the peer cannot touch our memory by it. Of a link that nobody has taken up that is done in the background,
// where the driver might be about to use the QP because of a completion.
func (q *queue) close() error {
	if q.qp == nil {
		return nil
	}
	q.nic.leave(q)
	err := q.qp.Close()
	q.qp = nil
	q.nic.vacate(q)
	if err != nil {
		return fmt.Errorf("verbs: %w", err)
	}
	return nil
}

// String says over which device, GIDs and QPs it goes.
func (q *queue) String() string {
	return fmt.Sprintf("%s QP %#x to %v QP %#x", q.nic, q.ours.qpn, addressOf(q.peer.gid), q.peer.qpn)
}
