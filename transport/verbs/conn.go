//go:build linux && cgo

package verbs

import (
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/gccl-project/gccl/transport"
)

// conn is our end of a pair's connection. The driver's goroutine alone touches it, but for arrived and failure.
type conn struct {
	e       *endpoint
	key     transport.Key
	peer    string
	streams []stream
	link    *link // nil until connected
	arrived atomic.Pointer[link]
	failure atomic.Pointer[error]

	toSend   uint64 // bit i: stream i has messages that are not wholly in slots
	toCredit uint64 // bit i: stream i owes its peer credit
	turn     int    // the stream whose turn it is
	busy     bool   // in endpoint.busy

	lost      error // nothing more will be sent or arrive
	resetting bool  // a Hook broke the connection before there was one
	closed    bool  // by our user
	gone      bool  // no QP and no socket are left
}

func newConn(e *endpoint, k transport.Key, a address) *conn {
	c := &conn{e: e, key: k, peer: peerName(k, a), streams: make([]stream, e.options.Streams)}
	for i := range c.streams {
		c.streams[i] = stream{conn: c, index: i}
	}
	return c
}

func (c *conn) Stream(i int) transport.Stream { return &c.streams[i] }

// Peer says who it is and, once connected, over which device, GIDs and QPs.
func (c *conn) Peer() string {
	if c.link == nil {
		return c.peer
	}
	return fmt.Sprintf("%s (%s QP %#x to %v QP %#x)", c.peer, c.e.nic, c.link.ours.qpn, addressOf(c.link.peer.gid), c.link.peer.qpn)
}

// Met reports whether anything came that only the peer's user can have sent.
func (c *conn) Met() bool {
	return c.link != nil && (c.link.bye || slices.ContainsFunc(c.link.lanes, func(l lane) bool { return l.arrived > 0 || l.credit > 0 }))
}

func (c *conn) wrap(op string, err error) error {
	return &transport.PeerError{Transport: Name, Key: c.key, Peer: c.Peer(), Op: op, Err: err}
}

// ready reports whether there is a link that works, after it took up one that has arrived and noted what befell it.
func (c *conn) ready() bool {
	if c.gone {
		return false
	}
	if c.link == nil && !c.takeUp() {
		return false
	}
	return c.check()
}

func (c *conn) takeUp() bool {
	if failed := c.failure.Load(); failed != nil {
		c.lose(*failed)
		return false
	}
	c.link = c.arrived.Swap(nil)
	if c.link == nil {
		return false
	}
	if c.resetting {
		c.reset()
		return false
	}
	return true
}

// check notes the end of the connection. The peer's goodbye comes before all other reasons, and whatever the device has of the peer's
// before the end of the socket.
func (c *conn) check() bool {
	l := c.link
	if dead := l.dead.Load(); dead != nil && !l.bye && l.failed == nil {
		for c.e.poll() {
		}
		if !l.bye && l.failed == nil {
			l.failed = *dead
		}
	}
	switch {
	case l.bye:
		c.lose(fmt.Errorf("%w: it closed the connection", transport.ErrLeft))
	case l.failed != nil:
		c.lose(l.failed)
	default:
		return true
	}
	return false
}

// enlist makes Progress look after c.
func (c *conn) enlist() {
	if !c.busy {
		c.busy = true
		c.e.busy = append(c.e.busy, c)
	}
}

// pending reports whether there is something for Progress to do.
func (c *conn) pending() bool {
	return !c.gone && (c.closed || c.resetting || c.toSend|c.toCredit != 0)
}

// progress posts what can be posted, and ends a closed connection when it is time. It reports whether anything moved.
func (c *conn) progress() bool {
	if !c.ready() {
		return false
	}
	moved := c.push()
	if c.closed && !c.gone {
		c.seeOff()
	}
	return moved
}

// push posts credits and pieces until there is no room or nothing left.
func (c *conn) push() (moved bool) {
	for c.lost == nil {
		n := c.credits(0)
		n = c.pieces(n)
		if n == 0 {
			return moved
		}
		moved = true
		if err := c.link.post(c.e.batch[:n]); err != nil {
			c.lose(isGone(err))
		}
	}
	return moved
}

// credits adds to a batch of n what streams owe their peers.
func (c *conn) credits(n int) int {
	for owing := c.toCredit; owing != 0 && n < len(c.e.batch) && c.link.room(n); owing &= owing - 1 {
		i := bits.TrailingZeros64(owing)
		lane := &c.link.lanes[i]
		lane.told = lane.consumed
		c.e.batch[n] = c.link.notice(immediate(immCredit, i, lane.told))
		c.toCredit &^= 1 << i
		n++
	}
	return n
}

// pieces adds to a batch of n what streams have to send, in turn.
func (c *conn) pieces(n int) int {
	for able := c.toSend; able != 0 && n < len(c.e.batch) && c.link.room(n); {
		later := able &^ (1<<c.turn - 1)
		if later == 0 {
			later = able
		}
		i := bits.TrailingZeros64(later)
		if c.streams[i].cut(&c.e.batch[n]) {
			n++
		} else {
			able &^= 1 << i
		}
		able &= c.toSend
		c.turn = (i + 1) & 63
	}
	return n
}
