package comm

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/collective/gpu"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cpu"
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

// Do runs the call and returns when it is done: then Dst holds the result, and all memory is the caller's again. A bad
// argument is an error that wraps ErrArgument, before anything is sent. Any other error is an *Error that wraps ErrAborted, and
// the communicator can then only be closed. When ctx ends during the call the communicator is aborted on all ranks,
// because they would no longer agree about what comes next; a ctx that has ended before is an error that changes nothing.
func (c *Comm) Do(ctx context.Context, call Call) error { return c.do(ctx, &call) }

// do is Do. It does not keep call, which so stays on the caller's stack.
func (c *Comm) do(ctx context.Context, call *Call) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	for i := range c.regulars {
		g := &c.regulars[i]
		p := g.prepared.Load()
		if p == nil || p.kind != call.Kind || p.count != call.Count || !c.repeat(g, p, call) {
			continue
		}
		r, seq := &g.run, g.run.seq
		if r.Call.Wait(ctx, true) != nil {
			return r.outcome()
		}
		if call.Src.Bytes+call.Dst.Bytes > longBuffers {
			c.forget(r, seq)
		}
		return nil
	}
	r, holds, err := c.start(call, waits)
	if err != nil {
		return err
	}
	return r.finish(ctx, holds)
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

// keep keeps a run that is done for a call that comes.
func (c *Comm) keep(r *run) {
	for i := range c.spare {
		if c.spare[i].CompareAndSwap(nil, r) {
			return
		}
	}
}

// forget lets go of the buffers.
func (r *run) forget() {
	r.prepared, r.Call.Post = nil, nil
	r.call.Src.Ptr, r.call.Dst.Ptr = nil, nil
	for i := range r.parts {
		r.parts[i].In, r.parts[i].Out = nil, nil
	}
}

// Pending is a call that was started. One goroutine may wait for it.
type Pending struct {
	run *run
	err error // of the start
}

// Start begins the call and returns; its memory is borrowed until Wait returns. Calls may be waited for in any order, on
// any number of communicators: whoever waits drives them all. What is wrong with the call is said by Wait.
func (c *Comm) Start(call Call) *Pending {
	r, _, err := c.start(&call, leaves)
	return &Pending{run: r, err: err}
}

// Wait waits until the call is done, with the errors of Do. Waiting again gives the same answer.
func (p *Pending) Wait(ctx context.Context) error {
	if p.err == nil {
		p.err = p.run.wait(ctx, false)
	}
	return p.err
}

