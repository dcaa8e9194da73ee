//go:build linux && cgo

package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// link is a QP with its memory, and the TCP connection over which it was set up, which is kept because its end tells of the peer's at
// once. It is made in the background; from connect on the driver alone touches it, but for dead.
type link struct {
	e      *endpoint
	id     uint32
	qp     *ibv.QP
	state  ibv.State
	rx, tx *region // Streams × Slots slots each
	inline int     // bytes that a request may carry in itself
	ours   record
	peer   record
	socket net.Conn
	dead   atomic.Pointer[error] // the peer's end, as the socket tells it

	lanes    []lane
	sq, rq   int    // capacities of the queues
	posted   uint32 // requests
	done     uint32 // of those, whose completion is known
	unposted int    // receives that were taken
	receives [repost]ibv.Recv
	bye      bool // the peer will send nothing more
	saying   bool // we have posted our own goodbye
	failed   error
	gone     bool // no QP and no socket are left
}

// lane is one stream's slots in both directions, counted from 0.
type lane struct {
	posted   uint64 // slots that we wrote
	credit   uint64 // of those, read by the peer
	arrived  uint64 // slots that the peer wrote
	consumed uint64 // of those, read by us
	told     uint64 // of those, as the peer knows
}

const (
	repost    = 16  // receives are posted again so many at once
	inlineAsk = 128 // a header and 80 bytes
	sendMost  = 1024
)

// newLink makes a QP in the state INIT with all its receives posted.
func (e *endpoint) newLink() (l *link, err error) {
	streams, slots := e.options.Streams, e.config.Slots
	l = &link{e: e, lanes: make([]lane, streams)}
	// Every piece and every credit under way takes a receive at the other end. A stream has at most Slots pieces under way, and, as the
	// peer learns of credit by those receives only, at most 2 credits and one that is being written.
	l.rq = streams*(slots+3) + 2 + repost
	l.sq = min(max(streams*(slots+2)+8, 64), sendMost, e.nic.limits.MaxQPWR)
	if most := e.nic.limits.MaxQPWR; l.rq > most {
		return nil, fmt.Errorf("%w: verbs: %s: a receive queue of %d, want %d for %d streams: use less Streams or Slots", transport.ErrSpace, e.nic, most, l.rq, streams)
	}
	if err := e.reserve(l.sq + l.rq); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.shut(), l.free())
		}
	}()
	bytes := streams * slots * e.config.Slot
	if l.rx, err = e.nic.newRegion(bytes, ibv.LocalWrite|ibv.RemoteWrite); err != nil {
		return l, err
	}
	e.memory.Add(int64(bytes))
	if l.tx, err = e.nic.newRegion(bytes, 0); err != nil {
		return l, err
	}
	e.memory.Add(int64(bytes))
	want := ibv.Caps{SendWR: uint32(l.sq), RecvWR: uint32(l.rq), SendSGE: 1, RecvSGE: 1, Inline: inlineAsk}
	qp, got, err := e.nic.pd.NewQP(ibv.RC, e.cq, e.cq, nil, want)
	if err != nil {
		return l, e.nic.explain(err)
	}
	l.qp, l.inline = qp, int(got.Inline)
	e.enter(l)
	for i := range l.receives {
		l.receives[i].ID = l.requestID(0) | 1
	}
	if err := l.to(ibv.Init, path{port: e.nic.port.Number, pkeyIndex: e.config.PKeyIndex, access: ibv.RemoteWrite}); err != nil {
		return l, err
	}
	if err := l.receive(l.rq); err != nil {
		return l, err
	}
	l.ours = record{
		link: e.nic.port.LinkLayer, mtu: e.nic.port.ActiveMTU, lid: e.nic.port.LID, qpn: l.qp.Number(), psn: rand.Uint32() & most24,
		rkey: l.rx.mr.RKey(), addr: l.rx.addr, bytes: uint64(bytes), gid: e.nic.gid.GID,
	}
	return l, nil
}

// to takes the QP to another state.
func (l *link) to(state ibv.State, p path) error {
	a, err := transition{l.state, state}.attributes(ibv.RC, p)
	if err != nil {
		return err
	}
	if err := l.qp.Modify(a); err != nil {
		return l.e.nic.explain(err)
	}
	l.state = state
	return nil
}

// connect takes the QP to RTS.
func (l *link) connect(peer record) error {
	if peer.bytes != l.ours.bytes {
		return fmt.Errorf("verbs: the peer offers %d bytes of slots, want %d", peer.bytes, l.ours.bytes)
	}
	c := l.e.config
	p, err := l.ours.meets(peer, path{
		port: l.e.nic.port.Number, timeout: c.Timeout, retry: c.Retry, atomics: 1,
		av: ibv.AddressVector{GIDIndex: uint8(l.e.nic.gid.Index), HopLimit: c.HopLimit, TrafficClass: c.TrafficClass, SL: c.ServiceLevel},
	})
	if err != nil {
		return err
	}
	l.peer = peer
	if err := l.to(ibv.RTR, p); err != nil {
		return err
	}
	return l.to(ibv.RTS, p)
}

