package tcp

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// conn is our end of a pair's connection. The driver's goroutine alone touches
// it, but for arrived and failure.
type conn struct {
	endpoint *endpoint
	key      transport.Key
	meet     *meet
	place    int // in endpoint.conns
	peer     string
	near     bool // the peer has our address: what we send stays on the loopback device
	streams  []stream
	flows    []flow // none until connected
	window   uint64 // the peer's
	arrived  atomic.Pointer[link]
	failure  atomic.Pointer[error]

	toSend   uint64 // bit i: stream i has messages that are not wholly cut into frames
	toCredit uint64 // bit i: stream i owes its peer credit
	turn     int    // the stream whose turn it is
	busy     bool   // in endpoint.busy

	unsendable error // writing failed: what is under way will not leave
	lost       error // and nothing more will be read either
	resetting  bool  // a Hook broke the connection before there was one
	closed     bool  // by our user
	gone       bool  // no descriptor is left
}

func newConn(e *endpoint, m *meet, a address) *conn {
	k := m.key
	c := &conn{endpoint: e, key: k, meet: m, peer: peerName(k, a), near: a.at.Addr() == e.address.at.Addr() || a.at.Addr().IsLoopback(), streams: make([]stream, e.options.Streams)}
	for i := range c.streams {
		c.streams[i] = stream{conn: c, index: i}
	}
	return c
}

func (c *conn) Stream(i int) transport.Stream { return &c.streams[i] }

func (c *conn) Peer() string { return c.peer }

// Met reports whether anything came that only the peer's user can have sent.
func (c *conn) Met() bool {
	for i := range c.streams {
		if s := &c.streams[i]; s.rx.first > 0 || s.tx.acked > 0 {
			return true
		}
	}
	return slices.ContainsFunc(c.flows, func(f flow) bool { return f.bye || f.w > f.r })
}

func (c *conn) wrap(op string, err error) error {
	return &transport.PeerError{Transport: Name, Key: c.key, Peer: c.peer, Op: op, Err: err}
}

// ready reports whether there are sockets, after it took up those that have
// arrived.
func (c *conn) ready() bool {
	return c.flows != nil || c.takeUp()
}

func (c *conn) takeUp() bool {
	if c.gone {
		return false
	}
	l := c.arrived.Swap(nil)
	if failed := c.failure.Load(); failed != nil {
		if l != nil {
			l.close()
		}
		c.lose(*failed)
		return false
	}
	if l == nil {
		return false
	}
	c.window = l.window
	c.flows = make([]flow, len(l.fds))
	for i, fd := range l.fds {
		if c.near {
			unpace(fd)
		}
		c.flows[i] = flow{conn: c, index: i, fd: fd, buf: make([]byte, bufferSize)}
		c.endpoint.memory.Add(bufferSize)
	}
	if c.resetting {
		c.reset()
		return false
	}
	return true
}

// watch has the endpoint's epoll set hold the sockets. One that takes all we have is not watched for room, which it has: that would be news.
func (c *conn) watch() {
	for i := range c.flows {
		f := &c.flows[i]
		events := uint32(unix.EPOLLIN | unix.EPOLLRDHUP)
		if f.queued > 0 {
			events |= unix.EPOLLOUT
		}
		op := unix.EPOLL_CTL_MOD
		switch f.watched {
		case events:
			continue
		case 0:
			op = unix.EPOLL_CTL_ADD
		}
		if err := c.endpoint.watch(op, f.fd, events); err != nil {
			c.lose(c.own(err))
			c.endpoint.poke()
			return
		}
		f.watched = events
	}
}

// enlist makes Progress look after c.
func (c *conn) enlist() {
	if !c.busy {
		c.busy = true
		c.endpoint.busy = append(c.endpoint.busy, c)
	}
}

// pending reports whether there is something for Progress to do.
func (c *conn) pending() bool {
	if c.gone {
		return false
	}
	if c.closed || c.resetting {
		return true
	}
	if c.toSend|c.toCredit != 0 {
		return c.unsendable == nil
	}
	for i := range c.flows {
		if c.flows[i].queued > 0 {
			return c.unsendable == nil
		}
	}
	return false
}

// progress writes, and reads for the sake of credit. It reports whether anything
// moved.
func (c *conn) progress() bool {
	if !c.ready() {
		return false
	}
	moved := c.push()
	if c.pending() && c.pump(nil) {
		moved = true
		c.push()
	}
	if c.closed {
		c.seeOff()
	}
	return moved
}

// push writes on all flows in turn, until they take no more or enough was written.
func (c *conn) push() (moved bool) {
	if c.unsendable != nil {
		return false
	}
	for budget := enough; budget > 0; {
		before := budget
		for i := range c.flows {
			n := c.flows[i].push()
			if c.unsendable != nil {
				return true
			}
			budget -= n
		}
		if budget == before {
			return moved
		}
		moved = true
	}
	return moved
}

// pump reads until stop has its message, nothing is left, or enough was read.
func (c *conn) pump(stop *stream) (moved bool) {
	drained := true
	for i := range c.flows {
		f := &c.flows[i]
		if f.pump(stop) {
			moved = true
		}
		if c.lost != nil || stop != nil && stop.settled() {
			return moved
		}
		if !f.drained {
			drained = false
		}
	}
	if drained {
		c.noteEnd()
	}
	return moved
}

