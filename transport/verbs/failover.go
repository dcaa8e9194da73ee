//go:build linux && cgo

package verbs

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// What happens when a request fails, and the link has other QPs, or with Config.Fallback goes on over TCP: the one that failed is in the
// state ERR then, and whatever it was given may have arrived or not.
//
//	us → peer   wordBroken i: our QP i is in ERR (with the number of the offer that it came by)
//	peer → us   wordBroken i: so is the peer's, which it has put there; or wordGone i: it has destroyed its own
//
// Only then, when nothing can be late any more, each end sends again by other QPs what it had sent by this one and has no credit for: the
// slots are still as they were. What arrives twice is known by its number, and the bytes are the same, so that whoever reads them
// meanwhile sees no difference. But the credit for what had arrived the first time may come while the second is under way by another
// QP, and so nothing new is written to a stream's slots until the device has said that this is over, or that QP is in ERR on both sides,
// too. Credits and the goodbye are said again.
//
// A word may be lost with the QP that it went by. A wordBroken is said again then. So is one that was not answered yet when the peer tells
// of a QP for the first time, by which the answer may have gone; a wordGone, which needs no answer, is not said again by itself.

// lose notes that a queue has failed, which is the link's failure if there is no other. Of a link that no conn has taken up yet, which may still be in the
// making, only that is noted.
func (l *link) lose(q *queue, why error) {
	switch {
	case q.broken:
		return
	case l.conn == nil:
		q.early = cmp.Or(q.early, why)
		return
	}
	if l.live == 1 && (!l.e.config.Fallback || l.socket == nil) {
		l.fail(why)
		return
	}
	q.broken, q.filled, l.broke = true, 0, true
	for _, other := range l.queues { // what was said by it may not have been heard
		if other.toldBy == q {
			other.told, other.toldBy = false, nil
		}
	}
	if l.live--; l.live == 0 {
		l.detour()
	}
	by, log := fmt.Sprintf("%d others", l.live), l.e.config.Log
	if l.live == 0 {
		by, log = "TCP", log.With("subnets", subnets(q.ours.link, q.ours.gid, q.peer.gid, localPrefixes()))
	}
	log.Warn("verbs: a QP has failed, its traffic goes by "+by, "queue", q, "reason", why)
	if err := q.to(ibv.Err, path{}); err != nil { // as of a device that has failed: it is destroyed, which is as final, before anything is said
		l.e.config.Log.Warn("verbs: a QP that has failed is destroyed", "queue", q, "reason", err)
		l.retired = append(l.retired, q)
	}
	l.call()
}

// call makes the driver look at what is to be said.
func (l *link) call() {
	if l.conn != nil {
		l.e.called = append(l.e.called, l.conn)
	}
}

// hearBroken notes that the peer's QP is in ERR, and puts ours there. One that may be a probe of ours, or was, is none that we have sent anything
// by: it is destroyed, if it is there, and the peer told.
func (l *link) hearBroken(count uint32) error {
	q, p, err := l.named(count)
	news := true
	switch {
	case err != nil:
		return err
	case q != nil:
		news, q.theirs = !q.theirs, true
		l.lose(q, fmt.Errorf("%w: the peer's end of it has failed", transport.ErrGone))
	case p != nil:
		news, p.failed = !p.failed, true
	case !l.lack(count):
		return fmt.Errorf("news of %d QPs that there are not", len(l.missing)+1)
	}
	for _, other := range l.queues { // an answer about them may have gone by that one
		if news && other.broken && !other.theirs {
			other.told, other.toldBy = false, nil
		}
	}
	l.call()
	return nil
}

// hearGone notes that the peer has destroyed its QP.
func (l *link) hearGone(count uint32) error {
	q, p, err := l.named(count)
	switch {
	case err != nil:
		return err
	case q != nil:
		q.theirs = true
		l.lose(q, fmt.Errorf("%w: the peer has destroyed its end of it", transport.ErrGone))
	case p != nil:
		p.failed = true
	}
	l.call()
	return nil
}

// named returns the queue that a word is about, or the probe.
func (l *link) named(count uint32) (q, probe *queue, err error) {
	i := int(count & 0xff)
	switch {
	case i >= len(l.queues):
		return nil, nil, fmt.Errorf("news of QP %d, there are %d", i, len(l.queues))
	case l.queues[i].count() == count:
		return l.queues[i], nil, nil
	case l.probes[i] != nil && l.probes[i].count() == count:
		return nil, l.probes[i], nil
	}
	return nil, nil, nil
}

