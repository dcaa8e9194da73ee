package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gccl-project/gccl/collective/gpu"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// gpus are those that this process has open. The lock is held while one is opened, for that waits for all that runs on it.
var gpus struct {
	sync.Mutex
	open map[kernels.Device]*opened
}

// ranksHere is where the ranks of this process find each other.
var ranksHere gpu.Process

// opened is a GPU that families hold.
type opened struct {
	*cuda.Device
	families int
}

// openGPU opens a GPU, or takes part in it. The caller gives it back by drop.
func openGPU(d kernels.Device) (*opened, error) {
	if d.Kind != kernels.CUDA {
		return nil, fmt.Errorf("comm: Config.Device is %v: %w", d, ErrUnsupported)
	}
	gpus.Lock()
	defer gpus.Unlock()
	o := gpus.open[d]
	if o == nil {
		device, err := cuda.Open(int(d.Ordinal))
		if err != nil {
			return nil, fmt.Errorf("comm: Config.Device: %w", err)
		}
		for _, other := range gpus.open {
			if err := cuda.Connect(device, other.Device); err != nil && !errors.Is(err, ErrUnsupported) { // those that cannot reach each other serve apart
				return nil, fmt.Errorf("comm: Config.Device: %w", errors.Join(err, device.Synchronize(), device.Close())) // what proves a path may be under way
			}
		}
		o = &opened{Device: device}
		if gpus.open == nil {
			gpus.open = map[kernels.Device]*opened{}
		}
		gpus.open[d] = o
	}
	o.families++
	return o, nil
}

// drop gives the GPU back. Work that is queued is done first.
func (o *opened) drop() error {
	if o == nil {
		return nil
	}
	gpus.Lock()
	defer gpus.Unlock()
	if o.families--; o.families > 0 {
		return nil
	}
	delete(gpus.open, o.Device.Device())
	if err := o.Synchronize(); err != nil { // kernels may be at work in what Close frees
		return fmt.Errorf("comm: %v stays open, for what is queued there cannot be waited for (while a stream is captured nothing can): %w", o.Device, err)
	}
	return o.Device.Close()
}

// joinGPU makes this rank a member of what the communicator's ranks share on their GPUs, if all are in this process and have one, or
// gives it a proxy if they are not. It waits for the others.
func (c *Comm) joinGPU(ctx context.Context) error {
	f := c.family
	if f.device == nil {
		return nil
	}
	why := ""
	for r, w := range c.world {
		switch {
		case c.Size() == 1:
		case f.devices[w].IsHost():
			c.noGPU = fmt.Sprintf("rank %d has no Config.Device", r)
			return nil
		case !f.inProcess[w] || partsAnyway && r != c.rank:
			why = fmt.Sprintf("rank %d runs in another process (%s)", r, f.routes[w].place)
		}
	}
	if why == "" {
		why = f.refuse(c.world)
	}
	if why != "" && c.lineup.hosts == nil && c.Size() > 1 {
		no, err := c.joinPart(ctx)
		if err != nil {
			return err
		}
		if no == "" {
			c.log.Info("collectives on GPU memory go over links between the GPUs of several processes; messages by way of host memory")
			return c.joinProxy(ctx)
		}
		why = no
	}
	if why != "" {
		c.log.Info("messages of GPU memory go by way of host memory; GPUDirect is off", "reason", why)
		return c.joinProxy(ctx)
	}
	// What the ranks share is on the GPUs of all, and freed by the last one to leave: until then they stay open.
	for r, w := range c.world {
		if r == c.rank {
			continue // the family has it open
		}
		o, err := openGPU(f.devices[w])
		if err != nil {
			return errors.Join(err, c.leaveGPU())
		}
		c.theirs = append(c.theirs, o)
	}
	m, err := ranksHere.Join(ctx, c.id, c.rank, c.Size(), f.device.Device)
	if err != nil {
		return errors.Join(fmt.Errorf("comm %s: rank %d on %v: %w", c.name(), c.rank, f.device, err), c.leaveGPU())
	}
	c.gpu = m
	if c.port != nil {
		c.watcher.Go(func() {
			c.watchDevice()
			if c.reason() != nil {
				m.Communicator().Abort(c.reason())
			}
		})
	}
	return nil
}

func (c *Comm) leaveGPU() (err error) {
	if c.part != nil {
		c.part.Abort(ErrClosed) // nothing that was queued in time is left, and what follows may wait for all kernels
	}
	err = errors.Join(c.proxy.close(), c.part.close()) // in this order, for the proxy first tells the others
	if c.gpu != nil {
		err = errors.Join(err, c.gpu.Close())
	}
	for _, o := range c.theirs {
		err = errors.Join(err, o.drop())
	}
	c.theirs = nil
	return err
}

// memory is the part of a call's memory that says where it is.
func (c *Call) memory() *kernels.Mem {
	if c.Kind == KindRecv || c.Kind != KindSend && c.Src.Device.IsHost() {
		return &c.Dst
	}
	return &c.Src
}

