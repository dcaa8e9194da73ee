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
	address address // the peer's
	streams []stream
	link    *link // nil until connected
	arrived atomic.Pointer[link]
	failure atomic.Pointer[error]

	toSend   uint64 // bit i: stream i has messages that are not wholly in slots
	toCredit uint64 // bit i: stream i owes its peer credit
	turn     int    // the stream whose turn it is
	busy     bool   // in endpoint.busy
	used     uint64 // endpoint.tick when something was last sent or read
	park     park
	met      bool // before it was parked
	place    int  // in endpoint.conns

	one oneSided

	lost      error // nothing more will be sent or arrive
	resetting bool  // a Hook broke the connection before there was one
	closed    bool  // by our user
	gone      bool  // no QP and no socket are left
}

func newConn(e *endpoint, k transport.Key, a address) *conn {
	c := &conn{e: e, key: k, peer: peerName(k, a), address: a, streams: make([]stream, e.options.Streams)}
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
	return fmt.Sprintf("%s (%v)", c.peer, c.link)
}

// Met reports whether anything came that only the peer's user can have sent; or whether it agreed to park, as only a connection does that has one.
func (c *conn) Met() bool {
	return c.met || c.park == parked || c.link != nil && slices.ContainsFunc(c.link.lanes, func(l lane) bool { return l.arrived.count > 0 || l.credit > 0 || l.ends })
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
		switch {
		case c.park != parked:
		case !c.closed || c.toSend != 0:
			c.met = true // the lanes of the next link begin anew
			c.unpark()
		default:
			c.e.fail(c.key, errLeftBefore)
			c.lose(errClosedConn)
		}
		return false
	}
	c.link.conn, c.used, c.park = c, c.e.tick, unparked
	c.link.forsake()
	for _, q := range c.link.queues {
		if q.early != nil {
			c.link.lose(q, q.early)
		}
	}
	if c.link.live == 0 && c.link.failed == nil { // from the beginning
		c.link.detour()
	}
	if len(c.link.words) > 0 || c.link.live < len(c.link.queues) {
		c.e.called = append(c.e.called, c)
	}
	if c.resetting {
		c.reset()
		return false
	}
	return true
}

// check notes the end of the connection. The peer's goodbye comes before all other reasons, and whatever the devices have of the peer's
// before the end of the socket.
func (c *conn) check() bool {
	l := c.link
	if dead := l.dead.Load(); dead != nil && !l.left() && l.failed == nil {
		for c.e.poll() {
		}
		c.e.work() // frames of a detour
		for range parkWords {
			if c.hear(); c.link != l {
				return false // parked
			}
		}
		if !l.left() {
			l.fail(*dead)
		}
	}
	switch {
	case l.left():
		c.lose(fmt.Errorf("%w: it closed the connection", transport.ErrLeft))
	case l.failed != nil && c.park == leaving:
		c.unlink() // the peer has gone the same way
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
	return !c.gone && (c.closed || c.resetting || c.toSend|c.toCredit != 0 || c.park == leaving || c.link != nil && c.link.again > 0)
}

// progress posts what can be posted, and ends a closed connection when it is time. It reports whether anything moved.
func (c *conn) progress() bool {
	if !c.ready() {
		return false
	}
	moved := c.push()
	if c.park == leaving && !c.gone && c.link.speaker().settled() {
		c.unlink()
		return true
	}
	if c.closed && !c.gone {
		c.seeOff()
	}
	return moved
}

// push posts credits and pieces until there is no room or nothing left.
func (c *conn) push() (moved bool) {
	for c.lost == nil && c.park < yielded {
		again, credits, pieces := c.repeat(), c.credits(), c.pieces()
		if !again && !credits && !pieces {
			return moved
		}
		moved = true
		c.flush()
	}
	return moved
}

func (c *conn) flush() {
	if c.link.flush(); c.link.failed != nil {
		c.lose(c.link.failed)
	}
}

// credits gives the queues what streams owe their peers.
func (c *conn) credits() (any bool) {
	for owing := c.toCredit; owing != 0; owing &= owing - 1 {
		q := c.link.pick()
		if q == nil {
			return any
		}
		i := bits.TrailingZeros64(owing)
		lane := &c.link.lanes[i]
		lane.told = lane.free()
		q.say(immediate(immCredit, i, lane.told), 0)
		c.toCredit &^= 1 << i
		any = true
	}
	return any
}

// pieces gives the queues what streams have to send, in turn.
func (c *conn) pieces() (any bool) {
	for able := c.toSend; able != 0; {
		later := able &^ (1<<c.turn - 1)
		if later == 0 {
			later = able
		}
		i := bits.TrailingZeros64(later)
		q := c.link.pick()
		if q == nil {
			return any
		}
		if c.streams[i].cut(q) {
			any = true
		} else {
			able &^= 1 << i
		}
		able &= c.toSend
		c.turn = (i + 1) & 63
	}
	return any
}
