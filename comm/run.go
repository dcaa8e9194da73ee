package comm

import (
	"context"
	"errors"
	"time"

	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/collective/gpu"
	"github.com/gccl-project/gccl/transport"
)

// run is a call under way.
type run struct {
	engine.Call
	comm     *Comm
	call     Call
	seq      uint64
	parts    []engine.Task
	tasks    []*engine.Task
	started  bool          // given to the engine
	matched  chan struct{} // of a message to ourselves: closed when it is copied
	ticket   gpu.Ticket    // of a call on device memory
	queued   bool          // it has a ticket
	prepared *prepared
	lane     int  // of a pair; -1: a collective
	regular  bool // the communicator's for such calls
	nextLook time.Duration
	timer    *time.Timer // of waiting for a call on device memory
	elapsed  time.Duration
}

// idle is a run for a call: one that was done lately, or a new one.
func (c *Comm) idle(call *Call) *run {
	var r *run
	for i := range c.spare {
		if r = c.spare[i].Swap(nil); r != nil {
			break
		}
	}
	if r == nil {
		r = &run{}
	}
	r.comm, r.call, r.started, r.queued, r.nextLook, r.elapsed = c, *call, false, false, firstLook, 0
	return r
}

// keep keeps a run that is done for a call that comes.
func (c *Comm) keep(r *run) {
	for i := range c.spare {
		if c.spare[i].CompareAndSwap(nil, r) {
			return
		}
	}
}

// fill makes one task for each lane, along the order of its channel.
func (r *run) fill(p *prepared, call *Call) {
	r.started, r.lane = true, -1
	if r.elapsed != 0 {
		r.nextLook, r.elapsed = firstLook, 0
	}
	inShared := p.src >= sharedFrom && r.comm.shared(call.Src.Ptr, p.src)
	outShared := p.dst >= sharedFrom && r.comm.shared(call.Dst.Ptr, p.dst)
	if r.prepared == p && p.alike {
		r.call.Src, r.call.Dst = call.Src, call.Dst
		for i := range r.parts {
			t := &r.parts[i]
			t.In, t.Out, t.InShared, t.OutShared = call.Src.Ptr, call.Dst.Ptr, inShared, outShared
		}
		return
	}
	r.call, r.prepared = *call, p
	if cap(r.parts) < p.lanes {
		r.parts, r.tasks = make([]engine.Task, p.lanes), make([]*engine.Task, p.lanes)
		r.Call.Note = r
	}
	r.parts, r.tasks = r.parts[:p.lanes], r.tasks[:p.lanes]
	factor := p.factor
	if p.scaled {
		factor = call.Factor.Value
	}
	for i := range r.parts {
		r.parts[i] = engine.Task{
			Plan: p.plans[i%len(p.plans)], Layout: p.layout, First: i, Stride: p.lanes,
			In: call.Src.Ptr, Out: call.Dst.Ptr, InShared: inShared, OutShared: outShared,
			Fold: p.fold, PreMul: p.preMul, Factor: factor,
		}
		r.tasks[i] = &r.parts[i]
	}
	r.Call.Post = nil
	if p.post != nil && p.dst > 0 {
		dst, ranks := call.Dst.Ptr, r.comm.Size()
		r.Call.Post = func() { p.post(dst, p.outs, int64(ranks)) }
	}
}

// wait returns when a call that was started is done. Holds is for engine.Call.Wait.
func (r *run) wait(ctx context.Context, holds bool) error {
	switch {
	case r.started:
		if r.Call.Wait(ctx, holds) != nil {
			return r.outcome()
		}
	case r.matched != nil:
		return r.waitSelf(ctx)
	case r.queued:
		return r.waitQueued(ctx)
	}
	return nil
}

// longBuffers is how many bytes of buffers are not kept from the collector by a run that waits for its next call.
const longBuffers = 64 << 10

// finish is wait for a run that nobody keeps: it serves another call.
func (r *run) finish(ctx context.Context, holds bool) error {
	c, seq, bytes := r.comm, r.seq, r.call.Src.Bytes+r.call.Dst.Bytes // a run that holds is the next call's once the token is given back
	if err := r.wait(ctx, holds); err != nil || r.matched != nil {
		return err
	}
	if bytes > longBuffers {
		c.forget(r, seq)
	}
	if !r.regular {
		c.keep(r)
	}
	return nil
}

// forget lets go of the buffers of a run that is done, unless it is another call's by now.
func (c *Comm) forget(r *run, seq uint64) {
	c.mu.Lock()
	if r.seq == seq {
		r.forget()
	}
	c.mu.Unlock()
}

// forget lets go of the buffers.
func (r *run) forget() {
	r.prepared, r.Call.Post = nil, nil
	r.call.Src.Ptr, r.call.Dst.Ptr = nil, nil
	for i := range r.parts {
		r.parts[i].In, r.parts[i].Out = nil, nil
	}
}

// outcome makes the error of a call that failed, or that was refused because the communicator had failed.
func (r *run) outcome() error {
	err := r.comm.verdict()
	e := &Error{Comm: r.comm.name(), Rank: r.comm.rank, Call: r.call, Seq: r.seq, Elapsed: r.elapsed, Err: &aborted{err}}
	e.Ranks = culprits(err)
	var peer *transport.PeerError
	if errors.As(err, &peer) {
		e.Peer = peer.Peer
	}
	return e
}