// checkDevice checks that calls on the call's device can be made.
func (c *Comm) checkDevice(call *Call) error {
	d := call.memory().Device
	switch own := c.family.device; {
	case own == nil:
		return fmt.Errorf("comm %s: %v on %v: the communicator was made without Config.Device: %w", c.name(), call, d, ErrUnsupported)
	case own.Device.Device() != d:
		return argument("%v: memory on %v, but Config.Device is %v", call, d, own)
	case c.gpu == nil:
		return fmt.Errorf("comm %s: %v on %v: %s: %w", c.name(), call, d, c.noGPU, ErrUnsupported)
	}
	return nil
}

// postOnDevice has a Send or Recv queued once the peer has its end. The communicator's lock is held.
func (c *Comm) postOnDevice(r *run) (err error) {
	m := gpu.Message{Send: r.lane == sending, Rank: c.rank, Peer: r.call.Peer, Ptr: r.call.memory().Ptr, DType: r.call.DType, Count: r.call.Count, Stream: r.call.Stream}
	if r.ticket, err = c.gpu.Communicator().Post(m); err != nil {
		return err
	}
	r.queued = true
	return nil
}

// startOnDevice has this rank's part of a collective on device memory queued, once all ranks have theirs.
func (c *Comm) startOnDevice(r *run) error {
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
	if err := c.checkDevice(call); err != nil {
		return err
	}
	sig := call.signature(false)
	sig.algorithm = c.named(sig.kind, sig.algorithm)
	p := c.preparedOnDevice(sig)
	g := call.onGPU(src, dst)
	g.Algorithm = sig.algorithm
	c.mu.Lock()
	if c.reason() != nil {
		c.refuseLocked(r, p)
		c.mu.Unlock()
		return r.outcome()
	}
	if r.ticket, err = c.gpu.Communicator().Start(c.rank, g); err == nil {
		c.seq++
		r.seq, r.queued = c.seq, true
		c.recent[r.seq%remembered] = entry{r.seq, p, nil}
		c.count(src, dst)
	}
	c.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case sig.algorithm != call.Algorithm && errors.Is(err, ErrUnsupported):
		return argument("%v on %v, with Config.Algorithm %q: %w", call, c.family.device, sig.algorithm, err)
	case errors.Is(err, kernels.ErrInvalid), errors.Is(err, ErrUnsupported):
		return argument("%v on %v: %w", call, c.family.device, err)
	}
	c.fail(err) // another rank has given up
	return r.outcome()
}

// preparedOnDevice is what other ranks are told of a call on device memory, of which no more is prepared.
func (c *Comm) preparedOnDevice(sig signature) *prepared {
	if p := c.hotOnDevice.Load(); p != nil && p.signature == sig {
		return p
	}
	pc := &c.plans
	pc.mu.Lock()
	defer pc.mu.Unlock()
	p := pc.onDevice[sig]
	if p == nil {
		if len(pc.onDevice) >= maxPrepared || pc.onDevice == nil {
			pc.onDevice = map[signature]*prepared{}
		}
		p = &prepared{signature: sig, algorithm: sig.algorithm}
		pc.onDevice[sig] = p
	}
	c.hotOnDevice.Store(p)
	return p
}

// holdDevice has a group's calls on GPUs wait for each other until the Release of what it returns, where the first rank makes several;
// nil: it need not. A group is of one communicator's ranks, mostly: of others the calls are queued one by one.
func holdDevice(calls []Call) *gpu.Communicator {
	for i := range calls {
		if i > 0 && calls[i].Comm == calls[0].Comm && calls[i].Comm.gpu != nil && !calls[i].memory().Device.IsHost() {
			held := calls[i].Comm.gpu.Communicator()
			held.Hold()
			return held
		}
	}
	return nil
}

// waitQueued waits until the call is queued on all ranks' streams, and warns of those that it waits for.
func (r *run) waitQueued(ctx context.Context) error {
	c := r.comm
	if !r.ticket.Queued() {
		r.awaitRanks(ctx)
	}
	err := r.ticket.Outcome()
	r.queued = false // the ticket is spent, should somebody wait again
	if err == nil {
		return nil
	}
	c.fail(c.deviceCause(ctx, r, err))
	return r.outcome()
}

// deviceCause is why a call on device memory was not queued.
func (c *Comm) deviceCause(ctx context.Context, r *run, err error) error {
	var missing *gpu.MissingError
	var differs *gpu.MismatchError
	switch {
	case errors.As(err, &missing) && ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &missing) && errors.Is(err, context.DeadlineExceeded):
		return &cause{class: "timeout", ranks: slices.Clone(missing.Ranks), text: fmt.Sprintf("%v (sequence %d) of rank %d waited %v: %v", &r.call, r.seq, c.rank, r.elapsed.Round(time.Millisecond), err), from: -1}
	case errors.As(err, &differs):
		return &cause{class: "mismatch", ranks: []int{differs.Rank}, text: fmt.Sprintf("%v (sequence %d)", err, r.seq), from: -1}
	}
	return err
}
