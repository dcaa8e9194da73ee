package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/transport"
)

// Driver makes the ports of a process move: see the package comment. Make it with NewDriver.
type Driver struct {
	crowded atomic.Bool
	bubble  chan struct{} // a simulated process: sleep on this, do not spin

	token  atomic.Bool
	events atomic.Bool // there is something in the inbox, a request, or a failed port

	mu       sync.Mutex
	inbox    []submission
	requests []request
	ports    []*Port // not failed by Fail
	parked   []*Call
	nparked  atomic.Int32
	pumping  bool

	endpoints atomic.Pointer[[]transport.Endpoint]

	// Of the holder of the token.
	lanes        []*Lane // with tasks
	yieldsHelped int     // waits in a row that a yield ended
	sleeps       int     // waits that sleep at once, under the token
	sole         *Lane   // of the task that StartHeld began while there was no other: it is not in lanes yet, nor the task in its queue
	sleeper
}

// submission is a task for a lane, not yet in its queue.
type submission struct {
	lane *Lane
	task *Task
}

// request is something to be done while holding the token.
type request struct {
	do   func()
	done chan struct{}
}

// NewDriver returns a driver for real ranks: it spins, yields, and sleeps in the kernel.
func NewDriver() *Driver { return &Driver{sleeper: sleeper{event: none, unused: none}} }

// NewSimulatedDriver returns a driver that neither spins nor sleeps in the kernel, but on a channel and a timer: for
// ranks inside a testing/synctest bubble.
func NewSimulatedDriver() *Driver {
	d := NewDriver()
	d.bubble = make(chan struct{}, 1)
	return d
}

// SetCrowded says that there are more ranks on the host than processors: then waiting yields at once.
func (d *Driver) SetCrowded(yes bool) { d.crowded.Store(yes) }

// Attach lets the driver move an endpoint and be woken by it, until Detach.
func (d *Driver) Attach(e transport.Endpoint) {
	d.Exclusive(func() {
		d.edit(func(es []transport.Endpoint) []transport.Endpoint { return append(es, e) })
	})
}

// Detach ends Attach. The caller must have failed the ports that use the endpoint. When it returns the driver does
// not touch it any more.
func (d *Driver) Detach(e transport.Endpoint) {
	var letGo func()
	d.Exclusive(func() {
		d.edit(func(es []transport.Endpoint) []transport.Endpoint {
			return slices.DeleteFunc(es, func(x transport.Endpoint) bool { return x == e })
		})
		letGo = d.unwatch()
	})
	letGo()
}

func (d *Driver) edit(f func([]transport.Endpoint) []transport.Endpoint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	es := f(slices.Clone(d.attached()))
	d.endpoints.Store(&es)
	d.watch(es)
}

func (d *Driver) attached() []transport.Endpoint {
	if es := d.endpoints.Load(); es != nil {
		return *es
	}
	return nil
}

// Exclusive runs f while nothing else touches the driver's ports and endpoints. f must not block or wait for
// calls. Anyone may call it, but not from within f or from a method that the driver calls.
func (d *Driver) Exclusive(f func()) {
	r := request{f, make(chan struct{})}
	d.mu.Lock()
	d.requests = append(d.requests, r)
	d.mu.Unlock()
	d.alert()
	<-r.done
}

// alert makes the holder of the token attend, or does so itself.
func (d *Driver) alert() {
	d.events.Store(true)
	d.Wake()
	if d.take() {
		d.attend()
		d.release()
	}
}

// Start gives tasks[i] to lane first+i and returns. The call is done when all of them are. Calls of a port must be
// started in the same order on all ranks: the caller serialises Start and Run per port.
func (p *Port) Start(c *Call, first int, tasks ...*Task) {
	p.Begin(c, first, tasks...)
	if !c.Done() {
		p.driver.pump()
	}
}

// Begin is Start for a caller that will soon wait for the call, or for nothing before it: nobody else sees to it that it moves.
func (p *Port) Begin(c *Call, first int, tasks ...*Task) {
	d := p.driver
	if d.take() {
		d.attend()
		d.accept(p, c, first, tasks)
		d.pass()
		d.release()
		return
	}
	c.reset(p, len(tasks))
	d.mu.Lock()
	for i, t := range tasks {
		t.call = c
		d.inbox = append(d.inbox, submission{p.lanes[first+i], t})
	}
	d.mu.Unlock()
	d.events.Store(true)
	d.Wake()
}

// accept puts tasks into the queues of their lanes.
func (d *Driver) accept(p *Port, c *Call, first int, tasks []*Task) {
	c.reset(p, len(tasks))
	for i, t := range tasks {
		t.call = c
		d.enqueue(p.lanes[first+i], t)
	}
}

