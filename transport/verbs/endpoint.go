//go:build linux && cgo

package verbs

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"golang.org/x/sys/unix"
)

// endpoint is the ports of devices and the connections of a communicator family over them.
type endpoint struct {
	config   Config
	options  transport.Options
	secret   []byte
	address  address
	nics     []*nic
	pool     *pool
	cache    *cache
	arena    arena
	listener net.Listener
	epoll    int // what FD returns
	event    int // eventfd in epoll: news that is no completion

	// The background: acceptor, set-ups, delays. All of it ends with ctx; the watchers end with what they watch.
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	watchers sync.WaitGroup

	mu      sync.Mutex              // guards what follows
	meets   map[transport.Key]*meet // of keys whose connections are not closed
	unasked int                     // of those, without a conn of our user's
	past    transport.Past
	closed  bool
	over    chan struct{} // closed when Close is done

	remembers int // keys, see most; tests' alone

	jobsMu sync.Mutex // guards what follows
	jobs   []*job
	asked  atomic.Bool // there are jobs

	// What the driver alone touches.
	tick        uint64 // calls of Progress
	rest        rest
	conns       []*conn
	called      []*conn // those whose peers have said something about parking
	busy        []*conn // those with something to hand over
	idle        []*conn // the other list, see tend
	completions [32]ibv.Completion

	budget  int          // of QPs
	silence int          // looks that a queue may be silent for
	short   atomic.Int64 // so many are wanted beyond
	beyond  sync.Once    // a line is logged about it

	sent, received           atomic.Uint64
	bytesSent, bytesReceived atomic.Uint64
	open                     atomic.Int64 // conns
	shown                    atomic.Int64 // bytes where views are put together
}

// Open opens a device and listens for set-ups on the configured address. Without libibverbs.so.1 or without a device the error
// wraps errors.ErrUnsupported.
func Open(c Config, o transport.Options) (transport.Endpoint, error) {
	c, err := c.validate()
	if err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	e := &endpoint{
		config: c, options: o, secret: o.Secret, meets: map[transport.Key]*meet{}, over: make(chan struct{}), epoll: -1, event: -1,
	}
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
		return nil, errors.Join(err, e.release())
	}
	return e, nil
}

func (e *endpoint) start() error {
	var err error
	if e.nics, err = openPorts(e.config); err != nil {
		return err
	}
	for _, n := range e.nics {
		e.watchOver(n)
	}
	e.address.link, e.address.ports, e.address.qps = e.nics[0].port.LinkLayer, uint8(len(e.nics)), uint8(e.config.QPs)
	if err := e.bindNear(); err != nil {
		return err
	}
	if e.budget = e.config.Budget; e.budget == 0 {
		for _, n := range e.nics {
			e.budget += n.limits.MaxQP
		}
	}
	if e.pool, err = newPool(e.nics, 2*e.config.layout(e.options.Streams), e.config); err != nil {
		return err
	}
	e.silence = e.config.silence()
	e.cache = newCache(e.nics, e.config)
	if e.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("verbs: epoll_create1: %w", err)
	}
	if e.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("verbs: eventfd: %w", err)
	}
	fds := []int{e.event}
	for _, n := range e.nics {
		fds = append(fds, n.channel.FD())
	}
	for _, fd := range fds {
		event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}
		if err := unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
			return fmt.Errorf("verbs: epoll_ctl: %w", err)
		}
	}
	if err := e.listen(); err != nil {
		return err
	}
	for _, n := range e.nics {
		if err := e.watchDevice(n); err != nil {
			e.listener.Close()
			return err
		}
	}
	e.wg.Go(e.lookOut)
	gate := &auth.Gate{Secret: e.secret, Service: service, Log: e.config.Log}
	e.wg.Go(func() {
		if err := gate.Serve(e.listener, e.greet); err != nil {
			e.config.Log.Error("verbs: no more connections are accepted", "address", e.address.at, "error", err)
		}
	})
	return nil
}