// noteEnd makes the end of sockets the end of the connection: of one of them when
// it came without a goodbye, else of all.
func (c *conn) noteEnd() {
	ended := 0
	for i := range c.flows {
		f := &c.flows[i]
		if f.end == nil {
			continue
		}
		if !f.bye {
			c.lose(f.end)
			return
		}
		ended++
	}
	if ended > 0 && ended == len(c.flows) {
		c.lose(fmt.Errorf("%w: it closed the connection", transport.ErrLeft))
	}
}

// lose ends the connection for a reason of the peer's or the network's.
func (c *conn) lose(err error) {
	if c.lost == nil {
		c.lost = err
	}
	c.cannotSend(err)
	c.shut()
}

// cannotSend ends sending. What has been sent to us can still be read.
func (c *conn) cannotSend(err error) {
	if c.unsendable == nil {
		c.unsendable = err
	}
	c.toSend, c.toCredit = 0, 0
	for i := range c.flows {
		c.flows[i].dropFrames()
	}
	for i := range c.streams {
		c.streams[i].tx.forget()
	}
}

// shut closes the sockets. Staged messages stay to be read.
func (c *conn) shut() {
	if c.gone {
		return
	}
	c.gone = true
	for i := range c.flows {
		f := &c.flows[i]
		unix.Close(f.fd)
		f.fd, f.buf = -1, nil
		c.endpoint.memory.Add(-bufferSize)
	}
	c.flows = nil
	if c.closed {
		c.free()
	}
}

// reset breaks the connection for both ends.
func (c *conn) reset() {
	if !c.ready() {
		c.resetting = true
		c.enlist()
		return
	}
	for i := range c.flows {
		unix.SetsockoptLinger(c.flows[i].fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	c.lose(errReset)
}

var errReset = fmt.Errorf("%w: the connection was reset by a fault hook", transport.ErrGone)

// corrupt ends a connection on which nothing can be trusted any more. The peer
// gets a reset.
func (c *conn) corrupt(err error) {
	for i := range c.flows {
		unix.SetsockoptLinger(c.flows[i].fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	c.lose(fmt.Errorf("%w: bad frame: %w", transport.ErrCorrupt, err))
}

// abandon ends a closed connection at once, whatever is under way.
func (c *conn) abandon(err error) {
	if l := c.arrived.Swap(nil); l != nil {
		l.close()
	}
	c.lose(err)
}

// Close lets what was accepted leave, which Progress does, and reads no more. What the kernel does not take at once is copied, for its
// memory is the user's again afterwards.
func (c *conn) Close() error {
	if c.closed {
		return nil
	}
	c.finish()
	if !c.ready() && !c.gone && c.toSend == 0 &&
		c.endpoint.fail(c.meet, errLeftBefore) {
		c.abandon(transport.ErrClosed)
		return nil
	}
	c.enlist()
	c.progress()
	if !c.gone && c.unsendable == nil {
		for i := range c.streams {
			c.streams[i].tx.takeBack()
		}
		for i := range c.flows {
			c.flows[i].takeBack()
		}
	}
	return nil
}

// finish begins the end: the streams are closed to the user.
func (c *conn) finish() {
	if c.closed {
		return
	}
	c.closed = true
	c.endpoint.open.Add(-1)
	for i := range c.streams {
		c.streams[i].rx.stop()
	}
	if c.gone {
		c.free()
	}
}

// ended reports whether a closed connection has nothing left to do.
func (c *conn) ended() bool { return c.gone }

// seeOff closes the sockets of a closed connection once the peer's kernel has all
// that was sent, or the peer has gone. Closing earlier could destroy what the
// peer has not read: with unread data on our side the kernel resets.
func (c *conn) seeOff() {
	for i := range c.flows {
		f := &c.flows[i]
		if f.end == nil && c.unsendable == nil && (!f.said || unacknowledged(f.fd) > 0) {
			return
		}
	}
	c.lose(errClosedConn)
}

var errClosedConn = fmt.Errorf("%w: our end of the connection was closed", transport.ErrClosed)

// dropBlocked gives up what waits for credit, for an endpoint that closes.
func (c *conn) dropBlocked() {
	if c.gone {
		return
	}
	if !c.ready() {
		c.abandon(errClosedHere)
		return
	}
	if c.toSend != 0 && !c.sendable() {
		c.toSend = 0
		c.push() // the goodbye
	}
}

// free gives back the memory of a connection that is closed and gone.
func (c *conn) free() {
	for i := range c.streams {
		s := &c.streams[i]
		c.endpoint.memory.Add(-s.memory)
		s.memory, s.rx.ring, s.rx.staging, s.rx.shown, s.tx.ring = 0, nil, nil, nil, nil
	}
	c.endpoint.leave(c)
}

func isGone(err error) error {
	return fmt.Errorf("%w: %w", transport.ErrGone, err)
}

// own is a failure that the peer has no part in.
func (c *conn) own(err error) error { return &transport.OwnError{Rank: int(c.key.Self), Err: err} }

// blame says whose failure a system call's on a socket is: the memory, the descriptor, the firewall's rules and what the kernel lacks are ours.
func (c *conn) blame(errno unix.Errno) error {
	switch errno {
	case unix.EFAULT, unix.EBADF, unix.ENOTSOCK, unix.EINVAL, unix.EPERM, unix.ENOMEM, unix.ENOBUFS:
		return c.own(errno)
	}
	return isGone(errno)
}

var errNoGoodbye = fmt.Errorf("%w: the connection ended without a goodbye: the process has died or was killed", transport.ErrGone)

// reason is what a stream reports once the connection is lost.
func (c *conn) reason() error {
	if c.closed && !errors.Is(c.lost, transport.ErrClosed) {
		return errClosedConn
	}
	return c.lost
}
