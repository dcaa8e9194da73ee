//go:build linux && (amd64 || arm64)

package shm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// liveness is how often Progress asks whether peers live.
const liveness = 10 * time.Millisecond

// Endpoint is a rank's end of the transport. It is transport.Endpoint,
// transport.Allocator and transport.Bell, and its streams are transport.Awaiter.
type Endpoint struct {
	config  Config
	opts    transport.Options
	address *address
	encoded []byte
	seg     *segment
	door    *door

	mu     sync.Mutex // guards what follows; the driver's fields have one user anyway
	closed bool
	peers  map[string]*peer
	final  counters       // when closed
	past   transport.Past // communicators
	leaves uint64         // as peers read it in our header, to which they can write

	conns    map[transport.Key]*conn
	lingers  []*conn // closed by us, perhaps still read by the peer
	slabs    []*slab
	piece    [pieces]int64 // where each piece of our directory is, 0: not there yet
	lastLook time.Time
	pollfds  []unix.PollFd
	polled   []*peer
	nextID   uint64
	noBell   uint32 // the sleep word after Close
}

var (
	_ transport.Endpoint  = (*Endpoint)(nil)
	_ transport.Allocator = (*Endpoint)(nil)
	_ transport.Bell      = (*Endpoint)(nil)
	_ transport.Awaiter   = (*stream)(nil)
)

// Open makes an endpoint with a segment of its own, and removes what dead
// processes of our user left. Too little memory is a *SpaceError. The caller must
// Close the endpoint.
func Open(config Config, opts transport.Options) (*Endpoint, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	self := name{uid: uint64(os.Getuid()), pidns: pidNamespace(), pid: uint64(os.Getpid())}
	self.start, _ = startTime(self.pid)
	removeStale(config.Dir, self)
	a := &address{identity: ThisHost(config.Dir), pid: uint32(self.pid)}
	a.identity.HostID = config.HostID
	if _, err := rand.Read(a.nonce[:]); err != nil {
		return nil, fmt.Errorf("shm: nonce: %w", err)
	}
	size, err := segmentSize(config)
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	seg, err := newSegment(size)
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	a.size = uint64(seg.size)
	h := seg.header()
	h.version, h.streams, h.size, h.nonce = layoutVersion, uint32(opts.Streams), uint64(seg.size), a.nonce
	h.maxMessage, h.firstSeq, h.pid = uint64(opts.MaxMessage), opts.FirstSeq, a.pid
	if opts.Checksum {
		h.checksum = 1
	}
	h.piece[0] = firstPieceAt
	atomic.StoreUint64(&h.magic, segmentMagic)
	door, err := newDoor(config.Dir, self, seg.fd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shm: %w", err), seg.close())
	}
	a.path = door.path
	e := &Endpoint{config: config, opts: opts, address: a, seg: seg, door: door,
		peers: make(map[string]*peer), conns: make(map[transport.Key]*conn), piece: [pieces]int64{firstPieceAt}}
	if e.encoded, err = a.marshal(); err != nil {
		return nil, errors.Join(fmt.Errorf("shm: %w", err), e.Close())
	}
	return e, nil
}

// Name is "shm".
func (e *Endpoint) Name() string { return "shm" }

// Address is what peers give to Reach and Conn. It must not be changed.
func (e *Endpoint) Address() []byte { return e.encoded }

// Identity is which host we are on.
func (e *Endpoint) Identity() Identity { return e.address.identity }

// Reach proves that the peer's segment can be mapped, and maps it. See
// transport.Endpoint.
func (e *Endpoint) Reach(ctx context.Context, address []byte) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("shm: reach: %w", err)
	}
	_, err := e.reach(ctx, address)
	return err
}

// peer returns whom we reached at the address, nil when nobody yet.
func (e *Endpoint) peer(encoded []byte) (*peer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, fmt.Errorf("shm: reach: %w", transport.ErrClosed)
	}
	p := e.peers[string(encoded)]
	if p != nil && p.base == nil {
		return p, fmt.Errorf("shm: reach: %w", p.gone)
	}
	return p, nil
}

func (e *Endpoint) reach(ctx context.Context, encoded []byte) (*peer, error) {
	if p, err := e.peer(encoded); p != nil || err != nil {
		return p, err // with both, it is one that is no more
	}
	a, err := parseAddress(encoded)
	if err != nil {
		return nil, err
	}
	p, err := reach(ctx, e, a) // e is not locked, since it may wait for the peer
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if other := e.peers[string(encoded)]; other != nil || e.closed {
		p.close()
		if e.closed {
			return nil, fmt.Errorf("shm: reach: %w", transport.ErrClosed)
		}
		return other, nil
	}
	e.peers[string(encoded)] = p
	e.pollfds = nil
	return p, nil
}

// Conn returns the connection with that key. See transport.Endpoint. The error
// wraps transport.ErrSpace when there is no room to say that we are here.
func (e *Endpoint) Conn(key transport.Key, address []byte) (transport.Conn, error) {
	if c := e.conns[key]; c != nil {
		return c, nil
	}
	if key.Channel < transport.PointToPoint || key.Self < 0 || key.Peer < 0 {
		return nil, fmt.Errorf("shm: connect: channel %d, ranks %d and %d: want a channel ≥ %d and ranks ≥ 0", key.Channel, key.Self, key.Peer, transport.PointToPoint)
	}
	p, err := e.reach(context.Background(), address)
	if err != nil && p != nil {
		return nil, &transport.PeerError{Transport: "shm", Key: key, Peer: p.name(key.Peer), Op: "connect", Err: p.gone}
	} else if err != nil {
		return nil, err
	}
	if e.past.Left(key.Comm) {
		return nil, &transport.PeerError{Transport: "shm", Key: key, Peer: p.name(key.Peer), Op: "connect", Err: fmt.Errorf("we have left the communicator: %w", transport.ErrClosed)}
	}
	e.reap()
	for _, c := range e.lingers {
		if c.key == key {
			return nil, c.wrap("connect", fmt.Errorf("was closed, and the peer has not closed its end yet: %w", transport.ErrClosed))
		}
	}
	return e.connect(key, p)
}

