package comm

import (
	"context"
	"errors"
	"slices"
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cpu"
)

// Do runs the call and returns when it is done: then Dst holds the result, and all memory is the caller's again. A bad
// argument is an error that wraps ErrArgument, before anything is sent. Any other error is an *Error that wraps ErrAborted, and
// the communicator can then only be shrunk and closed. When ctx ends during the call the communicator is aborted on all ranks,
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
	if c.proxy != nil {
		defer c.endWith(ctx)()
	}
	r, holds, err := c.start(call, waits)
	if err != nil {
		return err
	}
	return r.finish(ctx, holds)
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
	if then == gathers && len(calls) > 1 {
		if done, err := calls[0].Comm.messages(ctx, calls); done {
			return err
		}
	}
	var some [16]*run
	runs := some[:0] // by call; nil: there is none, or it is done
	var errs []error
	var later []int // calls in one process that come behind such of other communicators
	held := holdDevice(calls)
	queue := deviceGroup{order: orderOf(calls)}
	for i := range calls {
		runs = append(runs, nil)
		if !calls[i].memory().Device.IsHost() {
			if calls[i].comesBehind(calls[:i]) || slices.ContainsFunc(later, func(k int) bool { return calls[k].Comm == calls[i].Comm }) {
				later = append(later, i)
				continue
			}
			if calls[i].Comm.proxy != nil {
				defer calls[i].Comm.endWith(ctx)()
			}
			if queue.concerns(&calls[i]) && queue.take(calls[i], i) {
				continue
			}
		}
		r, _, err := calls[i].Comm.start(&calls[i], then)
		if err != nil {
			errs = append(errs, err)
		} else {
			runs[i] = r
		}
	}
	if held != nil {
		held.Release()
	}
	errs = append(errs, queue.rest()...)
	finish := func(i int) {
		if r := runs[i]; r != nil {
			runs[i] = nil
			if err := r.finish(ctx, false); err != nil {
				errs = append(errs, err)
			}
		}
	}
	for len(later) > 0 { // what they come behind is queued when all its ranks have called, and not before
		var next []int
		for _, i := range later {
			call := calls[i]
			waits := slices.ContainsFunc(next, func(k int) bool { return calls[k].Comm == call.Comm || call.comesBehind(calls[k:k+1]) })
			for k := range calls[:i] {
				waits = waits || runs[k] != nil && call.comesBehind(calls[k:k+1])
			}
			if waits {
				next = append(next, i)
				continue
			}
			call.place = i + 1
			err := queue.order.follow(&call)
			if err == nil {
				runs[i], _, err = call.Comm.start(&call, leaves)
			}
			if err != nil {
				runs[i], errs = nil, append(errs, err)
			}
		}
		first, moved := -1, len(next) < len(later)
		for _, i := range next {
			for k := range calls[:i] {
				if r := runs[k]; r == nil || !calls[i].comesBehind(calls[k:k+1]) {
					continue
				} else if !r.queued || r.ticket.Queued() {
					finish(k)
					moved = true
				} else if first < 0 {
					first = k
				}
			}
		}
		if !moved && first >= 0 { // else what another rank of ours has here may be what it waits for
			finish(first)
		}
		later = next
	}
	for i := range runs {
		finish(i)
	}
	return errors.Join(errs...)
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
	if own.crosses(c) {
		if own.Kind.pointToPoint() {
			return r, false, errors.Join(c.post([]Call{*own})...)
		}
		return r, false, c.startPart(r)
	}
	if c.proxy != nil && !own.memory().Device.IsHost() {
		return r, false, c.startProxied(own)
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
	sig := own.signature(c.inPlace(own))
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
