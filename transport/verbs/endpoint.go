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

// endpoint is a port of a device and the connections of a communicator family over it.
type endpoint struct {
	config   Config
	options  transport.Options
	secret   []byte
	address  address
	nic      *nic
	channel  *ibv.Channel
	cq       *ibv.CQ
	listener net.Listener
	epoll    int // what FD returns
	event    int // eventfd in epoll: news that is no completion

	// The background: acceptor, set-ups, delays. All of it ends with ctx; the watchers end with what they watch.
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	watchers sync.WaitGroup
	events   interface{ Close() error } // ends the watcher of the device

	mu     sync.Mutex // guards what follows
	meets  map[transport.Key]*meet
	closed bool
	over   chan struct{} // closed when Close is done

	linksMu  sync.Mutex // guards what follows
	links    map[uint32]*link
	lastLink uint32
	reserved int // completions that may come
	stale    int // of those, for links that are gone
	older    int // and for links that were gone when the queue was last empty

	// What the driver alone touches.
	conns       []*conn
	busy        []*conn // those with something to hand over
	armed       bool    // the next completion that is polled has made an event
	fired       int     // events since they were last drained
	completions [32]ibv.Completion
	batch       [32]ibv.Send

	sent, received           atomic.Uint64
	bytesSent, bytesReceived atomic.Uint64
	open                     atomic.Int64 // conns
	memory                   atomic.Int64
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
		config: c, options: o, secret: o.Secret, meets: map[transport.Key]*meet{}, links: map[uint32]*link{}, over: make(chan struct{}), epoll: -1, event: -1,
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
	if e.nic, err = openNIC(e.config); err != nil {
		return err
	}
	e.address.link = e.nic.port.LinkLayer
	if e.channel, err = e.nic.device.NewChannel(); err != nil {
		return e.nic.explain(err)
	}
	if err := unix.SetNonblock(e.channel.FD(), true); err != nil {
		return fmt.Errorf("verbs: completion channel: %w", err)
	}
	if e.cq, err = e.nic.device.NewCQ(min(firstCQ, e.nic.limits.MaxCQE), e.channel, 0); err != nil {
		return e.nic.explain(err)
	}
	if e.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("verbs: epoll_create1: %w", err)
	}
	if e.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("verbs: eventfd: %w", err)
	}
	for _, fd := range []int{e.event, e.channel.FD()} {
		event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}
		if err := unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
			return fmt.Errorf("verbs: epoll_ctl: %w", err)
		}
	}
	if err := e.listen(); err != nil {
		return err
	}
	if err := e.watchDevice(); err != nil {
		e.listener.Close()
		return err
	}
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
	moved := e.poll()
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
	m := e.meet(k)
	if m.conn != nil {
		return m.conn, nil
	}
	c := newConn(e, k, a)
	m.conn = c
	e.conns = append(e.conns, c)
	e.open.Add(1)
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