// Progress looks after peers that died or closed, at most every 10 ms, and gives
// back memory of closed conns. It reports whether it found anything out.
func (e *Endpoint) Progress() bool {
	now := time.Now()
	if now.Sub(e.lastLook) < liveness {
		return false
	}
	buries := now.Unix() != e.lastLook.Unix() // it looks at all that a peer has sent
	e.lastLook = now
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	moved := e.reap()
	if e.pollfds == nil {
		e.polled = e.polled[:0]
		e.pollfds = make([]unix.PollFd, 0, len(e.peers))
		for _, p := range e.peers {
			if p.pidfd >= 0 && p.gone == nil {
				e.pollfds = append(e.pollfds, unix.PollFd{Fd: int32(p.pidfd), Events: unix.POLLIN})
				e.polled = append(e.polled, p)
			}
		}
	}
	if len(e.pollfds) > 0 {
		if n, err := unix.Poll(e.pollfds, 0); err == nil && n > 0 {
			for i, f := range e.pollfds {
				if f.Revents != 0 {
					e.polled[i].die()
				}
			}
			e.pollfds = nil
			moved = true
		}
	}
	for _, p := range e.peers {
		if p.base == nil {
			continue
		}
		if p.gone == nil && p.lockFree() {
			p.die()
			moved = true
		}
		for _, c := range p.conns {
			moved = c.look() || moved
		}
		if buries && p.bury(&e.past) {
			e.pollfds = nil // it has the descriptor
		}
	}
	return moved
}

// Stats may be called by anyone.
func (e *Endpoint) Stats() transport.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &e.final
	s := transport.Stats{Conns: len(e.conns)}
	if !e.closed {
		c = &e.seg.header().counters
		e.seg.mu.Lock()
		s.Memory, s.Allocated = e.seg.reserved, e.seg.allotted
		e.seg.mu.Unlock()
	}
	s.MessagesSent, s.MessagesReceived = atomic.LoadUint64(&c.messagesSent), atomic.LoadUint64(&c.messagesReceived)
	s.BytesSent, s.BytesReceived = atomic.LoadUint64(&c.bytesSent), atomic.LoadUint64(&c.bytesReceived)
	return s
}

// Unlink removes the socket at which peers get our memory, so that nothing is left
// however the process ends. Afterwards no further peer can reach us. It may be
// called by anyone.
func (e *Endpoint) Unlink() error { return e.door.close() }

// Path is that socket.
func (e *Endpoint) Path() string { return e.door.path }

// Leave tells the peers. See transport.Endpoint.
func (e *Endpoint) Leave(comm uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.past.Left(comm) {
		return
	}
	e.past.Leave(comm, leftMost)
	h := e.seg.header()
	atomic.StoreUint64(&h.left[e.leaves%leftMost], comm)
	e.leaves++
	atomic.StoreUint64(&h.leaves, e.leaves)
	e.seg.announce()
	for _, p := range e.peers {
		if p.base != nil {
			p.ring()
		}
	}
}

// Close tells the peers, breaks all conns and frees everything. Peers can still
// read what was sent to them.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	closed := fmt.Errorf("endpoint closed: %w", transport.ErrClosed)
	for _, c := range e.conns {
		c.quit(closed)
	}
	h := e.seg.header()
	atomic.StoreUint32(&h.shut, 1)
	e.seg.announce()
	for _, p := range e.peers {
		if p.base != nil {
			p.ring()
			p.close()
		}
	}
	e.final = h.counters
	clear(e.peers)
	clear(e.conns)
	e.lingers, e.slabs, e.pollfds, e.polled = nil, nil, nil, nil
	if err := errors.Join(e.door.close(), e.seg.close()); err != nil {
		return fmt.Errorf("shm: close: %w", err)
	}
	return nil
}

// Alloc returns zeroed memory in our segment that peers on this host can read: a
// message from there is lent to them, not copied. It may be called by anyone. Too
// little memory is a *SpaceError.
func (e *Endpoint) Alloc(n int64) (unsafe.Pointer, error) { return e.seg.alloc(n) }

// Free gives memory from Alloc back to the system. It may be called by anyone.
func (e *Endpoint) Free(p unsafe.Pointer) error { return e.seg.release(p) }

// Owns reports whether the n bytes at p lie in memory from Alloc. It may be
// called by anyone.
func (e *Endpoint) Owns(p unsafe.Pointer, n int64) bool { return e.seg.owns(p, n) }

// Arm says that the driver is about to sleep. See transport.Bell.
func (e *Endpoint) Arm() { atomic.StoreUint32(e.Word(), 1) }

// Disarm says that it is awake.
func (e *Endpoint) Disarm() { atomic.StoreUint32(e.Word(), 0) }

// Word is what it sleeps on. What it points to is valid until Close.
func (e *Endpoint) Word() *uint32 {
	if e.seg.base == nil {
		return &e.noBell
	}
	return &e.seg.header().sleep
}
