package comm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// A proxy does a rank's calls on GPU memory by way of host memory, where the ranks' GPUs do not reach each other, as those of several hosts, or must
// not; and what a part does not take where they do, in several processes. A call is cut in rounds. On the call's stream a round's part of the input is copied to pinned memory and a word
// tells the host; the stream waits for another word, and the result is copied from pinned memory. In between the host makes the
// collective of the pieces, on a communicator of the same ranks. Who calls queues all that and goes on; what the host does calls no
// driver of GPUs (round.go), so it goes on whatever waits in there.
//
// A GPU takes streams by few queues, and what waits at a queue's head holds up the other streams in it. Where that could be the very one that is
// waited for, the caller waits, instead of the stream: where ranks of one process share a GPU, and in a Group with several long calls.
type proxy struct {
	id         uint64 // of the process's proxies, which are locked in this order
	comm, host *Comm
	device     *opened
	shares     bool           // the GPU with another rank of this process
	words      cuda.Pinned    // told, done
	told, done *atomic.Uint32 // number of the last round whose input is there; … whose result is

	trips *trips // nil: somebody else has the GPU

	collectives atomic.Uint64 // that were called, but in graphs

	laneMu sync.Mutex
	lanes  []*proxy // that do parts of long Groups, with its lock: words, slots and goroutines alone

	mu     sync.Mutex // orders what follows, and what is queued
	slots  slots
	old    []slots
	dirty  bool   // something was queued that behind is not behind
	queued uint32 // number of the last round
	waited uint32 // the stream has been told to wait until this one is done
	stream cuda.StreamID
	behind cuda.Event // the last batch, on stream

	flow   sync.Mutex // guards ops
	eased  *sync.Cond // ops is less, or the communicator broken
	ops    int        // that the stream has for rounds which are not done
	head   *round     // from rounds; of serve alone
	rounds chan *round
	begun  chan *round
	busy   atomic.Int32 // rounds that the host is at, or that are in begun
	ends   sync.WaitGroup
	quit   chan struct{}
	base   uint32 // numbers begin behind it
}

const (
	proxyDepth = 4       // rounds in flight on a stream
	proxyRoom  = 1 << 20 // bytes of a round of a call, of all ranks' blocks together
	pairRoom   = proxyRoom / 4
	// A stream takes about a thousand operations; who queues more would wait in the driver, where others could not pass.
	maxOps = 512
	doneAt = 128 // in proxy.words, behind told and on another line
)

// slots are the pinned host memory of the rounds in flight.
type slots struct {
	at      unsafe.Pointer
	in, out int64 // bytes in each
	free    func() error
}

// proxies counts those that were made.
var proxies atomic.Uint64

// joinProxy makes the proxy, together with the other ranks.
func (c *Comm) joinProxy(ctx context.Context) error {
	sub, err := c.session.Sub(ctx, c.everybody())
	if err != nil {
		return err
	}
	c.family.hold() // we do, too
	y := newProxy(c, newComm(sub.ID(), c.rank, c.world, c.family, sub))
	c.mu.Lock() // others may ask already
	c.proxy = y
	c.mu.Unlock()
	y.host.serves.Store(y)
	alone := true
	for w := range c.family.routes {
		if w != c.world[c.rank] && c.family.onOurGPU[w] {
			alone = false
			y.shares = y.shares || c.family.beside[w]
		}
	}
	if err = y.open(); err == nil {
		y.behind, err = y.device.NewEvent(false)
	}
	if err == nil {
		err = y.reserve(proxyRoom, proxyRoom)
	}
	if err == nil && alone {
		y.trips, err = newTrips(y.device, y.base)
	}
	if err != nil {
		return fmt.Errorf("comm %s: pinned memory for calls on %v: %w", c.name(), y.device, err)
	}
	y.run()
	return nil
}

func newProxy(c, host *Comm) *proxy {
	y := &proxy{id: proxies.Add(1), comm: c, host: host, device: c.family.device, base: uint32(c.family.cfg.FirstSeq),
		rounds: make(chan *round, maxOps), begun: make(chan *round, maxOps), quit: make(chan struct{})}
	y.eased = sync.NewCond(&y.flow)
	y.queued, y.waited = y.base, y.base
	return y
}

// open makes the words. After an error close frees what is there.
func (y *proxy) open() (err error) {
	if y.words, err = y.device.AllocPinned(4096); err != nil {
		return err
	}
	y.told, y.done = (*atomic.Uint32)(y.words.Host), (*atomic.Uint32)(unsafe.Add(y.words.Host, doneAt))
	y.told.Store(y.base)
	y.done.Store(y.base)
	return nil
}

// run starts the host's part.
func (y *proxy) run() {
	y.ends.Go(y.watch)
	y.ends.Go(y.serve)
	y.ends.Go(y.finishAll)
}