func (d *Driver) enqueue(l *Lane, t *Task) {
	if err := l.port.Err(); err != nil {
		l.port.end() // with the call's tasks that are in other lanes already
		t.call.finish(err)
		return
	}
	l.queue = append(l.queue, t)
	if len(l.queue) == 1 {
		l.begin(t)
	}
	if !l.active {
		d.list(l)
	}
}

// TryStart is Start for a caller that will wait at once: if nobody holds the token it takes it, so that Wait drives
// without a hand-over, and reports true: then the caller must call Wait next. Otherwise it does what Start does.
func (p *Port) TryStart(c *Call, first int, tasks ...*Task) (holds bool) {
	if !p.Hold() {
		p.Start(c, first, tasks...)
		return false
	}
	p.StartHeld(c, first, tasks...)
	return true
}

// Drop gives back what Hold took, in the place of StartHeld and Wait, or after StartHeld and Finish.
func (p *Port) Drop() { p.driver.release() }

// Hold takes the driver's token if nobody holds it, and reports whether it did: then the caller must call StartHeld next, or several times, on any
// ports of the driver.
func (p *Port) Hold() bool { return p.driver.take() }

// StartHeld is Start for a caller that has the token by Hold, and must call Wait next: that gives it back when the call is done. Who starts several
// calls must Finish them all, and then Drop.
func (p *Port) StartHeld(c *Call, first int, tasks ...*Task) {
	d := p.driver
	if l := d.sole; l != nil {
		d.queueSole(l)
		d.list(l)
	}
	if d.events.Load() {
		d.attend()
	}
	if l := p.lanes[first]; len(tasks) == 1 && len(d.lanes) == 0 && len(l.queue) == 0 && p.failed.Load() == nil {
		t := tasks[0]
		c.reset(p, 1)
		if t.call != c {
			t.call = c
		}
		l.begin(t)
		if d.sole = l; l.short != nil {
			d.dash(l) // what it sends is on its way while the caller gets ready to wait
		}
		return
	}
	d.accept(p, c, first, tasks)
}

// Wait drives until the call is done and returns its outcome; holds is what TryStart said. When ctx ends first, the
// port fails with its cause: the ranks would no longer agree what comes next.
func (c *Call) Wait(ctx context.Context, holds bool) error {
	d := c.port.driver
	if holds { // with the token goes the call: who has it next may have started it anew
		err := c.Finish(ctx)
		d.release()
		return err
	}
	for !c.Done() {
		if d.take() {
			d.drive(ctx, c)
			d.release()
			continue
		}
		d.park(ctx, c)
	}
	return c.err
}

// Finish is Wait for a call by StartHeld whose caller keeps the token, for others that it started.
func (c *Call) Finish(ctx context.Context) error {
	d := c.port.driver
	if !c.Done() && d.sole != nil {
		d.sprint(c)
	}
	if !c.Done() {
		d.drive(ctx, c)
	}
	return c.err
}

// sprint runs the only task there is as far as it comes without waiting for long, which for short ones is to the end, and leaves the
// rest to drive. That reads clocks and looks after everything else in flight, and costs more than a short message takes.
func (d *Driver) sprint(c *Call) {
	l := d.sole
	if l.short == nil {
		d.queueSole(l)
		d.advance(l)
	}
	for range sprints {
		if c.Done() {
			return
		}
		if d.bubble != nil || d.yields() || !d.soon(l, batch) {
			break
		}
		d.yieldsHelped = 0
		d.step(l)
	}
	if c.Done() {
		return
	}
	if d.sole == l {
		d.queueSole(l)
	}
	d.list(l)
}

// list has passes look after a lane.
func (d *Driver) list(l *Lane) {
	l.active = true
	d.lanes = append(d.lanes, l)
}

// queueSole puts the only task there is into its lane's queue: others may come.
func (d *Driver) queueSole(l *Lane) {
	d.sole = nil
	l.queue = append(l.queue, l.laid)
}

// step runs a lane as far as it comes, with its task in its queue or not yet, and reports whether anything moved.
func (d *Driver) step(l *Lane) (moved bool) {
	if d.sole != l {
		return d.advance(l)
	}
	from := l.pc
	return d.dash(l) || l.pc > from
}

// dash runs the only task there is by its short way, until something must be waited for or its call is done, and reports whether that is so.
func (d *Driver) dash(l *Lane) (done bool) {
	t := l.laid
	done, err := l.short.run(l, t)
	switch {
	case err != nil:
		d.queueSole(l)
		d.fail(l.port, err)
		return true
	case done:
		d.sole = nil
		t.call.end()
	}
	return done
}

