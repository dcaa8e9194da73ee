package comm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/bootstrap/handover"
	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/collective/gpu"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// part is this rank's share of calls between processes of one host, each with a GPU of its own, that are linked: kernels store in memory which
// the processes map of each other, and no host takes part. What it does not take the proxy does: factors, named algorithms,
// averages of integers, types of 8-bit floating-point numbers.
type part struct {
	*gpu.Part
	order    sync.Mutex            // numbers calls and queues them
	captured atomic.Bool           // some call stands in a graph: then calls of one number need not be one call
	waits    atomic.Pointer[[]int] // whom calls that are queued wait for, as last seen
	posts    atomic.Pointer[[]int] // … and messages

	// Guarded by the communicator's lock: the number of the last call that no graph holds, and what the last ones were.
	number uint64
	calls  [partCalls]agreed
}

// partCalls is how many calls a rank remembers, for others that ask: more than it may be ahead of its GPU, and that one of other GPUs.
const partCalls = 1024

// partState is what a rank says of its part, and of the call that it is asked about.
type partState struct {
	Begun     uint64       // number of the last call that no graph holds
	Call      *agreed      `json:",omitempty"` // asked about; nil: not called, or long ago
	Captured  bool         `json:",omitempty"` // it has captured calls
	Proxied   uint64       // collectives on GPU memory by way of host memory, of those that no graph holds
	Closes    bool         `json:",omitempty"` // it is done with all its calls, and will make no more
	Exchanges []uint32     `json:",omitempty"` // with each rank that its GPU has begun; none: the GPU does not say
	Posts     [2]postState // messages to the rank that asks (sending), and from it
}

// partsAnyway has ranks of one process or one GPU, too, be in parts. Only tests do that.
var partsAnyway = false

// partOffer is what a rank tells of its GPU, and how others get the memory that they store in.
type partOffer struct {
	No     string   `json:",omitempty"` // why it takes no part
	UUID   [16]byte // of its GPU
	Proof  [16]byte // what is in the memory
	Ticket handover.Ticket
}

// joinPart makes the part, together with the other ranks, or says why they have none: all say the same.
func (c *Comm) joinPart(ctx context.Context) (why string, err error) {
	f := c.family
	var p *gpu.Part
	var offer *handover.Offer
	end := func() error {
		if offer != nil {
			_ = offer.Close() // nobody needs it any more
		}
		if p == nil {
			return nil
		}
		return p.Close()
	}
	mine := partOffer{No: c.noPart(), UUID: f.device.Info().UUID}
	if mine.No == "" {
		if p, offer, err = c.newPart(&mine); err != nil {
			mine.No = err.Error()
		}
	}
	all, err := gather(ctx, c, mine)
	if err != nil {
		return "", errors.Join(err, end())
	}
	why = firstNo(all)
	if why == "" {
		mine.No = c.importParts(ctx, p, all)
		if all, err = gather(ctx, c, mine); err != nil {
			return "", errors.Join(err, end())
		}
		why = firstNo(all)
	}
	if why != "" {
		return why, end()
	}
	_ = offer.Close()
	c.mu.Lock() // others may ask already
	c.part = &part{Part: p}
	c.mu.Unlock()
	c.watcher.Go(c.watchPart)
	return "", nil
}

// gather exchanges offers.
func gather(ctx context.Context, c *Comm, mine partOffer) ([]partOffer, error) {
	b, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	blobs, err := c.session.AllGather(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("comm: exchange of GPUs' memory: %w", err)
	}
	all := make([]partOffer, len(blobs))
	for r, b := range blobs {
		if err := json.Unmarshal(b, &all[r]); err != nil {
			return nil, fmt.Errorf("comm: rank %d offers memory of its GPU: %w", r, err)
		}
	}
	return all, nil
}

// firstNo is the first rank's reason, and those of ranks on one GPU.
func firstNo(all []partOffer) string {
	for r, o := range all {
		if o.No != "" {
			return fmt.Sprintf("rank %d: %s", r, o.No)
		}
		if i := slices.IndexFunc(all[:r], func(p partOffer) bool { return p.UUID == o.UUID }); i >= 0 && !partsAnyway {
			return fmt.Sprintf("ranks %d and %d are on one GPU", i, r)
		}
	}
	return ""
}

// noPart is why this rank can take no part; "": it can.
func (c *Comm) noPart() string {
	f := c.family
	switch {
	case f.cfg.Transport != "auto":
		return "Config.Transport is " + f.cfg.Transport
	case c.Size() > cuda.MaxSites:
		return fmt.Sprintf("%d ranks, at most %d can", c.Size(), cuda.MaxSites)
	case !f.device.Info().Exportable:
		return fmt.Sprintf("memory of %v cannot be given to other processes", f.device)
	}
	for r, w := range c.world {
		if r != c.rank && f.beside[w] && !partsAnyway {
			return fmt.Sprintf("rank %d runs in the same process", r)
		}
	}
	return f.refuse(c.world)
}

