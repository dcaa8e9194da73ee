package tcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// endpoint is one listening address and the connections of a communicator family.
type endpoint struct {
	config    Config
	options   transport.Options
	secret    []byte
	address   address
	listeners []net.Listener // at the first address, and at each rail
	epoll     int            // what FD returns
	event     int            // eventfd in epoll: news that is no arrival on a socket

	// The background: acceptor, dialers, delays. All of it ends with ctx.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex              // guards what follows
	meets   map[transport.Key]*meet // of keys whose connections are not closed
	unasked int                     // of those, without a conn of our user's
	past    transport.Past
	shunned map[netip.AddrPort]bool // rails of peers that don't lead to them
	closed  bool
	over    chan struct{} // closed when Close is done

	remembers int // keys, see most; tests' alone

	// What the driver alone touches.
	conns []*conn
	busy  []*conn // those with something to hand over
	stale bool    // since FD a socket came to be watched no more

	sent, received           atomic.Uint64
	bytesSent, bytesReceived atomic.Uint64
	open                     atomic.Int64 // conns
	memory                   atomic.Int64
}

// Open listens on the configured address. Errors name the address and the ports
// that were tried.
func Open(c Config, o transport.Options) (transport.Endpoint, error) {
	c, err := c.validate()
	if err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	e := &endpoint{config: c, options: o, secret: o.Secret, meets: map[transport.Key]*meet{}, shunned: map[netip.AddrPort]bool{}, over: make(chan struct{}), epoll: -1, event: -1}
	if len(e.secret) == 0 {
		// The handshake still tells gccl's peers from strangers.
		e.secret = []byte("gccl, unauthenticated")
	}
	var instance [8]byte
	rand.Read(instance[:])
	e.address.instance = binary.BigEndian.Uint64(instance[:])
	e.ctx, e.cancel = context.WithCancel(context.Background())
	if err := e.start(); err != nil {
		e.cancel()
		e.closeDescriptors()
		return nil, err
	}
	return e, nil
}

func (e *endpoint) start() error {
	var err error
	if e.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("tcp: epoll_create1: %w", err)
	}
	if e.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("tcp: eventfd: %w", err)
	}
	if err := e.watch(unix.EPOLL_CTL_ADD, e.event, unix.EPOLLIN); err != nil {
		return err
	}
	at, err := e.listen(e.config.Addr)
	if err != nil {
		return err
	}
	e.address.at, e.address.flows = at, e.config.Flows
	for _, r := range e.config.Rails {
		at, err := e.listen(r.Addr.Addr())
		if err != nil {
			e.logger().Warn("tcp: a rail is left out", "reason", err)
			continue
		}
		e.address.rails = append(e.address.rails, railAt{r, at.Port()})
	}
	gate := &auth.Gate{Secret: e.secret, Service: service, Log: e.config.Log}
	for _, l := range e.listeners {
		e.wg.Go(func() {
			if err := gate.Serve(l, e.greet); err != nil {
				e.logger().Error("tcp: no more connections are accepted", "address", l.Addr(), "error", err)
			}
		})
	}
	return nil
}

func (e *endpoint) logger() *slog.Logger {
	if e.config.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return e.config.Log
}

// listen returns the address with the port that it listens at.
func (e *endpoint) listen(addr netip.Addr) (netip.AddrPort, error) {
	first, last := int(e.config.Ports[0]), int(e.config.Ports[1])
	var err error
	for port := first; port <= last; port++ {
		config := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount,
		}}
		var l net.Listener
		if l, err = config.Listen(e.ctx, "tcp", net.JoinHostPort(addr.String(), strconv.Itoa(port))); err == nil {
			e.listeners = append(e.listeners, l)
			bound := l.Addr().(*net.TCPAddr).AddrPort()
			return netip.AddrPortFrom(bound.Addr().Unmap(), bound.Port()), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("tcp: cannot listen on %v, ports %d to %d: %w", addr, first, last, err)
}