// receive posts n receives that take an immediate only.
func (l *link) receive(n int) error {
	for n > 0 {
		batch := l.receives[:min(n, len(l.receives))]
		if _, err := l.qp.PostRecv(batch); err != nil {
			return l.e.nic.explain(err)
		}
		n -= len(batch)
	}
	return nil
}

// requestID is the link's number, the position in its send queue modulo 2^31, and a bit that says receive.
func (l *link) requestID(position uint32) uint64 { return uint64(l.id)<<32 | uint64(position<<1) }

// room reports whether n+1 more requests fit. One is kept for the goodbye.
func (l *link) room(n int) bool { return int(l.posted-l.done)+n+1 < l.sq }

// post hands requests to the device. Only every so many ask for a completion, which stands for those before it.
func (l *link) post(batch []ibv.Send) error {
	every := uint32(l.sq / 4)
	for i := range batch {
		l.posted++
		batch[i].ID = l.requestID(l.posted)
		if l.posted%every == 0 {
			batch[i].Flags |= ibv.Signaled
		}
	}
	if _, err := l.qp.Post(batch); err != nil {
		return l.e.nic.explain(err)
	}
	return nil
}

// notice is a request that carries an immediate and nothing else.
func (l *link) notice(imm uint32) ibv.Send {
	return ibv.Send{Op: ibv.WriteWithImm, Remote: l.peer.addr, RKey: l.peer.rkey, Imm: imm}
}

// slot is the place of a stream's slot in either region.
func (l *link) slot(stream int, count uint64) int {
	c := l.e.config
	return (stream*c.Slots + int(count&uint64(c.Slots-1))) * c.Slot
}

// take notes a completion.
func (l *link) take(c *ibv.Completion) {
	switch {
	case l.failed != nil:
	case c.Status == ibv.Flushed && c.ID&1 == 1:
		l.failed = fmt.Errorf("%w: our device broke the connection because of what the peer asked of it; the peer's error says more: %w", transport.ErrGone, c.Status)
	case c.Status != ibv.Success:
		// The device's own words come first; what it flushes afterwards says nothing.
		l.failed = fmt.Errorf("%w: %w (vendor error %#x)", transport.ErrGone, c.Status, c.Vendor)
	case c.ID&1 == 0:
		l.done += uint32(c.ID>>1-uint64(l.done)) & (1<<31 - 1)
	default:
		if err := l.arrive(c.Imm); err != nil {
			l.failed = fmt.Errorf("%w: %w", transport.ErrCorrupt, err)
			return
		}
		if l.unposted++; l.unposted == repost {
			l.unposted = 0
			if err := l.receive(repost); err != nil {
				l.failed = fmt.Errorf("%w: %w", transport.ErrGone, err)
			}
		}
	}
}

// arrive notes what an immediate says. The completion that carried it is what promises that the slot's bytes are all there.
func (l *link) arrive(imm uint32) error {
	kind, stream, count := parseImmediate(imm)
	if stream >= len(l.lanes) {
		return fmt.Errorf("news of stream %d, there are %d", stream, len(l.lanes))
	}
	n := &l.lanes[stream]
	switch kind {
	case immPiece:
		if count != uint32(n.arrived)&countMask || n.arrived-n.consumed >= uint64(l.e.config.Slots) {
			return fmt.Errorf("slot %d of stream %d, want %d, of which %d are in use", count, stream, uint32(n.arrived)&countMask, n.arrived-n.consumed)
		}
		at := l.slot(stream, n.arrived)
		n.arrived++
		return n.credited(binary.LittleEndian.Uint32(l.rx.bytes[at+creditAt:]), ^uint32(0))
	case immCredit:
		return n.credited(count, countMask)
	case immBye:
		l.bye = true
		return nil
	}
	return fmt.Errorf("unknown immediate %#x", imm)
}

// credited takes in how many slots the peer says it has read, modulo mask + 1.
func (n *lane) credited(count, mask uint32) error {
	step := uint64((count - uint32(n.credit)) & mask)
	if step > n.posted-n.credit {
		return fmt.Errorf("the peer has read %d slots of the %d that are under way", step, n.posted-n.credit)
	}
	n.credit += step
	return nil
}

// shut destroys the QP, after which the peer cannot touch our memory, and closes the socket. Slots that have arrived can still be read.
func (l *link) shut() error {
	if l.gone {
		return nil
	}
	l.gone = true
	var errs []error
	if l.qp != nil {
		if err := l.qp.Close(); err != nil {
			errs = append(errs, fmt.Errorf("verbs: %w", err))
		}
	}
	l.e.leave(l)
	if l.socket != nil {
		l.socket.Close()
	}
	return errors.Join(errs...)
}

// free gives the memory back, after shut.
func (l *link) free() error {
	var errs []error
	for _, r := range []*region{l.rx, l.tx} {
		if r != nil {
			l.e.memory.Add(-int64(len(r.bytes)))
			errs = append(errs, r.close())
		}
	}
	l.rx, l.tx = nil, nil
	return errors.Join(errs...)
}

// goodbye is the last request of a link. It asks for a completion, which stands for everything before it.
func (l *link) goodbye() ibv.Send {
	r := l.notice(immediate(immBye, 0, 0))
	r.Flags = ibv.Signaled
	return r
}