// newPart makes ours, and offers its memory.
func (c *Comm) newPart(mine *partOffer) (p *gpu.Part, offer *handover.Offer, err error) {
	d := c.family.device.Device
	if err := d.LinkTo(mine.UUID); err != nil {
		return nil, nil, err
	}
	crowd := 1
	if partsAnyway {
		crowd = c.Size()
	}
	if p, err = gpu.NewPart(c.rank, c.Size(), crowd, d); err != nil {
		return nil, nil, err
	}
	copy(mine.Proof[:], fmt.Sprintf("%016x", c.id^uint64(c.rank+1)<<32))
	fd, err := p.Export(mine.Proof)
	if err == nil {
		if offer, err = handover.New(os.NewFile(uintptr(fd), "memory of a GPU")); err == nil {
			mine.Ticket = offer.Ticket()
			return p, offer, nil
		}
	}
	return nil, nil, errors.Join(err, p.Close())
}

// importParts maps the memory of all other ranks, or says what went wrong.
func (c *Comm) importParts(ctx context.Context, p *gpu.Part, all []partOffer) string {
	for r, o := range all {
		if r == c.rank {
			continue
		}
		if err := c.family.device.LinkTo(o.UUID); err != nil {
			return err.Error()
		}
		file, err := handover.Take(ctx, o.Ticket)
		if err == nil {
			err = errors.Join(p.Import(r, int(file.Fd()), o.Proof), file.Close())
		}
		if err != nil {
			return fmt.Sprintf("memory of rank %d's GPU: %v", r, err)
		}
	}
	return ""
}

// onGPU is the call as package gpu has it. The communicator has checked it.
func (c *Call) onGPU(src, dst int64) gpu.Call {
	g := gpu.Call{Kind: collective.Kind(c.Kind), DType: c.DType, RedOp: c.redop(), Count: c.Count, Root: c.Root, Algorithm: c.Algorithm, Factor: c.Factor, Stream: c.Stream}
	if src > 0 {
		g.Src = c.Src.Ptr
	}
	if dst > 0 {
		g.Dst = c.Dst.Ptr
	}
	return g
}

// crosses reports whether the call is on GPU memory and the communicator's part takes it.
func (c *Call) crosses(of *Comm) bool {
	if of == nil || of.part == nil || c.memory().Device.IsHost() || !c.DType.Valid() || !c.RedOp.Valid() || of.family.cfg.Algorithm != "" {
		return false
	}
	if c.Kind.pointToPoint() {
		return c.Peer != of.rank
	}
	g := c.onGPU(0, 0)
	return of.part.Takes(&g)
}

// startPart queues a collective on its stream. It waits for nobody, but where the GPU is far behind.
func (c *Comm) startPart(r *run) error {
	call := &r.call
	if err := c.checkShape(call); err != nil {
		return err
	}
	src, dst, err := c.sizes(call)
	if err == nil {
		err = c.checkMemory(call, src, dst, c.inPlace(call))
	}
	if err != nil {
		return err
	}
	if own := c.family.device; own.Device.Device() != call.memory().Device {
		return argument("%v: memory on %v, but Config.Device is %v", call, call.memory().Device, own)
	}
	captured, err := c.family.device.Capturing(call.Stream)
	if err != nil {
		return fmt.Errorf("comm %s: %v: %w", c.name(), call, err)
	}
	y, p := c.part, c.preparedOnDevice(call.signature(false))
	y.order.Lock()
	defer y.order.Unlock()
	c.mu.Lock()
	if c.reason() != nil {
		c.refuseLocked(r, p)
		c.mu.Unlock()
		return r.outcome()
	}
	if captured { // it is done as often as it is replayed, and each rank may capture as it likes
		y.captured.Store(true)
	} else {
		y.number++
		y.calls[y.number%partCalls] = p.agreed()
		c.count(src, dst)
	}
	number := y.number
	c.mu.Unlock() // to queue it may take a while, and others may ask
	g := call.onGPU(src, dst)
	if err := y.Queue(&g, number); err != nil {
		c.fail(fmt.Errorf("%v on %v: %w", call, c.family.device, err)) // others wait for it
		return r.outcome()
	}
	return nil
}

// partState is what we say of our part to rank from, and of call number.
func (c *Comm) partState(from int, number uint64) *partState {
	c.mu.Lock()
	y := c.part
	if y == nil {
		c.mu.Unlock()
		return nil
	}
	s := &partState{Captured: y.captured.Load(), Proxied: c.proxy.collectives.Load(), Closes: c.life.Err() != nil}
	if s.Begun = y.number; number != 0 && number <= s.Begun && s.Begun-number < partCalls {
		call := y.calls[number%partCalls]
		s.Call = &call
	}
	c.mu.Unlock()
	s.Exchanges, _, _ = y.Begun() // an error is known to who looks after our own calls
	if to, by, err := y.Messages(); err == nil {
		s.Posts = [2]postState{sending: stateOf(to[from]), receiving: stateOf(by[from])}
	}
	return s
}

// drain returns when all that was queued is done or the communicator has failed.
func (p *part) drain(c *Comm) {
	if p == nil {
		return
	}
	for pause := 10 * time.Microsecond; c.reason() == nil; pause = min(2*pause, 5*time.Millisecond) {
		number, err := p.Behind()
		posting, err2 := p.Posting()
		if number == 0 && !posting || err != nil || err2 != nil {
			return
		}
		time.Sleep(pause)
	}
}

// close frees everything, after Abort.
func (p *part) close() error {
	if p == nil {
		return nil
	}
	return p.Close()
}