// laneOf is the i-th of those that do a part of a Group's calls. The proxy's lock is held.
func (y *proxy) laneOf(i int) (*proxy, error) {
	for len(y.lanes) <= i {
		lane := newProxy(y.comm, y.host)
		if err := lane.open(); err != nil {
			return nil, fmt.Errorf("pinned memory on %v for a part of a Group: %w", y.device, err)
		}
		lane.run()
		y.laneMu.Lock()
		y.lanes = append(y.lanes, lane)
		y.laneMu.Unlock()
	}
	return y.lanes[i], nil
}

// all are the proxy and its lanes.
func (y *proxy) all() []*proxy {
	y.laneMu.Lock()
	defer y.laneMu.Unlock()
	return append([]*proxy{y}, y.lanes...)
}

// newSlots allocates memory that ranks on the host can read where it lies, if there is such, and pins it.
func (y *proxy) newSlots(in, out int64) (slots, error) {
	const page = 4096
	s := slots{in: (in + page - 1) / page * page, out: (out + page - 1) / page * page}
	bytes := proxyDepth * (s.in + s.out)
	if y.comm.family.allocator() != nil {
		m, err := y.comm.Alloc(bytes)
		if err == nil {
			if err = y.device.Pin(m); err == nil {
				s.at, s.free = m.Ptr, func() error { return errors.Join(y.device.Unpin(m), y.comm.Free(m)) }
				return s, nil
			}
			err = errors.Join(err, y.comm.Free(m))
		}
		y.comm.log.Warn("messages of GPU memory are copied once more, for shared host memory cannot be pinned", "bytes", bytes, "reason", err)
	}
	p, err := y.device.AllocPinned(bytes)
	s.at, s.free = p.Host, func() error { return y.device.FreePinned(p) }
	return s, err
}

// of is where a round's memory begins.
func (s *slots) of(number uint32) (in, out unsafe.Pointer) {
	in = unsafe.Add(s.at, int64(number%proxyDepth)*(s.in+s.out))
	return in, unsafe.Add(in, s.in)
}

// reserve sees to it that rounds have so much room, in bytes. Those before keep theirs, for to free it may wait for the GPU; as it at least doubles,
// all of them together have no more than the last. The proxy's lock is held.
func (y *proxy) reserve(in, out int64) error {
	if in <= y.slots.in && out <= y.slots.out && y.slots.free != nil {
		return nil
	}
	more, err := y.newSlots(max(in, 2*y.slots.in), max(out, 2*y.slots.out))
	if err != nil {
		return fmt.Errorf("pinned memory for calls on %v: %w", y.device, err)
	}
	y.old = append(y.old, y.slots)
	y.slots = more
	return nil
}

// await waits until a round is done, also after a failure.
func (y *proxy) await(number uint32) error {
	y.flow.Lock()
	defer y.flow.Unlock()
	for int32(number-y.done.Load()) > 0 {
		y.eased.Wait()
	}
	return y.comm.reason()
}

// ease waits until the stream has room for operations.
func (y *proxy) ease(ops int) error {
	y.flow.Lock()
	defer y.flow.Unlock()
	for y.ops > 0 && y.ops+ops > maxOps && y.comm.reason() == nil {
		y.eased.Wait()
	}
	y.ops += ops
	return y.comm.reason()
}

// drain returns when all that was queued is done or the communicator has failed.
func (y *proxy) drain() {
	if y == nil {
		return
	}
	for _, y := range y.all() {
		y.flow.Lock()
		for y.ops > 0 && y.comm.reason() == nil {
			y.eased.Wait()
		}
		y.flow.Unlock()
	}
}

// close waits until all that is queued is through, and frees everything. The communicator has failed.
func (y *proxy) close() (err error) {
	if y == nil {
		return nil
	}
	err = y.host.Close() // ends what is under way, also for who waits with the lock
	y.mu.Lock()          // nobody queues any more
	defer y.mu.Unlock()
	all := y.all()
	for _, p := range all {
		close(p.rounds)
		close(p.quit)
	}
	for _, p := range all {
		p.ends.Wait()
	}
	y.trips.end()
	var busy error
	if y.dirty {
		busy = y.device.Synchronize()
	}
	if y.behind != 0 {
		busy = errors.Join(busy, y.device.WaitFor(y.behind))
	}
	if busy != nil { // a stream may still copy from there, or to it
		return errors.Join(err, fmt.Errorf("comm %s: pinned memory for calls on %v is not freed, for what is queued there cannot be waited for (while a stream is captured nothing can): %w", y.comm.name(), y.device, busy))
	}
	if y.behind != 0 {
		err = errors.Join(err, y.device.DestroyEvent(y.behind))
	}
	for _, p := range all {
		err = errors.Join(err, p.free())
	}
	return errors.Join(err, y.trips.close())
}

// free frees pinned memory that nothing uses any more.
func (y *proxy) free() (err error) {
	for _, s := range append(y.old, y.slots) {
		if s.free != nil {
			err = errors.Join(err, s.free())
		}
	}
	if y.words.Host != nil {
		err = errors.Join(err, y.device.FreePinned(y.words))
	}
	return err
}
