package comm

import (
	"errors"
	"fmt"
	"slices"
)

// deviceGroup is the calls on GPU memory of a Group that are not queued yet.
type deviceGroup struct {
	order   groupOrder
	proxied []Call // those by proxies
	posted  []Call // messages over links
	errs    []error
}

// concerns reports whether take has anything to do: what it takes it keeps in memory that is not the caller's stack.
func (g *deviceGroup) concerns(call *Call) bool {
	return call.Comm.proxy != nil || len(g.proxied) > 0 || len(g.posted) > 0
}

// take queues what a Group's i-th call comes behind, and keeps the call for later, or cannot do it, unless it reports false: then the call is next.
func (g *deviceGroup) take(call Call, i int) bool {
	call.place = i + 1
	if call.posts(call.Comm) {
		g.posted = append(g.posted, call)
		return true
	}
	if call.awaits(g.posted) { // in the order of the Group, and so what those messages await
		var now, sums []Call
		now, g.posted = ahead(g.posted, call)
		sums, g.proxied = ahead(g.proxied, now...)
		g.errs = append(append(g.errs, g.order.queueProxied(sums)...), g.order.queuePosts(now)...)
	}
	if call.proxies() {
		g.proxied = append(g.proxied, call)
		return true
	}
	first, rest := call.behind(g.proxied)
	g.errs = append(g.errs, g.order.queueProxied(first)...)
	g.proxied = rest
	if err := g.order.follow(&call); err != nil {
		g.errs = append(g.errs, err)
		return true
	}
	return false
}

// rest queues what is left, and returns what went wrong since the beginning.
func (g *deviceGroup) rest() []error {
	return append(append(g.errs, g.order.queueProxied(g.proxied)...), g.order.queuePosts(g.posted)...)
}

// groupOrder is the calls of a Group where those on GPUs name several streams; else it is empty, for a stream has its own order.
type groupOrder []Call

func orderOf(calls []Call) groupOrder {
	first := -1
	for i := range calls {
		switch {
		case calls[i].memory().Device.IsHost():
		case first < 0:
			first = i
		case calls[i].Stream != calls[first].Stream:
			return calls
		}
	}
	return nil
}

// comesBehind reports whether a call on GPUs of one process touches what earlier calls of its Group write which are of other communicators, or the
// other way round. Those of its own one, of all ranks, has the communicator do in order.
func (c *Call) comesBehind(calls []Call) bool {
	if c.Comm.gpu == nil {
		return false
	}
	for i := range calls {
		if calls[i].Comm.id != c.Comm.id && calls[i].Comm.gpu != nil && c.awaits(calls[i:i+1]) {
			return true
		}
	}
	return false
}

// follow has a call's stream wait for those of earlier calls of the Group that touch what it writes, or the other way round. Those are queued. Of calls by
// proxies, which know their streams, none waits for another; and none where one stream is captured in a graph and the other is not.
func (g groupOrder) follow(call *Call) (err error) {
	own := call.Comm.family.device
	defer func() {
		if err != nil { // it is not queued, and others wait for it
			err = fmt.Errorf("comm %s: %v comes behind other calls of its group: %w", call.Comm.name(), call, err)
			call.Comm.fail(err)
		}
	}()
	for i := range g[:min(len(g), max(call.place-1, 0))] {
		o := &g[i]
		if o.Comm.proxy == nil && call.Comm.proxy == nil && o.Comm == call.Comm || o.Stream == call.Stream || o.memory().Device != call.memory().Device || own == nil || own.Device.Device() != o.memory().Device || call.proxies() && o.proxies() || !call.awaits([]Call{*o}) {
			continue
		}
		ours, err := own.Capturing(call.Stream)
		if err != nil {
			return err
		}
		theirs, err := own.Capturing(o.Stream)
		if err != nil {
			return err
		}
		if ours != theirs {
			continue
		}
		e, err := own.NewEvent(false)
		if err != nil {
			return err
		}
		if err := errors.Join(own.Record(e, o.Stream), own.WaitEvent(call.Stream, e), own.DestroyEvent(e)); err != nil {
			return err
		}
	}
	return nil
}

// queueProxied is queueProxied behind what the calls follow.
func (g groupOrder) queueProxied(calls []Call) []error {
	for i := range calls {
		if err := g.follow(&calls[i]); err != nil {
			return []error{err}
		}
	}
	return queueProxied(calls)
}

// ahead returns which of the calls, messages or proxies', have to be queued before some others: those that touch what one of them writes, or the other way
// round, with all that they have to come behind themselves.
func ahead(calls []Call, of ...Call) (first, rest []Call) {
	return apartFrom(calls, func(o *Call, first []Call) bool {
		same := func(f Call) bool { return f.Comm == o.Comm && sameLane(&f, o) }
		return o.awaitedBy(of) || o.awaitedBy(first) || slices.ContainsFunc(first, same)
	})
}