func (d *Driver) take() bool { return d.token.CompareAndSwap(false, true) }

// release gives the token back and offers it to a parked waiter. What arrived in the meantime is left for whoever
// comes next: a waiter or the pump.
func (d *Driver) release() {
	for {
		d.token.Store(false)
		if d.nparked.Load() > 0 {
			d.mu.Lock()
			if len(d.parked) > 0 {
				d.parked[0].poke()
			}
			d.mu.Unlock()
		}
		if !d.events.Load() || !d.take() {
			return
		}
		d.attend()
	}
}

// park sleeps until the call is done, the token is offered or ctx ends.
func (d *Driver) park(ctx context.Context, c *Call) {
	if c.wake == nil {
		c.wake = make(chan struct{}, 1)
	}
	if was := c.state.Load(); was == c.starts|done || !c.state.CompareAndSwap(was, c.starts|parked) {
		return
	}
	d.mu.Lock()
	d.parked = append(d.parked, c)
	d.nparked.Store(int32(len(d.parked)))
	d.mu.Unlock()
	if d.token.Load() { // else it was released before we were listed
		d.Wake() // the pump may sleep on the token: it must see that somebody waits
		select {
		case <-c.wake:
		case <-ctx.Done():
			c.port.Fail(context.Cause(ctx))
		}
	}
	d.mu.Lock()
	d.parked = slices.DeleteFunc(d.parked, func(x *Call) bool { return x == c })
	d.nparked.Store(int32(len(d.parked)))
	if c.Done() && len(d.parked) > 0 && !d.token.Load() {
		d.parked[0].poke() // the offer that we do not take
	}
	d.mu.Unlock()
	c.state.CompareAndSwap(c.starts|parked, c.starts) // running
}

// attend takes the inbox in and ends failed ports.
func (d *Driver) attend() {
	d.events.Store(false)
	d.mu.Lock()
	inbox, requests := d.inbox, d.requests
	d.inbox, d.requests = nil, nil
	d.mu.Unlock()
	for _, s := range inbox {
		d.enqueue(s.lane, s.task)
	}
	for _, l := range d.lanes {
		if l.port.failed.Load() != nil {
			l.port.end()
		}
	}
	for _, r := range requests {
		r.do()
		close(r.done)
	}
}

// advance runs a lane as far as it comes and reports whether anything moved. An error fails its port.
func (d *Driver) advance(l *Lane) (moved bool) {
	moved, err := l.advance()
	if err != nil {
		d.fail(l.port, err)
		moved = true
	}
	return moved
}

// fail ends a port.
func (d *Driver) fail(p *Port, err error) {
	p.failed.CompareAndSwap(nil, &failure{err})
	p.end()
}

// pass advances every lane once and reports whether anything moved.
func (d *Driver) pass() bool {
	if d.events.Load() {
		d.attend()
	}
	moved := false
	for i := 0; i < len(d.lanes); {
		l := d.lanes[i]
		moved = d.advance(l) || moved
		if len(l.queue) > 0 {
			i++
			continue
		}
		l.active = false
		last := len(d.lanes) - 1
		d.lanes[i] = d.lanes[last]
		d.lanes[last] = nil
		d.lanes = d.lanes[:last]
	}
	return moved
}

// drive makes everything move until c is done or, for a nil c, until somebody waits or nothing is left.
func (d *Driver) drive(ctx context.Context, c *Call) {
	var idle idleness
	for {
		moved := d.pass()
		if c != nil && c.Done() || c == nil && (d.nparked.Load() > 0 || len(d.lanes) == 0) {
			d.ended(&idle)
			return
		}
		for _, e := range d.attached() {
			moved = e.Progress() || moved
		}
		if moved {
			d.ended(&idle)
			continue
		}
		d.idle(ctx, c, &idle)
	}
}

// pump sees to it that calls move that nobody waits for.
func (d *Driver) pump() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pumping {
		return
	}
	d.pumping = true
	go func() {
		for nap := 100 * time.Microsecond; ; nap = min(2*nap, 5*time.Millisecond) { // most starts are followed by a wait
			time.Sleep(nap)
			if d.nparked.Load() == 0 && d.take() {
				d.drive(context.Background(), nil)
				d.mu.Lock()
				rest := len(d.lanes) > 0 || len(d.inbox) > 0
				d.pumping = rest
				d.mu.Unlock()
				d.release()
				if !rest {
					return
				}
			}
		}
	}()
}
