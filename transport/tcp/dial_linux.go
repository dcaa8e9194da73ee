package tcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

const (
	// stepTimeout bounds each of: dialling a socket, its handshakes.
	stepTimeout = 5 * time.Second
	// commitTimeout is how long an acceptor waits for the commit: longer than its dialler, who may write it in the last moment, waits for
	// anything. Were it lost, one end would have a connection, and the other would turn away all further attempts.
	commitTimeout = 30 * time.Second
	// railTimeout is stepTimeout for what can be done without.
	railTimeout = 2 * time.Second
	// headStart is what the higher rank leaves to the lower one, so that the
	// usual case of both asking at once makes one attempt and not two.
	headStart  = 5 * time.Millisecond
	pauseFirst = 2 * time.Millisecond
	pauseMost  = 500 * time.Millisecond
)

// errLater says that another attempt is under way or has won, or that the peer is short of something.
var errLater = errors.New("the peer says later")

// refusal is an answer that more attempts would get again.
type refusal struct{ err error }

func (r refusal) Error() string { return r.err.Error() }
func (r refusal) Unwrap() error { return r.err }

// hello is what our end of k says, without attempt, instance and flow.
func (e *endpoint) hello(k transport.Key) hello {
	return hello{
		key:      k,
		firstSeq: e.options.FirstSeq,
		most:     uint32(e.options.MaxMessage),
		window:   uint32(e.config.Window),
		streams:  uint16(e.options.Streams),
		checksum: e.options.Checksum,
	}
}

// greet is the acceptor's half of an attempt, for one socket that has proven the
// secret.
func (e *endpoint) greet(c net.Conn) {
	stop := context.AfterFunc(e.ctx, func() { c.Close() })
	defer stop()
	c.SetDeadline(time.Now().Add(stepTimeout))
	b := make([]byte, helloSize)
	if _, err := io.ReadFull(c, b); err != nil {
		c.Close()
		return
	}
	answer := func(v verdict, reason string) bool {
		r := reply{verdict: v, window: uint32(e.config.Window), reason: reason}
		_, err := c.Write(r.bytes())
		if v != welcome {
			c.Close()
		}
		return err == nil
	}
	h, err := parseHello(b)
	if err != nil {
		v := noEntry
		if errors.Is(err, transport.ErrMismatch) {
			v = differs
		}
		answer(v, err.Error())
		e.logger().Warn("tcp: refused a connection", "peer", c.RemoteAddr(), "error", err)
		return
	}
	if h.instance != e.address.instance {
		answer(noEntry, "the address is that of an earlier endpoint on this port")
		return
	}
	k := h.key
	k.Self, k.Peer = k.Peer, k.Self
	ours := e.hello(k)
	if err := h.agree(&ours); err != nil {
		answer(differs, err.Error())
		e.failKey(k, fmt.Errorf("%w: %w", transport.ErrMismatch, err))
		return
	}
	v, reason := e.admit(k, h.attempt, int(h.flows))
	if v != welcome {
		answer(v, reason)
		return
	}
	t, err := newTwin(c)
	if err != nil {
		e.abandon(k, h.attempt)
		e.logger().Warn("tcp: a connection has to wait", "peer", c.RemoteAddr(), "error", err)
		answer(later, (&transport.OwnError{Rank: int(k.Self), Err: err}).Error())
		return
	}
	c.SetDeadline(time.Now().Add(commitTimeout))
	if answer(welcome, "") {
		_, err = io.ReadFull(c, b[:commitSize])
		if err == nil && string(b[:commitSize]) == commitMagic && stop() {
			e.arrive(k, &h, t)
			return
		}
	}
	e.abandon(k, h.attempt)
	t.Close()
}