// watch adds fd to the epoll set or modifies it there: an event that is due already counts.
func (e *endpoint) watch(op, fd int, events uint32) error {
	event := unix.EpollEvent{Events: events | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(e.epoll, op, fd, &event); err != nil {
		return fmt.Errorf("tcp: epoll_ctl: %w", err)
	}
	return nil
}

// pokeAfter pokes after d, for a Hook's delay.
func (e *endpoint) pokeAfter(d time.Duration) {
	e.wg.Go(func() {
		sleep(e.ctx, d)
		e.poke()
	})
}

// poke makes FD readable. It may be called from any goroutine that Close waits for.
func (e *endpoint) poke() {
	one := []byte{1, 0, 0, 0, 0, 0, 0, 0}
	unix.Write(e.event, one) // it fails only when full of pokes
}

func (e *endpoint) Name() string { return Name }

func (e *endpoint) Address() []byte { return e.address.bytes() }

// FD returns the epoll descriptor, after it put all sockets into the set. Reading takes them out of it again: a packet that arrives at a socket
// in the set takes its sender 0.6 to 0.9 µs longer, measured over loopback, and only who sleeps needs that.
func (e *endpoint) FD() int {
	e.stale = false
	for i := len(e.conns) - 1; i >= 0; i-- { // backwards: one that is lost may leave
		e.conns[i].watch()
	}
	return e.epoll
}

// Reach checks what can be known without connecting.
func (e *endpoint) Reach(_ context.Context, peer []byte) error {
	a, err := parseAddress(peer)
	if err != nil {
		return err
	}
	return a.reachable(e.config.Addr)
}

// Progress writes what the sockets take and, where something waits to be sent,
// reads, because credit comes that way.
func (e *endpoint) Progress() bool {
	moved := e.stale // else a driver that has called FD and looks once more would sleep now
	e.stale = false
	kept := e.busy[:0]
	for _, c := range e.busy {
		if c.progress() {
			moved = true
		}
		if c.busy = c.pending(); c.busy {
			kept = append(kept, c)
		}
	}
	clear(e.busy[len(kept):])
	e.busy = kept
	return moved
}

func (e *endpoint) Stats() transport.Stats {
	return transport.Stats{
		MessagesSent:     e.sent.Load(),
		MessagesReceived: e.received.Load(),
		BytesSent:        e.bytesSent.Load(),
		BytesReceived:    e.bytesReceived.Load(),
		Conns:            int(e.open.Load()),
		Memory:           e.memory.Load(),
	}
}

// Conn begins to dial unless the peer has connected already.
func (e *endpoint) Conn(k transport.Key, peer []byte) (transport.Conn, error) {
	if err := checkKey(k); err != nil {
		return nil, err
	}
	a, err := parseAddress(peer)
	if err != nil {
		return nil, err
	}
	if a.instance == e.address.instance {
		return nil, fmt.Errorf("tcp: rank %d has our own address %v", k.Peer, a.at)
	}
	if err := a.reachable(e.config.Addr); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, &transport.PeerError{Transport: Name, Key: k, Peer: peerName(k, a), Op: "connect", Err: transport.ErrClosed}
	}
	if _, over := e.past.Of(k); over {
		return nil, &transport.PeerError{Transport: Name, Key: k, Peer: peerName(k, a), Op: "connect", Err: errClosedConn}
	}
	m := e.meet(k)
	if m.conn != nil {
		return m.conn, nil
	}
	c := newConn(e, m, a)
	e.join(m, c)
	switch {
	case m.err != nil:
		c.failure.Store(&m.err)
	case m.link != nil:
		e.deliver(m)
	default:
		e.wg.Go(func() { e.dial(m, a) })
	}
	return c, nil
}

// Close ends everything. What streams accepted and the peers' kernels take within
// Linger still arrives; what would need credit does not.
func (e *endpoint) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		<-e.over
		return nil
	}
	e.closed = true
	e.mu.Unlock()
	defer close(e.over)

	e.cancel()
	for _, l := range e.listeners {
		l.Close()
	}
	e.wg.Wait()

	for _, m := range e.meets {
		e.drop(m)
	}
	conns := slices.Clone(e.conns) // they leave the list when they are gone
	for _, c := range conns {
		c.finish()
	}
	for deadline := time.Now().Add(e.config.Linger); ; time.Sleep(200 * time.Microsecond) {
		left := 0
		for _, c := range conns {
			if !c.ended() {
				c.progress()
				c.dropBlocked()
			}
			if !c.ended() {
				left++
			}
		}
		if left == 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, c := range conns {
		c.abandon(errClosedHere)
	}
	e.conns, e.busy = nil, nil
	return e.closeDescriptors()
}

var errClosedHere = fmt.Errorf("%w: the endpoint was closed", transport.ErrClosed)

func (e *endpoint) closeDescriptors() error {
	var errs []error
	for _, fd := range []int{e.epoll, e.event} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

func peerName(k transport.Key, a address) string { return fmt.Sprintf("rank %d at %v", k.Peer, a.at) }
