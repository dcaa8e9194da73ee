package comm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/collective/tune"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/shm"
	"github.com/gccl-project/gccl/transport/tcp"
	"github.com/gccl-project/gccl/transport/verbs"
)

// family is what a communicator shares with those split from it: endpoints, and the way to every rank of the world.
type family struct {
	cfg       Config
	id        uint64 // of the world's communicator
	log       *slog.Logger
	driver    *engine.Driver
	endpoints []transport.Endpoint
	routes    []route          // by rank of the world; our own is zero
	places    *places          // of the ranks of the world; nil for one alone
	graph     *topology.Graph  // our host
	inProcess []bool           // by rank of the world: it runs in this process, and not as if on another host
	beside    []bool           // … it runs in this process
	onOurGPU  []bool           // … it has the GPU that we have
	device    *opened          // Config.Device; nil: none
	devices   []kernels.Device // of all ranks of the world
	model     tune.Model
	within    *tune.Model // of communicators on one host, where the world is on several; nil: model
	crowded   bool

	mu      sync.Mutex // guards what follows
	refs    int
	regions registrations // of what Alloc returned
	closed  atomic.Bool   // there will be no more
}

// newFamily opens our endpoints, tells the others, and chooses a route to each of them. It uses at most two gathers. The caller holds it.
func newFamily(ctx context.Context, cfg Config, s bootstrap.Session, at listenAt) (*family, error) {
	f := &family{cfg: cfg, id: s.ID(), log: logger(cfg.Logger, s.ID(), s.Rank(), s.Size()), driver: cfg.Driver, refs: 1}
	if s.Size() == 1 {
		f.routes = make([]route, 1)
		return f, nil
	}
	var err error
	if !cfg.Device.IsHost() {
		f.device, err = openGPU(cfg.Device)
	}
	var mine hello
	if err == nil {
		mine, err = f.open(at)
	}
	if err == nil {
		err = f.connect(ctx, s, mine, at)
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// open opens the endpoints that the configuration asks for. With "auto", shared memory that cannot be had is done without.
func (f *family) open(at listenAt) (hello, error) {
	cfg := f.cfg
	host, _ := os.Hostname()
	h := hello{Version: wireVersion, Lanes: cfg.Lanes, MaxMessage: cfg.MaxMessage, Checksum: cfg.Checksum, Host: host, PID: os.Getpid(), Process: process, Device: cfg.Device, Processors: processors(), Threads: runtime.GOMAXPROCS(0), Addresses: map[string][]byte{}, Model: map[string]tune.Model{}}
	h.Machine = bootID()
	h.Boot = cmp.Or(cfg.HostID, h.Machine)
	opts := f.options()
	add := func(e transport.Endpoint, err error) error {
		if err != nil {
			return fmt.Errorf("comm: %w", err)
		}
		f.attach(e)
		h.Addresses[e.Name()] = e.Address()
		h.Model[e.Name()], err = cfg.modelOf(e.Name())
		return err
	}
	if cfg.Transport == "mem" {
		return h, add(cfg.Memory.Open(opts))
	}
	var err error
	if f.graph, err = f.look(); err != nil {
		return h, err
	}
	if h.seat, err = newSeat(cfg, f.graph, f.device); err != nil {
		return h, err
	}
	if cfg.Transport == verbs.Name {
		return h, add(f.openRDMA(h, at))
	}
	if cfg.Transport != "tcp" {
		e, err := shm.Open(shm.Config{Dir: cfg.ShmDir, HostID: cfg.HostID, SegmentSize: segmentSize(cfg.Size), Staging: hostStaging / int64(cfg.Size)}, opts)
		switch {
		case err == nil:
			err = add(e, nil)
		case cfg.Transport == "auto":
			f.log.Warn("no shared memory", "reason", err)
			err = nil
		}
		if err != nil {
			return h, fmt.Errorf("comm: %w", err)
		}
	}
	if cfg.Transport != "shm" {
		t := at.sockets()
		t.Ports, t.Window, t.ConnectTimeout, t.Log = [2]uint16{cfg.Ports.Low, cfg.Ports.High}, window(cfg.Size), cfg.InitTimeout, f.log
		e, err := tcp.Open(t, opts)
		if errors.Is(err, syscall.EADDRINUSE) && cfg.Ports != (bootstrap.PortRange{}) {
			err = fmt.Errorf("the port range has %d ports, need up to %d, two for each rank on this host, to meet and for data, one more where it uses RDMA, and one for the root: %w", int(cfg.Ports.High)-int(cfg.Ports.Low)+1, 3*cfg.Size+1, err)
		}
		if err := add(e, err); err != nil {
			return h, err
		}
	}
	return h, nil
}

// options are those of all our endpoints.
func (f *family) options() transport.Options {
	c := f.cfg
	return transport.Options{Streams: c.Lanes, MaxMessage: c.MaxMessage, Secret: c.ID.Secret(), Checksum: c.Checksum, FirstSeq: c.FirstSeq, Wake: f.driver.Wake, Hook: c.Hook}
}

func (f *family) attach(e transport.Endpoint) {
	f.endpoints = append(f.endpoints, e)
	f.driver.Attach(e)
}

// modelOf is what messages of a transport cost, the same for all ranks.
func (c Config) modelOf(name string) (tune.Model, error) {
	m, err := tune.Default(name)
	m.Lanes, m.MaxMessage = c.Lanes, c.MaxMessage
	m.Piece = min(m.Piece, c.MaxMessage)
	if c.Size > 4 && m.Shared {
		m.Piece = min(m.Piece, 64<<10) // every rank may stage one for every other
	}
	return m, err
}

// hostStaging is what the ranks of a communicator family may hold together for messages on their way through shared memory,
// beyond one for each pair and lane that needs it.
const hostStaging = 8 << 20

// window is how far ahead of a reader a sender may be, in bytes, on each stream of a TCP connection: less where there
// are many connections, each of which may hold as much.
func window(ranks int) int {
	if ranks > 4 {
		return 256 << 10
	}
	return 0 // tcp's default
}

// segmentSize bounds the address space of a rank's shared memory where all ranks of a large world may be in one process, which
// then maps the square of their number.
func segmentSize(ranks int) int64 {
	if ranks > 32 {
		return 16 << 30
	}
	return 0 // shm's default
}

// connect exchanges hellos and what could be reached, and chooses a route to each rank.
func (f *family) connect(ctx context.Context, s bootstrap.Session, mine hello, at listenAt) error {
	blob, err := json.Marshal(mine)
	if err != nil {
		return fmt.Errorf("comm: %w", err)
	}
	here, leave := meet(s.ID())
	defer leave()
	blobs, err := s.AllGather(ctx, blob)
	if err != nil {
		return fmt.Errorf("comm: exchange of addresses: %w", err)
	}
	first, err := here.told.do(blobs, func() (*told, error) { return hear(blobs) })
	if err != nil {
		return err
	}
	all := first.hellos
	for r := range all {
		if err := mine.agree(&all[r]); err != nil {
			return fmt.Errorf("comm: rank %d: %w", r, err)
		}
	}
	if f.places, err = first.places, first.lost; err != nil {
		return err
	}
	reached := make([]byte, len(all)) // 1 where shared memory with that rank is proven from our side
	why := make([]string, len(all))
	shmEndpoint := f.byName("shm")
	for r, h := range all {
		if a := h.Addresses["shm"]; r != s.Rank() && a != nil && shmEndpoint != nil {
			if err := reachWhileAlive(ctx, s, r, shmEndpoint, a); err != nil {
				why[r] = err.Error()
			} else {
				reached[r] = 1
			}
		}
	}
	last, bits := first, make([][]byte, len(all))
	if mine.Graph != nil { // else there is nothing to reach, or to choose by
		second := reach{first.digest, reached, f.joinRDMA(s.Rank(), mine, at)}
		if bits, err = s.AllGather(ctx, second.bytes()); err != nil {
			return fmt.Errorf("comm: exchange of reachability: %w", err)
		}
		digests, rdma := make([]uint64, len(all)), make([][]byte, len(all))
		for r := range bits {
			theirs, err := parseReach(bits[r], len(all))
			if err != nil {
				return fmt.Errorf("comm: rank %d (%s) tells whom it reaches in %w", r, all[r].place(), err)
			}
			digests[r], bits[r], rdma[r] = theirs.digest, theirs.shm, theirs.rdma
		}
		if err := sameDigests(digests); err != nil {
			return err
		}
		if last, err = here.heard.do(slices.Concat(blobs, rdma), func() (*told, error) { return first.withRDMA(f.cfg, rdma) }); err != nil {
			return fmt.Errorf("comm: %w", err)
		}
		all, mine = last.hellos, last.hellos[s.Rank()]
	}
	if e, ok := shmEndpoint.(*shm.Endpoint); ok {
		if err := e.Unlink(); err != nil {
			f.log.Warn("shared memory keeps its name", "reason", err)
		}
	}
	f.routes, f.inProcess, f.beside, f.onOurGPU = make([]route, len(all)), make([]bool, len(all)), make([]bool, len(all)), make([]bool, len(all))
	var machine []hello
	for r, h := range all {
		f.beside[r] = h.Process == mine.Process
		f.inProcess[r] = f.beside[r] && h.Boot == mine.Boot
		f.onOurGPU[r] = h.GPU != "" && h.GPU == mine.GPU || f.beside[r] && h.Device == mine.Device && !h.Device.IsHost()
		f.devices = append(f.devices, h.Device)
		if h.Machine == mine.Machine {
			machine = append(machine, h)
		}
	}
	if f.crowded = crowd(machine) > 1; f.crowded {
		f.driver.SetCrowded(true)
	}
	proven := func(a, b int) bool { return len(bits[a]) > b && len(bits[b]) > a && bits[a][b] == 1 && bits[b][a] == 1 }
	for r := range all {
		if r == s.Rank() {
			continue
		}
		name, reason := choose(&mine, &all[r], proven(s.Rank(), r), func() topology.Reason { return topology.NoRDMA(f.places.of[s.Rank()], f.places.of[r]) })
		if why[r] != "" && name != "shm" {
			reason = why[r]
		}
		if name == "" {
			return fmt.Errorf("comm: ranks %d (%s) and %d (%s) have no transport in common: %s", s.Rank(), mine.place(), r, all[r].place(), reason)
		}
		f.routes[r] = route{f.byName(name), all[r].Addresses[name], reason, all[r].place()}
	}
	m, err := here.models.do(slices.Concat(blobs, bits), func() (models, error) { return last.models(proven) })
	f.model, f.within = m.all, m.within
	return err
}

// place says where we are, for people.
func (f *family) place() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s pid %d", host, os.Getpid())
}

// live has the endpoints until the last communicator is closed; they are themselves safe for who still uses one then.
func (f *family) live() []transport.Endpoint {
	if f.closed.Load() {
		return nil
	}
	return f.endpoints
}

// gpu is the one of Config.Device until then, or nil.
func (f *family) gpu() *opened {
	if f.closed.Load() {
		return nil
	}
	return f.device
}

func (f *family) byName(name string) transport.Endpoint {
	for _, e := range f.endpoints {
		if e.Name() == name {
			return e
		}
	}
	return nil
}

// hold and drop count the communicators of the family; the last one to go closes the endpoints, and then there will be no others.
func (f *family) hold() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refs == 0 {
		return false
	}
	f.refs++
	return true
}

func (f *family) drop() error {
	f.mu.Lock()
	f.refs--
	last := f.refs == 0
	f.mu.Unlock()
	if !last {
		return nil
	}
	return f.close()
}

func (f *family) close() error {
	var errs []error
	f.closed.Store(true)
	for _, e := range f.endpoints {
		f.driver.Detach(e)
	}
	f.mu.Lock()
	regions := f.regions
	f.regions = nil
	f.mu.Unlock()
	for _, of := range regions { // before the memory goes
		for _, r := range of {
			errs = append(errs, r.Close())
		}
	}
	for _, e := range f.endpoints {
		errs = append(errs, e.Close())
	}
	errs = append(errs, f.device.drop())
	return errors.Join(errs...)
}