// dial makes attempts until the meet is over or the time is.
func (e *endpoint) dial(m *meet, a address) {
	ctx, cancel := context.WithTimeout(m.dialing, e.config.ConnectTimeout)
	defer cancel()
	pause := pauseFirst
	if !m.decides() {
		sleep(ctx, headStart)
	}
	last := errors.New("no attempt was made")
	for ctx.Err() == nil {
		err := e.attempt(ctx, m, a)
		var refused refusal
		switch {
		case err == nil:
			return
		case errors.As(err, &refused), errors.Is(err, auth.ErrSecret), errors.Is(err, auth.ErrStranger):
			if !errors.Is(err, transport.ErrMismatch) && !errors.Is(err, transport.ErrLeft) {
				err = isGone(err)
			}
			e.fail(m, err)
			return
		case m.dialing.Err() == nil: // else it is about our own giving up
			last = err
		}
		sleep(ctx, pause/2+mathrand.N(pause))
		pause = min(2*pause, pauseMost)
	}
	if m.dialing.Err() == nil {
		if timeout := net.Error(nil); errors.As(last, &timeout) && timeout.Timeout() {
			last = fmt.Errorf("%w (no answer at all from %v: is there a firewall in between?)", last, a.from(e.config.Addr))
		}
		err := fmt.Errorf("not connected within %v: %w", e.config.ConnectTimeout, last)
		if transport.Scarce(last) {
			e.fail(m, &transport.OwnError{Rank: int(m.key.Self), Err: err})
		} else {
			e.fail(m, isGone(err))
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// attempt dials all sockets, and either establishes the connection or leaves
// nothing behind.
func (e *endpoint) attempt(ctx context.Context, m *meet, a address) (err error) {
	var conns []net.Conn
	var twins []*twin
	defer func() {
		if err != nil {
			closeAll(twins)
			for _, c := range conns {
				c.Close()
			}
		}
	}()
	h := e.hello(m.key)
	var random [8]byte
	rand.Read(random[:])
	h.attempt, h.instance = binary.BigEndian.Uint64(random[:])|1, a.instance // 0 is nobody's
	ways := e.address.ways(a)
	h.flows = uint16(len(ways))
	for i, w := range ways {
		c, err := e.socket(ctx, w, ways[0])
		if err != nil {
			return err
		}
		conns = append(conns, c)
		stop := context.AfterFunc(ctx, func() { c.Close() })
		defer stop()
		c.SetDeadline(time.Now().Add(stepTimeout))
		h.flow = uint16(i)
		if _, err := c.Write(h.bytes()); err != nil {
			return err
		}
	}
	var window uint32
	b := make([]byte, welcomeSize)
	for _, c := range conns {
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		r, err := parseReply(b)
		switch {
		case err != nil:
			return refusal{err}
		case r.verdict == later:
			return fmt.Errorf("%w: %s", errLater, r.reason)
		case r.verdict == differs:
			return refusal{fmt.Errorf("%w: %s", transport.ErrMismatch, r.reason)}
		case r.verdict == noEntry:
			return refusal{errors.New(r.reason)}
		case r.verdict == left:
			return refusal{fmt.Errorf("%w: %s", transport.ErrLeft, r.reason)}
		}
		window = r.window
	}
	for _, c := range conns {
		t, err := newTwin(c)
		if err != nil {
			return err
		}
		twins = append(twins, t)
	}
	if err := e.reserve(m, h.attempt); err != nil {
		return err
	}
	for _, c := range conns {
		if _, err := c.Write([]byte(commitMagic)); err != nil {
			e.abandon(m.key, h.attempt)
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case m.over && errors.Is(m.err, transport.ErrLeft):
		for _, t := range twins {
			t.part()
		}
		return errLater
	case m.over:
		return errLater
	}
	e.establish(m, twins, window)
	return nil
}

// reserve lets the attempt win if that is for us to decide.
func (e *endpoint) reserve(m *meet, attempt uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if m.over || m.decides() && m.reserved != 0 {
		return errLater
	}
	if m.decides() {
		m.reserved = attempt
	}
	return nil
}

// socket dials one and proves the secret. A rail over which that fails is not tried again with that peer, for whom the first way is left.
func (e *endpoint) socket(ctx context.Context, w, first way) (net.Conn, error) {
	e.mu.Lock()
	if w.rail && e.shunned[w.to] {
		w = first
	}
	e.mu.Unlock()
	patience := stepTimeout
	if w.rail {
		patience = railTimeout
	}
	c, err := e.dialOne(ctx, w, patience)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { c.Close() })
		c.SetDeadline(time.Now().Add(patience))
		err = auth.Client(c, e.secret, service)
		stop()
	}
	switch {
	case err == nil:
		return c, nil
	case c != nil:
		c.Close()
	}
	if !w.rail || ctx.Err() != nil {
		return nil, err
	}
	e.logger().Warn("tcp: a rail does not lead to a peer, which the first address is left for", "from", w.from, "to", w.to, "first", first.to, "reason", err)
	e.mu.Lock()
	e.shunned[w.to] = true
	e.mu.Unlock()
	return e.socket(ctx, first, first)
}

func (e *endpoint) dialOne(ctx context.Context, w way, patience time.Duration) (net.Conn, error) {
	d := net.Dialer{
		Timeout:   patience,
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(w.from, 0)),
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount,
		},
		// The port is chosen at connect, so that one local port serves many peers.
		Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) {
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) // an economy
			})
		},
	}
	return d.DialContext(ctx, "tcp", w.to.String())
}

const (
	keepIdle     = 10 * time.Second
	keepInterval = 2 * time.Second
	keepCount    = 5
)
