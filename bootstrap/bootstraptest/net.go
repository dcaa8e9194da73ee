// Package bootstraptest is a network in memory for tests of whole jobs in one process: it gives bootstrap its dialers and
// listeners, and it can lose hosts, refuse connections and resolve names late.
//
// It waits only in ways that testing/synctest sees through, so jobs on it run in virtual time. Connections have a buffer in
// each direction, as those of TCP do, real addresses, deadlines, and half-close.
//
//	n := bootstraptest.New()
//	s, err := bootstrap.Join(ctx, bootstrap.Config{Network: n.Host("192.0.2.1"), …})
package bootstraptest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
)

// Net is a network of hosts. All methods may be called from any goroutine.
type Net struct {
	mu        sync.Mutex
	listeners map[place]*listener
	names     map[string]netip.Addr
	nextPort  uint16
	conns     map[*end]struct{}
	dead      map[netip.Addr]bool
	cut       map[netip.Addr]bool
	frozen    map[netip.Addr]bool
	delay     func() time.Duration
	healed    chan struct{} // closed and replaced when a host is cut no more
	refuse    func(from, to netip.AddrPort) error
}

// place is where a listener is: loopback and wildcard addresses are each host's own.
type place struct {
	host netip.Addr
	at   netip.AddrPort
}

// New returns a network without hosts.
func New() *Net {
	return &Net{
		listeners: map[place]*listener{}, names: map[string]netip.Addr{}, nextPort: 40000,
		conns: map[*end]struct{}{}, dead: map[netip.Addr]bool{},
		cut: map[netip.Addr]bool{}, frozen: map[netip.Addr]bool{}, healed: make(chan struct{}),
	}
}

// Host returns the network as the host with the address sees it.
func (n *Net) Host(address string) bootstrap.Network {
	host := netip.MustParseAddr(address)
	return bootstrap.Network{
		Dial:   func(ctx context.Context, to string) (net.Conn, error) { return n.dial(ctx, host, to) },
		Listen: func(_ context.Context, at string) (net.Listener, error) { return n.listen(host, at) },
	}
}

// Resolve gives a name its address; before, it does not resolve.
func (n *Net) Resolve(name, address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names[name] = netip.MustParseAddr(address)
}

// Refuse asks f before each connection; an error refuses it. Nil lets every connection through.
func (n *Net) Refuse(f func(from, to netip.AddrPort) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuse = f
}

// Kill ends a host as the death of its processes does: from one moment on it says nothing more, its connections are reset and
// its listeners close.
func (n *Net) Kill(address string) {
	host := netip.MustParseAddr(address)
	n.mu.Lock()
	n.dead[host] = true
	close(n.healed) // who dials on it
	n.healed = make(chan struct{})
	if n.frozen[host] { // the kernel speaks for it again
		delete(n.frozen, host)
		n.stallLocked()
	}
	var hit []*end
	for c := range n.conns {
		if c.local.Addr() == host || c.remote.Addr() == host {
			hit = append(hit, c)
		}
	}
	var gone []*listener
	for a, l := range n.listeners {
		if a.host == host {
			gone = append(gone, l)
		}
	}
	n.mu.Unlock()
	for _, c := range hit {
		c.reset()
	}
	for _, l := range gone {
		l.Close()
	}
}

// Delay has the bytes of each write on connections made from now on arrive after what f returns at that time, which is called from
// many goroutines, and in order.
func (n *Net) Delay(f func() time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = f
}

// Cut takes a host off the network, as a pulled cable does: nothing that it sends arrives anywhere, nor anything at it, and no reset
// either. Connections wait until Heal, or for ever.
func (n *Net) Cut(address string) { n.stop(n.cut, address) }

// Heal ends a Cut. What was sent meanwhile arrives.
func (n *Net) Heal(address string) { n.resume(n.cut, address) }

// Freeze stalls all connections of a host's processes, as a stop signal does: its kernel still takes new ones. The goroutines in
// this process that play the frozen one run on, and see a network that stands still.
func (n *Net) Freeze(address string) { n.stop(n.frozen, address) }

// Thaw ends a Freeze.
func (n *Net) Thaw(address string) { n.resume(n.frozen, address) }

func (n *Net) stop(set map[netip.Addr]bool, address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	set[netip.MustParseAddr(address)] = true
	n.stallLocked()
}

func (n *Net) resume(set map[netip.Addr]bool, address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(set, netip.MustParseAddr(address))
	close(n.healed)
	n.healed = make(chan struct{})
	n.stallLocked()
}