// missingMost is for how many QPs the peer may wait to be told that we have not got them; of each place it waits for one.
const missingMost = 4 * queuesMost

// lack has the peer told that we have not got a QP any more, unless too much is to be told already.
func (l *link) lack(count uint32) bool {
	switch {
	case slices.Contains(l.missing, count):
		return true
	case len(l.missing) == missingMost:
		return false
	}
	l.missing = append(l.missing, count)
	return true
}

// whole reports whether nothing that was lost with a QP is still to be sent again.
func (l *link) whole() bool {
	if l.live == len(l.queues) {
		return true
	}
	for _, q := range l.queues {
		if q.broken && !q.redone {
			return false
		}
	}
	return l.again == 0
}

// recover tells the peer of QPs that broke, and finds what is to be sent again, unless the whole link has failed, or does meanwhile.
func (c *conn) recover() {
	l := c.link
	if l.failed == nil {
		c.complain(l.settle())
	}
	if l.failed != nil {
		c.enlist() // the end is check's
		return
	}
	for ; len(l.missing) > 0; l.missing = l.missing[1:] {
		other := l.pick()
		if other == nil {
			l.call() // when there is room
			return
		}
		other.say(immediate(immWord, wordGone, uint64(l.missing[0])), ibv.Signaled)
		if c.flush(); c.lost != nil {
			return
		}
	}
	if l.live == len(l.queues) {
		return
	}
	for _, q := range l.queues {
		if !q.broken {
			continue
		}
		if !q.told {
			other := l.pick()
			if other == nil {
				l.call() // when there is room
				return
			}
			other.say(immediate(immWord, wordBroken, uint64(q.count())), 0)
			q.told, q.toldBy = true, other
			if c.flush(); c.lost != nil {
				return
			}
		}
		if q.theirs && !q.redone {
			q.redone = true
			l.redo(q)
			c.toCredit = 1<<len(l.lanes) - 1
			if len(l.lanes) == 64 {
				c.toCredit = ^uint64(0)
			}
			l.saying = 0
			if l.lastWord(c); c.lost != nil {
				return
			}
			if c.key.Self < c.key.Peer && c.e.ctx.Err() == nil {
				c.e.wg.Go(func() { c.e.mend(l, q, c.key, c.address) })
			}
		}
	}
	c.enlist()
}

// redo marks what a queue may not have delivered.
func (l *link) redo(q *queue) {
	q.materialise()
	for i := range l.lanes {
		n := &l.lanes[i]
		for k := n.credit; k != n.posted; k++ {
			at := k & uint64(l.e.config.Slots-1)
			if word, bit := &n.redo[at/64], uint64(1)<<(at%64); int(n.by[at]) == q.index && *word&bit == 0 {
				*word |= bit
				l.again++
			}
		}
	}
}

// lastWord says a word of a parking again that may have been lost.
func (l *link) lastWord(c *conn) {
	switch c.park {
	case asking:
		c.say(parkAsk)
	case yielded:
		c.say(parkYes)
	case leaving:
		c.say(parkDone)
	}
}

// replay is a request that wrote a slot again.
type replay struct {
	by       *queue
	position uint32 // in its send queue
}

// replaying reports whether any slot of the lane may still be written a second time.
func (n *lane) replaying() bool {
	n.second = slices.DeleteFunc(n.second, func(r replay) bool { return r.by.redone || int32(r.by.done-r.position) >= 0 })
	return len(n.second) > 0
}

// repeat gives the queues what is to be sent again.
func (c *conn) repeat() (any bool) {
	l := c.link
	for i := 0; i < len(l.lanes) && l.again > 0; i++ {
		n := &l.lanes[i]
		for k := n.posted - min(n.posted, uint64(l.e.config.Slots)); k != n.posted; k++ {
			at := k & uint64(l.e.config.Slots-1)
			word, bit := &n.redo[at/64], uint64(1)<<(at%64)
			if *word&bit == 0 {
				continue
			}
			if k >= n.credit {
				q := l.pick()
				if q == nil {
					return any
				}
				place := l.slot(i, k)
				q.piece(place, int(binary.LittleEndian.Uint32(l.tx[place+lengthAt:])), immediate(immPiece, i, k), q.detour == nil)
				if n.by[at] = uint8(q.index); q.detour == nil { // a frame finds out itself what it is too late for
					n.second = append(n.second, replay{q, q.posted + uint32(q.filled)})
				}
			}
			*word &^= bit
			l.again--
			any = true
		}
	}
	return any
}
