package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/collective/gpu"
	"github.com/gccl-project/gccl/collective/tune"
	"github.com/gccl-project/gccl/comm/settings"
	"github.com/gccl-project/gccl/transport"
)

// Comm is one rank's membership in a communicator. Its methods may be called from any goroutine; collectives must be
// called in the same order on all ranks, so concurrent calls must be ordered by the caller.
type Comm struct {
	id      uint64
	rank    int
	world   []int // rank of the family for each of our ranks
	lineup  lineup
	model   tune.Model
	family  *family
	log     *slog.Logger
	session bootstrap.Session // nil alone

	port     *engine.Port
	spare    [2]atomic.Pointer[run] // runs that are done, for calls that come: an exchange is two
	regulars [regulars]regular
	turn     int // which of them gives way next
	// … on device memory, of which no more is prepared than what other ranks are told
	hotOnDevice atomic.Pointer[prepared]
	plans       planCache

	mu      sync.Mutex // orders calls
	calls   uint64     // begun, of all kinds
	bytes   uint64     // of their larger buffers
	seq     uint64     // of the last collective
	recent  [remembered]entry
	refused []entry // the first calls that came when the communicator had failed
	splits  uint64
	making  *making       // a communicator that Split, Shrink or Grow is about to make
	made    []uint64      // how many were begun, by rank that takes part; nil: none
	pairs   map[int]*pair // of point-to-point, by peer
	groups  uint64        // of messages that were looked at
	self    selfQueue
	conns   map[transport.Key]transport.Conn

	health
	invitation atomic.Pointer[invitation]
	pairPorts  portMap
	gpu        *gpu.Member           // of calls on device memory; nil: there can be none,
	noGPU      string                // because of this
	proxy      *proxy                // of such calls where the GPUs do not reach each other
	part       *part                 // of calls between GPUs that are linked; nil: they are not
	serves     atomic.Pointer[proxy] // whose part on the host we do; nil: a communicator of the user's
	theirs     []*opened             // the other ranks' GPUs
	life       context.Context       // ends with Close
	kill       context.CancelFunc
	closing    chan struct{} // closed by Close
	closed     chan struct{} // closed when Close is done
	err        error         // of Close
	watcher    sync.WaitGroup
}

