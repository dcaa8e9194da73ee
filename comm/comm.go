package comm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/transport"
)

// Comm is one rank's membership in a communicator. Its methods may be called from any goroutine; collectives must be
// called in the same order on all ranks, so concurrent calls must be ordered by the caller.
type Comm struct {
	id      uint64
	rank    int
	world   []int // rank of the family for each of our ranks
	family  *family
	session bootstrap.Session // nil alone
	root    bool              // we own the session of the world, not a part of one

	port  *engine.Port
	spare atomic.Pointer[run]
	hot   atomic.Pointer[prepared] // of the last collective
	plans planCache

	mu     sync.Mutex // orders calls
	seq    uint64     // of the last collective
	splits uint64
	pairs  map[int]*pair // of point-to-point, by peer
	self   selfQueue
	conns  map[transport.Key]transport.Conn

	failed    atomic.Pointer[failure]
	broken    chan struct{} // closed when failed is set
	closing   chan struct{} // closed by Close
	judged    chan struct{} // closed by the watcher: judgement is set, unless failed is right or nothing failed
	judgement error
	closed    sync.Once
	err       error // of Close
	watcher   sync.WaitGroup

	calls, bytes atomic.Uint64
}

type failure struct{ err error }

// New joins the communicator that the configuration describes, together with all its other ranks, and returns when all of
// them are there. It fails at the latest after Config.InitTimeout or when ctx ends, naming the ranks that are missing. The
// caller owns the result and must Close it.
func New(ctx context.Context, cfg Config) (*Comm, error) {
	env, err := ConfigFromEnv(os.Getenv)
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.or(env).withDefaults(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.InitTimeout)
	defer cancel()
	session, cfg, at, err := join(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if session == nil {
		return newComm(cfg.ID.Hash(), 0, []int{0}, &family{cfg: cfg, log: cfg.Logger, driver: cfg.Driver, routes: make([]route, 1)}, nil), nil
	}
	f, err := newFamily(ctx, cfg, session, at)
	if err != nil {
		session.Abort(err)
		return nil, errors.Join(err, session.Close())
	}
	world := make([]int, session.Size())
	for r := range world {
		world[r] = r
	}
	c := newComm(session.ID(), session.Rank(), world, f, session)
	f.log.Debug("communicator ready", "comm", c.name(), "paths", c.pathSummary())
	return c, nil
}

func newComm(id uint64, rank int, world []int, f *family, s bootstrap.Session) *Comm {
	c := &Comm{id: id, rank: rank, world: world, family: f, session: s,
		pairs: map[int]*pair{}, conns: map[transport.Key]transport.Conn{}, broken: make(chan struct{}), closing: make(chan struct{}), judged: make(chan struct{})}
	f.hold()
	if len(world) == 1 {
		return c
	}
	c.port = f.driver.NewPort(engine.PortOptions{
		Ranks: len(world), Lanes: f.cfg.Lanes, Streams: f.cfg.Lanes,
		Dial:    func(channel, peer int) (transport.Conn, error) { return c.dial(int32(channel), peer) },
		Stalled: c.stalled,
		Broken:  c.breakConns,
	})
	c.watcher.Add(1)
	go c.watch()
	return c
}

// Rank is our number in the communicator, 0 … Size-1.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks.
func (c *Comm) Size() int { return len(c.world) }

// ID is the same on all ranks, and another for every communicator.
func (c *Comm) ID() uint64 { return c.id }

func (c *Comm) name() string { return fmt.Sprintf("%016x", c.id) }

// dial returns the connection to a peer on a channel. The driver's token is held.
func (c *Comm) dial(channel int32, peer int) (transport.Conn, error) {
	k := transport.Key{Comm: c.id, Channel: channel, Self: int32(c.rank), Peer: int32(peer)}
	r := c.family.routes[c.world[peer]]
	conn, err := r.endpoint.Conn(k, r.address)
	if err != nil {
		return nil, err
	}
	c.conns[k] = conn
	return conn, nil
}

// breakConns closes all conns. The driver's token is held.
func (c *Comm) breakConns(err error) {
	c.fail(err)
	for k, conn := range c.conns {
		conn.Close()
		delete(c.conns, k)
	}
}

// fail records what went wrong first; the watcher finds out whose fault it was and tells the others.
func (c *Comm) fail(err error) {
	if c.failed.CompareAndSwap(nil, &failure{err}) {
		close(c.broken)
	}
}

// reason is why the communicator is of no more use, or nil.
func (c *Comm) reason() error {
	if f := c.failed.Load(); f != nil {
		return f.err
	}
	return nil
}

// verdict is the reason that all ranks agree on, as far as they can. It waits for the watcher to find it.
func (c *Comm) verdict() error {
	if c.port != nil {
		<-c.judged
		if c.judgement != nil {
			return c.judgement
		}
	}
	return c.reason()
}

// hearsay is how long a rank that lost a connection waits for word from others: the peer may just have closed
// it because of what a third one did.
const hearsay = time.Second

// watch carries failures between this communicator and the other ranks.
func (c *Comm) watch() {
	defer c.watcher.Done()
	defer close(c.judged)
	var notice <-chan bootstrap.Notice = c.session.Aborted()
	select {
	case n, ok := <-notice:
		if ok {
			c.heard(n)
		}
		return
	case <-c.closing:
		return
	case <-c.broken:
	}
	if errors.Is(c.reason(), transport.ErrGone) {
		patience := time.NewTimer(hearsay)
		defer patience.Stop()
		select {
		case n, ok := <-notice:
			if ok {
				c.heard(n)
				return
			}
		case <-c.closing:
		case <-patience.C:
		}
	}
	c.session.Abort(causeOf(c.reason()))
	c.failPorts()
}

// heard takes another rank's word for what went wrong.
func (c *Comm) heard(n bootstrap.Notice) {
	c.judgement = parseCause(n)
	c.fail(c.judgement)
	c.failPorts()
}

// failPorts ends all calls in flight.
func (c *Comm) failPorts() {
	err := c.reason()
	c.mu.Lock()
	ports := []*engine.Port{c.port}
	for _, p := range c.pairs {
		if p.port != nil {
			ports = append(ports, p.port)
		}
	}
	c.mu.Unlock()
	for _, p := range ports {
		p.Fail(err)
	}
}

// Abort ends all calls in flight, here and on the other ranks, with an error that wraps ErrAborted and says reason. The
// communicator can then only be closed. Anyone may call it, any number of times; the first reason counts.
func (c *Comm) Abort(reason error) {
	if reason == nil {
		reason = ErrAborted
	}
	c.fail(fmt.Errorf("aborted by this rank: %w", reason))
	if c.port != nil {
		c.failPorts()
	}
}

// Close ends our membership and frees everything: afterwards no goroutine, descriptor or shared memory of the communicator is
// left. Calls in flight end with ErrClosed; memory from Alloc is gone, once communicators split from this one are closed, too. Other
// ranks may still be in calls that need nothing more from us. Idempotent; anyone may call it at any time.
func (c *Comm) Close() error {
	c.closed.Do(func() {
		if c.port == nil {
			c.fail(ErrClosed)
			c.err = c.family.drop()
			return
		}
		close(c.closing)
		c.watcher.Wait()
		c.failed.CompareAndSwap(nil, &failure{ErrClosed})
		c.failPorts()
		c.err = errors.Join(c.session.Close(), c.family.drop())
	})
	return c.err
}

// stalled is asked by the driver about a call that does not move: it warns, and at last gives up.
func (c *Comm) stalled(call *engine.Call, elapsed time.Duration, peers []int) error {
	r := call.Note.(*run)
	peers = r.ranks(peers)
	if elapsed > c.family.cfg.WarnAfter*time.Duration(1<<r.warned) && r.warned < 30 {
		r.warned++
		c.family.log.Warn("a call waits", "comm", c.name(), "call", r.call.String(), "seq", r.seq, "for", elapsed.Round(time.Millisecond), "ranks", peers)
	}
	if elapsed > c.family.cfg.CallTimeout {
		r.elapsed = elapsed
		return &lateError{fmt.Sprintf("%v (sequence %d) of rank %d waited %v for ranks %v", &r.call, r.seq, c.rank, elapsed.Round(time.Millisecond), peers), peers}
	}
	return nil
}

// ranks are the peers of a stalled port in order, each once; a pair has only one.
func (r *run) ranks(peers []int) []int {
	if r.call.Kind.pointToPoint() {
		return []int{r.call.Peer}
	}
	slices.Sort(peers)
	return slices.Compact(peers)
}
