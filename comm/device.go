package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/collective/gpu"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// site is where the ranks of a communicator that share a GPU, all of this process, meet to have their calls queued in one launch.
type site struct {
	device *opened
	*gpu.Communicator
	ranks int // that hold it
}

// opened is a GPU that is in use.
type opened struct {
	*cuda.Device
	sites int // that hold it
}

// sites are those of this process, by communicator, with their GPUs: ranks in several goroutines find each other here. It is also the lock
// under which GPUs are opened, for that waits for all that runs on them.
var sites struct {
	sync.Mutex
	open    map[uint64]*site
	devices map[kernels.Device]*opened
}

// siteOn returns the communicator's site, which it makes or joins at first use.
func (c *Comm) siteOn(d kernels.Device) (*site, error) {
	if s := c.site.Load(); s != nil {
		if s.device.Device.Device() != d {
			return nil, fmt.Errorf("the communicator is on %v; memory of several GPUs, %w", s.device, ErrUnsupported)
		}
		return s, nil
	}
	var elsewhere []int
	for r, w := range c.world {
		if c.Size() > 1 && !c.family.inProcess[w] {
			elsewhere = append(elsewhere, r)
		}
	}
	if elsewhere != nil {
		return nil, fmt.Errorf("ranks %v run in other processes than this one (rank %d); GPU memory of several processes: %w", elsewhere, c.rank, ErrUnsupported)
	}
	sites.Lock()
	defer sites.Unlock()
	if s := c.site.Load(); s != nil {
		return s, nil
	}
	s := sites.open[c.id]
	if s == nil {
		var err error
		if s, err = openSite(d, c.Size()); err != nil {
			return nil, err
		}
		if sites.open == nil {
			sites.open = map[uint64]*site{}
		}
		sites.open[c.id] = s
	} else if s.device.Device.Device() != d {
		return nil, fmt.Errorf("other ranks are on %v; memory of several GPUs: %w", s.device, ErrUnsupported)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		if s.ranks == 0 {
			return nil, errors.Join(ErrClosed, c.endSite(s))
		}
		return nil, ErrClosed
	}
	s.ranks++
	c.site.Store(s)
	if c.port != nil {
		c.watcher.Go(func() {
			select {
			case <-c.broken:
				s.Abort(c.reason())
			case <-c.life.Done():
			}
		})
	}
	return s, nil
}

// openSite makes a site. The lock is held.
func openSite(d kernels.Device, ranks int) (*site, error) {
	o := sites.devices[d]
	if o == nil {
		device, err := cuda.Open(int(d.Ordinal))
		if err != nil {
			return nil, err
		}
		o = &opened{Device: device}
		if sites.devices == nil {
			sites.devices = map[kernels.Device]*opened{}
		}
		sites.devices[d] = o
	}
	g, err := gpu.New(o.Device, ranks)
	if err != nil {
		return nil, errors.Join(err, o.drop())
	}
	o.sites++
	return &site{device: o, Communicator: g}, nil
}

// drop closes a GPU that no site holds. The lock is held.
func (o *opened) drop() error {
	if o.sites > 0 {
		return nil
	}
	delete(sites.devices, o.Device.Device())
	return o.Device.Close()
}

// leaveSite lets go of the communicator's site, if it has one. Work that is queued is done first.
func (c *Comm) leaveSite() error {
	sites.Lock()
	defer sites.Unlock()
	s := c.site.Swap(nil)
	if s == nil {
		return nil
	}
	s.Abort(fmt.Errorf("rank %d closed the communicator: %w", c.rank, ErrClosed))
	if s.ranks--; s.ranks > 0 {
		return nil
	}
	return c.endSite(s)
}

// endSite closes a site that no rank holds. The lock is held.
func (c *Comm) endSite(s *site) error {
	delete(sites.open, c.id)
	err := errors.Join(s.device.Synchronize(), s.Communicator.Close())
	s.device.sites--
	return errors.Join(err, s.device.drop())
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
	d := call.Src.Device
	if d.IsHost() {
		d = call.Dst.Device
	}
	s, err := c.siteOn(d)
	if err != nil {
		return fmt.Errorf("comm %s: %v on %v: %w", c.name(), call, d, err)
	}
	p := &prepared{signature: signature{kind: call.Kind, dtype: call.DType, redop: call.RedOp, count: call.Count, root: call.Root}, algorithm: call.Algorithm}
	g := gpu.Call{Kind: collective.Kind(call.Kind), DType: call.DType, RedOp: call.RedOp, Count: call.Count, Root: call.Root, Algorithm: call.Algorithm, Stream: call.Stream}
	if src > 0 {
		g.Src = call.Src.Ptr
	}
	if dst > 0 {
		g.Dst = call.Dst.Ptr
	}
	c.mu.Lock()
	if c.reason() != nil {
		c.refuseLocked(r, p)
		c.mu.Unlock()
		return r.outcome()
	}
	if r.ticket, err = s.Start(c.rank, g); err == nil {
		c.seq++
		r.seq, r.queued = c.seq, true
		c.recent[r.seq%remembered] = entry{r.seq, p, nil}
		c.calls.Add(1)
		c.bytes.Add(uint64(max(src, dst)))
	}
	c.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kernels.ErrInvalid), errors.Is(err, ErrUnsupported):
		return argument("%v on %v: %w", call, d, err)
	}
	c.fail(err) // another rank has given up
	return r.outcome()
}

// waitQueued waits until the call is queued on all ranks' streams.
func (r *run) waitQueued(ctx context.Context) error {
	c := r.comm
	select {
	case <-r.ticket.Done():
	default:
		began := time.Now()
		limit, cancel := context.WithTimeoutCause(ctx, c.family.cfg.CallTimeout, ErrTimeout)
		_ = r.ticket.Wait(limit)
		if limit.Err() != nil {
			r.elapsed = time.Since(began)
		}
		cancel()
	}
	err := r.ticket.Err()
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