func (n *Net) stallLocked() {
	for c := range n.conns {
		c.in.stall(n.stallsLocked(c.local.Addr(), c.remote.Addr()))
	}
}

// stallsLocked reports whether nothing gets through between two hosts. A host's own loopback is never cut.
func (n *Net) stallsLocked(a, b netip.Addr) bool {
	return n.frozen[a] || n.frozen[b] || a != b && (n.cut[a] || n.cut[b])
}

// Conns returns how many ends of connections are open.
func (n *Net) Conns() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

func (n *Net) lookup(address string) (netip.AddrPort, error) {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	p, err := net.LookupPort("tcp", port)
	if err != nil {
		return netip.AddrPort{}, err
	}
	a := netip.IPv4Unspecified()
	if name != "" {
		if a, err = netip.ParseAddr(name); err != nil {
			known, ok := n.names[name]
			if !ok {
				return netip.AddrPort{}, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
			}
			a = known
		}
	}
	return netip.AddrPortFrom(a, uint16(p)), nil
}

func (n *Net) listen(host netip.Addr, at string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, err := n.lookup(at)
	if err == nil && a.Addr() != host && !a.Addr().IsLoopback() && !a.Addr().IsUnspecified() {
		err = os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)
	}
	if err == nil && n.dead[host] {
		err = os.NewSyscallError("bind", syscall.ENETDOWN)
	}
	if err == nil && a.Port() == 0 {
		n.nextPort++
		a = netip.AddrPortFrom(a.Addr(), n.nextPort)
	}
	if err == nil && n.listenerAt(host, a) != nil {
		err = os.NewSyscallError("bind", syscall.EADDRINUSE)
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: err}
	}
	l := &listener{net: n, place: place{host, a}, backlog: make(chan *end, 4096), closed: make(chan struct{})}
	n.listeners[l.place] = l
	return l, nil
}

func (n *Net) dial(ctx context.Context, host netip.Addr, to string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ctx.Err() == nil && !n.dead[host] {
		remote, err := n.lookup(to)
		if err != nil || !n.frozen[host] && (remote.Addr() == host || !n.cut[host] && !n.cut[remote.Addr()]) {
			break
		}
		healed := n.healed
		n.mu.Unlock()
		select {
		case <-healed:
		case <-ctx.Done():
		}
		n.mu.Lock()
	}
	if err := ctx.Err(); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("%s: %w", to, err)}
	}
	remote, err := n.lookup(to)
	if err != nil {
		return fail(err)
	}
	n.nextPort++
	local := netip.AddrPortFrom(host, n.nextPort)
	if remote.Addr().IsLoopback() {
		local = netip.AddrPortFrom(remote.Addr(), n.nextPort)
	}
	if n.dead[host] {
		return fail(os.NewSyscallError("connect", syscall.ENETDOWN))
	}
	if n.refuse != nil {
		if err := n.refuse(local, remote); err != nil {
			return fail(err)
		}
	}
	target := remote.Addr()
	if target.IsLoopback() {
		target = host
	}
	l := n.listenerAt(target, remote)
	if l == nil || n.dead[target] {
		return fail(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	ours, theirs := n.pair(local, remote)
	select {
	case l.backlog <- theirs:
		n.conns[ours], n.conns[theirs] = struct{}{}, struct{}{}
		stalls := n.stallsLocked(host, target)
		ours.in.stall(stalls)
		theirs.in.stall(stalls)
		return ours, nil
	default:
		return fail(os.NewSyscallError("connect", syscall.ETIMEDOUT))
	}
}

// listenerAt returns the listener of a host at exactly the address, or at all of the host's.
func (n *Net) listenerAt(host netip.Addr, at netip.AddrPort) *listener {
	if l := n.listeners[place{host, at}]; l != nil {
		return l
	}
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if l := n.listeners[place{host, netip.AddrPortFrom(any, at.Port())}]; l != nil {
			return l
		}
	}
	return nil
}

type listener struct {
	net     *Net
	place   place
	backlog chan *end
	closed  chan struct{}
	once    sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
	default:
		select {
		case c := <-l.backlog:
			return c, nil
		case <-l.closed:
		}
	}
	return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		delete(l.net.listeners, l.place)
		l.net.mu.Unlock()
		close(l.closed)
		for {
			select {
			case c := <-l.backlog:
				c.reset()
				c.Close()
			default:
				return
			}
		}
	})
	return nil
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.place.at) }