func (e *endpoint) listen() error {
	first, last := int(e.config.Ports[0]), int(e.config.Ports[1])
	var err error
	for port := first; port <= last; port++ {
		config := net.ListenConfig{KeepAliveConfig: keepAlive}
		at := net.JoinHostPort(e.config.Addr.String(), strconv.Itoa(port))
		if e.listener, err = config.Listen(e.ctx, "tcp", at); err == nil {
			bound := e.listener.Addr().(*net.TCPAddr).AddrPort()
			e.address.at = netip.AddrPortFrom(bound.Addr().Unmap(), bound.Port())
			return nil
		}
	}
	return fmt.Errorf("verbs: cannot listen on %v, TCP ports %d to %d: %w", e.config.Addr, first, last, err)
}

// poke makes FD readable. It may be called from any goroutine that Close waits for.
func (e *endpoint) poke() {
	one := []byte{1, 0, 0, 0, 0, 0, 0, 0}
	unix.Write(e.event, one) // it fails only when full of pokes
}

// pokeAfter pokes after d, for a Hook's delay.
func (e *endpoint) pokeAfter(d time.Duration) {
	e.wg.Go(func() {
		sleep(e.ctx, d)
		e.poke()
	})
}

func (e *endpoint) Name() string { return Name }

func (e *endpoint) Address() []byte { return e.address.bytes() }

// Reach checks what can be known without connecting.
func (e *endpoint) Reach(_ context.Context, peer []byte) error {
	a, err := parseAddress(peer)
	if err != nil {
		return err
	}
	return a.reachable(e.address)
}

// Progress takes completions and posts what waits for them.
func (e *endpoint) Progress() bool {
	e.tick++
	moved := e.poll()
	e.work()
	if short := e.short.Swap(0); short > 0 {
		e.parkIdle(int(short))
	}
	if called := e.called; len(called) > 0 {
		e.called = nil
		for _, c := range called {
			c.hear()
		}
	}
	if e.tend() {
		moved = true
	}
	return moved
}

// tend looks after those with something to hand over. The end of one takes completions and frames, and so has others, and those we have been
// through with, join the list: the new one is made beside the old.
func (e *endpoint) tend() (moved bool) {
	work := e.busy
	e.busy = e.idle[:0]
	for _, c := range work {
		c.busy = false
		if c.progress() {
			moved = true
		}
		if c.pending() {
			c.enlist()
		}
	}
	clear(work)
	e.idle = work
	return moved
}

func (e *endpoint) Stats() transport.Stats {
	return transport.Stats{
		MessagesSent:     e.sent.Load(),
		MessagesReceived: e.received.Load(),
		BytesSent:        e.bytesSent.Load(),
		BytesReceived:    e.bytesReceived.Load(),
		Conns:            int(e.open.Load()),
		Memory:           e.held(),
		Allocated:        e.arena.allocated(),
	}
}

// qps is how many QPs there are.
func (e *endpoint) qps() (all int) {
	for _, n := range e.nics {
		n.mu.Lock()
		all += len(n.queues)
		n.mu.Unlock()
	}
	return all
}

func (e *endpoint) held() int64 { return e.pool.held() + e.shown.Load() }

// Conn begins to connect unless the peer has done so already.
func (e *endpoint) Conn(k transport.Key, peer []byte) (transport.Conn, error) {
	if err := checkKey(k); err != nil {
		return nil, err
	}
	a, err := parseAddress(peer)
	if err != nil {
		return nil, err
	}
	if a.instance == e.address.instance {
		return nil, fmt.Errorf("verbs: rank %d has our own address %v", k.Peer, a.at)
	}
	if err := a.reachable(e.address); err != nil {
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
	c := newConn(e, k, a)
	e.join(m, c)
	switch {
	case m.err != nil:
		c.failure.Store(&m.err)
	case m.link != nil:
		e.deliver(m)
	default:
		e.begin(m, a)
	}
	return c, nil
}

func peerName(k transport.Key, a address) string { return fmt.Sprintf("rank %d at %v", k.Peer, a.at) }