// Group runs calls of any communicators together: all are begun before any is waited for, so that sends and receives
// among them cannot wait for each other. It returns when all are done, with all their errors.
func Group(ctx context.Context, calls ...Call) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	then := gathers
	for i := range calls {
		if calls[i].Comm == nil {
			return argument("call %d of the group (%v) names no communicator", i, &calls[i])
		}
		if !calls[i].memory().Device.IsHost() {
			then = leaves // a start on a device may wait for other ranks
		}
	}
	var some [16]*run
	runs := some[:0]
	var errs []error
	held := holdDevice(calls)
	for i := range calls {
		r, _, err := calls[i].Comm.start(&calls[i], then)
		if err != nil {
			errs = append(errs, err)
		} else {
			runs = append(runs, r)
		}
	}
	if held != nil {
		held.Release()
	}
	for _, r := range runs {
		if err := r.finish(ctx, false); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
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

// intent is what the caller does when it has started a call.
type intent uint8

const (
	leaves  intent = iota // something else: the driver sees to it that the call moves
	gathers               // it starts others, and then waits for all
	waits                 // it waits, with the driver's token if that is free
)

// start checks the call and gives it to the engine; what one rank or no element makes trivial is done at once. Of a caller that
// waits, holds is for engine.Call.Wait. It does not keep call.
func (c *Comm) start(call *Call, then intent) (r *run, holds bool, err error) {
	for i := range c.regulars {
		if p := c.regulars[i].prepared.Load(); p != nil && p.kind == call.Kind && p.count == call.Count && c.again(p, call) {
			return c.launch(p, call, then)
		}
	}
	r = c.idle(call)
	own := &r.call
	if own.Comm != nil && own.Comm != c {
		return r, false, argument("%v names communicator %s, but %s was asked", own, own.Comm.name(), c.name())
	}
	if own.Kind.pointToPoint() {
		return c.startPair(r, then)
	}
	if !own.Src.Device.IsHost() || !own.Dst.Device.IsHost() {
		return r, false, c.startOnDevice(r)
	}
	if err := c.checkShape(own); err != nil {
		return r, false, err
	}
	if own.Factor.At != nil {
		return r, false, argument("%v: its factor is in a GPU's memory, the numbers are not", own)
	}
	sig := signature{own.Kind, own.DType, own.RedOp, c.inPlace(own), own.Count, own.Root, own.Algorithm, own.Factor.Set}
	p, err := c.prepare(sig, own)
	if err != nil {
		return r, false, err
	}
	if err := c.checkMemory(own, p.src, p.dst, sig.inPlace); err != nil {
		return r, false, err
	}
	if c.port == nil || p.count == 0 && p.kind != KindBarrier {
		return r, false, r.trivial(p)
	}
	r.forget()
	c.keep(r)
	return c.launch(p, call, then)
}

// regulars is how many collectives a communicator knows by heart: programs make some few by turns.
const regulars = 4

// regular is a collective that was made lately, and the run of such calls by callers who drive them at once. The run belongs to whoever holds the
// communicator's lock and the driver's token: its call is done when it gives the token back.
type regular struct {
	prepared atomic.Pointer[prepared]
	run      run
}

// regular is where calls like p are known, in the place of what was learnt longest ago. The communicator's lock is held.
func (c *Comm) regular(p *prepared) *regular {
	for i := range c.regulars {
		if g := &c.regulars[i]; g.prepared.Load() == p {
			return g
		}
	}
	g := &c.regulars[c.turn]
	c.turn = (c.turn + 1) % regulars
	g.prepared.Store(p)
	return g
}

// again reports whether a call is as one before was, and right: so are most, and they need no more checks.
func (c *Comm) again(p *prepared, call *Call) bool {
	if p.kind != call.Kind || p.count != call.Count || p.dtype != call.DType || p.redop != call.RedOp || p.root != call.Root ||
		p.signature.algorithm != call.Algorithm || p.scaled != call.Factor.Set || call.Factor.At != nil || call.Comm != nil && call.Comm != c ||
		call.Src.Bytes < p.src || call.Dst.Bytes < p.dst || !call.Src.Device.IsHost() || !call.Dst.Device.IsHost() {
		return false
	}
	src, dst := uintptr(call.Src.Ptr), uintptr(call.Dst.Ptr)
	if src == 0 && p.src != 0 || dst == 0 && p.dst != 0 {
		return false
	}
	if p.inPlace {
		return src-dst == p.apart && src != 0 && dst != 0
	}
	return src-dst >= uintptr(p.dst) && dst-src >= uintptr(p.src) // each begins behind the other, or so far before it that this wraps
}

// repeat begins a call that is as a regular one and right, if nothing keeps the caller from driving it at once, and reports whether it did:
// then Wait of the regular's run, which holds, comes next. It is the part of launch that the next of many equal calls needs, and what other
// ranks need not wait for comes when they have got what they wait for.
func (c *Comm) repeat(g *regular, p *prepared, call *Call) bool {
	r := &g.run
	c.mu.Lock()
	same := r.prepared == p && r.same(call)
	if g.prepared.Load() != p || !same && !c.again(p, call) || !c.port.Hold() {
		c.mu.Unlock()
		return false
	}
	if c.failed.Load() != nil { // asked under the token: else the run may be a call's that just failed, and says so of it
		c.port.Drop()
		c.mu.Unlock()
		return false
	}
	if !same || r.elapsed != 0 {
		r.fill(p, call)
	}
	c.number(r, p)
	c.port.StartHeld(&r.Call, 0, r.tasks...)
	c.remember(r, p)
	c.mu.Unlock()
	return true
}

// same reports whether a call has the very arguments of the run's last one, and nothing needs to be found out again.
func (r *run) same(call *Call) bool {
	is := &r.call
	return call.Src.Ptr == is.Src.Ptr && call.Dst.Ptr == is.Dst.Ptr && call.Src.Bytes == is.Src.Bytes && call.Dst.Bytes == is.Dst.Bytes &&
		call.Count == is.Count && call.Kind == is.Kind && call.DType == is.DType && call.RedOp == is.RedOp && call.Root == is.Root &&
		call.Algorithm == is.Algorithm && call.Comm == is.Comm && call.Src.Device.IsHost() && call.Dst.Device.IsHost() &&
		!call.Factor.Set && call.Factor.At == nil && r.prepared.small
}

// launch gives a call that is right to the engine.
func (c *Comm) launch(p *prepared, call *Call, then intent) (r *run, holds bool, err error) {
	c.mu.Lock()
	holds = then == waits && c.port.Hold()
	if c.reason() != nil { // asked under the token: see repeat
		if holds {
			c.port.Drop()
		}
		r = c.idle(call)
		c.refuseLocked(r, p)
		c.mu.Unlock()
		return r, false, r.outcome()
	}
	if g := c.regular(p); holds {
		r = &g.run
	} else {
		r = c.idle(call)
	}
	r.fill(p, call)
	c.number(r, p)
	c.remember(r, p)
	switch {
	case holds:
		c.port.StartHeld(&r.Call, 0, r.tasks...)
	case then == leaves:
		c.port.Start(&r.Call, 0, r.tasks...)
	default:
		c.port.Begin(&r.Call, 0, r.tasks...)
	}
	c.mu.Unlock()
	return r, holds, nil
}

// number gives a run the next number. The communicator's lock is held.
func (c *Comm) number(r *run, p *prepared) {
	c.seq++
	r.seq = c.seq
	tag := p.digest ^ uint32(r.seq)*0x9e3779b1
	for i := range r.parts {
		r.parts[i].Tag = tag
	}
}

// remember takes note of a run that has a number, for ranks that ask. The communicator's lock is held, as it was all the time since number.
func (c *Comm) remember(r *run, p *prepared) {
	c.count(p.src, p.dst)
	c.recent[r.seq%remembered] = entry{r.seq, p, r}
}

// count counts a call. The communicator's lock is held.
func (c *Comm) count(src, dst int64) {
	c.calls++
	c.bytes += uint64(max(src, dst))
}

// refuseLocked takes note of a collective that came when the communicator had failed: other ranks may ask what it was.
func (c *Comm) refuseLocked(r *run, p *prepared) {
	r.seq = c.seq + 1 + uint64(len(c.refused))
	if len(c.refused) < remembered {
		c.refused = append(c.refused, entry{seq: r.seq, call: p})
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

// trivial does what needs no other rank: nothing at all, or a copy. It counts in the order of calls.
func (r *run) trivial(p *prepared) error {
	c := r.comm
	c.mu.Lock()
	if c.reason() != nil {
		c.refuseLocked(r, p)
		c.mu.Unlock()
		return r.outcome()
	}
	c.count(p.src, p.dst)
	c.seq++
	r.seq = c.seq
	c.recent[r.seq%remembered] = entry{r.seq, p, nil}
	c.mu.Unlock()
	switch {
	case c.port != nil || p.dst == 0:
	case p.scaled:
		p.preMul(r.call.Dst.Ptr, []unsafe.Pointer{r.call.Src.Ptr}, p.outs, 0, r.call.Factor.Value)
	case r.call.Dst.Ptr != r.call.Src.Ptr:
		cpu.Copy(r.call.Dst.Ptr, r.call.Src.Ptr, int(p.dst))
	}
	return nil
}

// sharedFrom is the length in bytes of a message from which on it is worth a look whether peers can read it where it lies.
const sharedFrom = 4096

// shared reports whether memory lies where peers can read it.
func (c *Comm) shared(p unsafe.Pointer, n int64) bool {
	a := c.family.allocator()
	return a != nil && a.Owns(p, n)
}

// Barrier returns when all ranks have called it.
func (c *Comm) Barrier(ctx context.Context) error { return c.Do(ctx, Call{Kind: KindBarrier}) }

// checkShape checks what does not depend on memory.
func (c *Comm) checkShape(call *Call) error {
	switch {
	case call.Kind > KindRecv:
		return argument("unknown %v", call.Kind)
	case !call.DType.Valid():
		return argument("unknown data type %d", call.DType)
	case call.Count < 0:
		return argument("%v: count %d is negative", call.Kind, call.Count)
	case call.Kind == KindBarrier && call.Count != 0:
		return argument("barrier with count %d, want 0", call.Count)
	case call.Kind.pointToPoint() && (call.Peer < 0 || call.Peer >= c.Size()):
		return argument("%v: peer %d, want 0…%d", call.Kind, call.Peer, c.Size()-1)
	case call.Root < 0 || call.Root >= c.Size():
		return argument("%v: root %d, want 0…%d", call.Kind, call.Root, c.Size()-1)
	case call.Root != 0 && call.Kind != KindBroadcast && call.Kind != KindReduce:
		return argument("%v has no root, but Root is %d", call.Kind, call.Root)
	case !call.RedOp.Valid():
		return argument("unknown reduction %d", call.RedOp)
	case call.Factor.Set && (call.Kind.pointToPoint() || !collective.Kind(call.Kind).Reduces() || call.Kind == KindBarrier || call.RedOp != kernels.Sum || !call.DType.IsFloat()):
		return argument("%v: a factor goes with a sum of floating-point numbers alone", call)
	}
	return nil
}

// inPlace reports whether the buffers stand as their kind's in-place rule has it.
func (c *Comm) inPlace(call *Call) bool {
	src, dst := uintptr(call.Src.Ptr), uintptr(call.Dst.Ptr)
	if src == 0 || dst == 0 || call.Count <= 0 {
		return false
	}
	return src-dst == c.apart(call)
}

// apart is how far Src is behind Dst where both stand as the in-place rule has it, modulo 2⁶⁴.
func (c *Comm) apart(call *Call) uintptr {
	own := uintptr(c.rank) * uintptr(call.Count) * uintptr(call.DType.Size())
	switch call.Kind {
	case KindAllGather:
		return own
	case KindReduceScatter:
		return -own
	}
	return 0
}

// checkMemory checks that the buffers are long enough and overlap only as the in-place rule has it.
func (c *Comm) checkMemory(call *Call, src, dst int64, inPlace bool) error {
	if call.Src.Device != call.Dst.Device && src > 0 && dst > 0 {
		return argument("%v: Src is on %v and Dst on %v, want one device", call, call.Src.Device, call.Dst.Device)
	}
	if call.Src.Bytes < src || src > 0 && call.Src.Ptr == nil {
		return argument("%v: Src has %d bytes at %p, want %d", call, call.Src.Bytes, call.Src.Ptr, src)
	}
	if call.Dst.Bytes < dst || dst > 0 && call.Dst.Ptr == nil {
		return argument("%v: Dst has %d bytes at %p, want %d", call, call.Dst.Bytes, call.Dst.Ptr, dst)
	}
	s, d := uintptr(call.Src.Ptr), uintptr(call.Dst.Ptr)
	if !inPlace && src > 0 && dst > 0 && s < d+uintptr(dst) && d < s+uintptr(src) {
		return argument("%v: Src [%#x, +%d) and Dst [%#x, +%d) overlap, and not in the way that in-place calls do", call, s, src, d, dst)
	}
	return nil
}
