//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"net"

	"github.com/gccl-project/gccl/transport"
)

// lose ends the connection. What has arrived can still be read.
func (c *conn) lose(err error) {
	if c.lost == nil {
		c.lost = err
	}
	c.toSend, c.toCredit = 0, 0
	c.shut()
}

// shut destroys the QP. The memory stays until our user has closed the connection, for what is to be read in it.
func (c *conn) shut() {
	if c.gone {
		return
	}
	c.gone = true
	if l := c.arrived.Swap(nil); c.link == nil {
		c.link = l
	}
	if c.link != nil {
		c.complain(c.link.shut())
		c.drop()
	}
	for i := range c.streams {
		c.streams[i].forget()
	}
	if c.closed {
		c.free()
	}
}

// complain logs that the device did not give something back: there is nobody to return it to, and nothing that one could do.
func (c *conn) complain(err error) {
	if err != nil {
		c.e.config.Log.Error("verbs: a connection's end", "peer", c.Peer(), "error", err)
	}
}

// reset breaks the connection for both ends, when there is one.
func (c *conn) reset() {
	if c.link == nil {
		c.resetting = true
		c.enlist()
		return
	}
	if s, ok := c.link.socket.(*net.TCPConn); ok {
		s.SetLinger(0)
	}
	c.lose(errReset)
}

var errReset = fmt.Errorf("%w: the connection was reset by a fault hook", transport.ErrGone)

// Close lets what was accepted leave, which Progress does, and reads no more. What is not in slots or requests yet is copied, for its memory is
// the user's again afterwards; what devices are reading is waited for, and a connection that does not end that soon is broken.
func (c *conn) Close() error {
	if c.closed {
		return nil
	}
	c.finish()
	if c.gone {
		return nil
	}
	if !c.ready() && !c.gone && c.toSend == 0 && c.e.fail(c.key, errLeftBefore) {
		c.lose(errClosedConn)
		return nil
	}
	c.enlist()
	c.progress()
	for i := range c.streams {
		if !c.gone {
			c.streams[i].tx.takeBack()
		}
	}
	c.reclaim()
	return nil
}

// finish begins the end: the streams are closed to the user.
func (c *conn) finish() {
	if c.closed {
		return
	}
	c.closed = true
	c.e.open.Add(-1)
	if c.gone {
		c.free()
	}
}

// seeOff ends a closed connection: when all was sent a goodbye follows, and when the devices say that the peer's have it, and the kernel that the
// peer's has what went over TCP, all is over.
func (c *conn) seeOff() {
	l := c.link
	if c.toSend != 0 || c.park >= yielded || !l.whole() {
		return
	}
	said := l.goodbye()
	if c.flush(); said && l.settled() && l.parted() {
		c.lose(errClosedConn)
	}
}

var errClosedConn = fmt.Errorf("%w: our end of the connection was closed", transport.ErrClosed)

// dropBlocked gives up what waits for credit, for an endpoint that closes.
func (c *conn) dropBlocked() {
	switch {
	case c.gone:
	case !c.ready():
		c.lose(errClosedHere)
	case !c.sendable():
		c.toSend = 0
	}
}

// sendable reports whether a stream could send now, or when the device has done what it was given.
func (c *conn) sendable() bool {
	for i := range c.streams {
		if s := &c.streams[i]; c.toSend&(1<<i) != 0 && s.extent(s.tx.at(s.tx.handed)) > 0 {
			return true
		}
	}
	return false
}

// free gives back the memory of a connection that is closed and gone. What is left says who it was.
func (c *conn) free() {
	for i := range c.streams {
		s := &c.streams[i]
		c.e.shown.Add(-int64(cap(s.rx.shown)))
		s.rx.shown, s.tx.ring = nil, nil
	}
	if c.link != nil {
		c.peer = c.Peer()
		c.complain(c.link.free())
		c.link = nil
	}
	c.e.leave(c)
}

func isGone(err error) error { return fmt.Errorf("%w: %w", transport.ErrGone, err) }

// notOwn is isGone of a failure that is not known to be our own, nor that the peer has left.
func notOwn(err error) error {
	if errors.As(err, new(*transport.OwnError)) || errors.Is(err, transport.ErrLeft) {
		return err
	}
	return isGone(err)
}

// reason is what a stream reports once the connection is lost or closed.
func (c *conn) reason() error {
	if c.closed && !errors.Is(c.lost, transport.ErrClosed) {
		return errClosedConn
	}
	return c.lost
}