// New joins the communicator that the configuration describes, together with all its other ranks, and returns when all of
// them are there. It fails at the latest after Config.InitTimeout or when ctx ends, with an [*Error] that names the ranks that
// are missing, or that were there before us and have left again. What the configuration or the environment says wrongly is [ErrConfig], and
// named; of a file that cannot be used all ranks are told. The caller owns the result and must Close it.
func New(ctx context.Context, cfg Config) (*Comm, error) {
	from := settings.Process()
	from.File = cfg.File
	loaded, set, err := LoadConfig(from)
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.or(loaded).withDefaults(); err != nil {
		return nil, &misconfigured{err}
	}
	tell(cfg.Logger, set)
	if err := recordable(cfg.Recorder); err != nil {
		cfg.Logger.Warn("there will be no records of failures", "recorder", cfg.Recorder, "reason", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.InitTimeout)
	defer cancel()
	start := time.Now()
	cfg, env, err := cfg.numbered(os.Getenv)
	if err != nil {
		return nil, err
	}
	session, cfg, at, err := join(ctx, cfg, env)
	if err != nil {
		return nil, initError(cfg, "", start, err)
	}
	if session == nil {
		f := &family{cfg: cfg, id: cfg.ID.Hash(), log: logger(cfg.Logger, cfg.ID.Hash(), 0, 1), driver: cfg.Driver, routes: make([]route, 1), refs: 1}
		if !cfg.Device.IsHost() {
			if f.device, err = openGPU(cfg.Device); err != nil {
				return nil, initError(cfg, nameOf(cfg.ID.Hash()), start, err)
			}
		}
		if cfg.TopologyDump != "" {
			if _, err := f.look(); err != nil {
				return nil, initError(cfg, nameOf(cfg.ID.Hash()), start, errors.Join(err, f.close()))
			}
		}
		c := newComm(f.id, 0, []int{0}, f, nil)
		if err := c.joinGPU(ctx); err != nil {
			return nil, initError(cfg, nameOf(cfg.ID.Hash()), start, errors.Join(err, c.Close()))
		}
		return c, nil
	}
	f, err := newFamily(ctx, cfg, session, at)
	if err != nil {
		session.Abort(wire{causeOf(err)})
		return nil, initError(cfg, nameOf(session.ID()), start, errors.Join(err, session.Close()))
	}
	world := make([]int, session.Size())
	for r := range world {
		world[r] = r
	}
	c := newComm(session.ID(), session.Rank(), world, f, session)
	if err := c.joinGPU(ctx); err != nil {
		c.Abort(err)
		return nil, initError(cfg, c.name(), start, errors.Join(err, c.Close()))
	}
	c.log.Debug("communicator ready", "paths", c.pathSummary(), "orders", c.lineup.orders)
	return c, nil
}

// newComm makes a communicator, whose is the caller's hold of the family from now on.
func newComm(id uint64, rank int, world []int, f *family, s bootstrap.Session) *Comm {
	c := &Comm{id: id, rank: rank, world: world, log: f.logOf(id, rank, len(world)), lineup: f.lineupOf(world), model: f.model, family: f, session: s,
		pairs: map[int]*pair{}, conns: map[transport.Key]transport.Conn{}, closing: make(chan struct{}), closed: make(chan struct{}),
		health: health{broken: make(chan struct{}), judged: make(chan struct{}), look: make(chan struct{}, 1), makes: make(chan struct{}, 1)}}
	if c.lineup.hosts == nil && f.within != nil {
		c.model = *f.within
	}
	for i := range c.regulars {
		c.regulars[i].run = run{comm: c, regular: true, nextLook: firstLook}
	}
	c.life, c.kill = context.WithCancel(context.Background())
	if f.cfg.Recorder != "" {
		c.watcher.Go(c.dumpOnSignal())
	}
	if len(world) == 1 {
		return c
	}
	c.port = f.driver.NewPort(engine.PortOptions{
		Owner: c,
		Ranks: len(world), Lanes: f.cfg.Lanes, Streams: f.cfg.Lanes,
		Dial:    func(channel, peer int) (transport.Conn, error) { return c.dial(int32(channel), peer) },
		Stalled: c.stalled,
		Broken:  c.breakConns,
	})
	s.Answer(c.answer)
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

func (c *Comm) name() string { return nameOf(c.id) }

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
	lanes := c.lanes()
	c.wreck.CompareAndSwap(nil, &lanes)
	for k, conn := range c.conns {
		conn.Close()
		delete(c.conns, k)
	}
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

// Err is nil, or why the communicator is of no more use, as an [*Error] that wraps ErrAborted. Calls on GPU memory return when they are queued:
// what they do is right if Err is nil once their stream has come so far. Anyone may call it at any time.
func (c *Comm) Err() error {
	if c.reason() == nil {
		return nil
	}
	return c.refusal("failed", c.verdict())
}

// Abort ends all calls in flight, here and on the other ranks, with an error that wraps ErrAborted and says reason. The
// communicator can then only be shrunk and closed. Anyone may call it, any number of times; the first reason counts.
func (c *Comm) Abort(reason error) {
	if reason == nil {
		reason = ErrAborted
	}
	c.fail(fmt.Errorf(abortedHere+"%w", reason))
	if c.port != nil {
		c.failPorts()
	}
}

// Close ends our membership and frees everything: afterwards no goroutine, descriptor or shared memory of the communicator is
// left. Calls in flight end with ErrClosed, but those on GPU memory that are queued are done first, unless the communicator fails; replays of graphs
// have to be. Memory from Alloc is gone, once communicators split from this one are closed, too. Other
// ranks may still be in calls that need nothing more from us. Idempotent; anyone may call it at any time.
func (c *Comm) Close() error {
	c.proxy.drain()
	c.part.drain(c)
	c.mu.Lock()
	again := c.life.Err() != nil
	c.kill()
	c.mu.Unlock()
	if again {
		<-c.closed
		return c.err
	}
	defer close(c.closed)
	if inv := c.invitation.Swap(nil); inv != nil {
		inv.root.Close()
	}
	if c.port == nil {
		c.watcher.Wait()
		c.fail(ErrClosed)
		c.err = errors.Join(c.leaveGPU(), c.family.drop())
		return c.err
	}
	close(c.closing)
	c.watcher.Wait()
	c.fail(ErrClosed)
	c.failPorts()
	c.leave()
	c.err = errors.Join(c.session.Close(), c.leaveGPU(), c.family.drop()) // to free memory of GPUs may wait for what runs there: others need not
	return c.err
}

// leave has our endpoints, which others of the family go on with, forget what peers have connected for us, perhaps before we asked. The ports have failed.
func (c *Comm) leave() {
	f := c.family
	f.driver.Exclusive(func() {
		for _, e := range f.endpoints {
			e.Leave(c.id)
		}
	})
}

// ranks are the peers of a stalled port in order, each once; a pair has only one.
func (r *run) ranks(peers []int) []int {
	if r.call.Kind.pointToPoint() {
		return []int{r.call.Peer}
	}
	slices.Sort(peers)
	return slices.Compact(peers)
}
