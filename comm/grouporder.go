package comm

import (
	"errors"
	"slices"
)

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

// follow has a call's stream wait for those of earlier calls of the Group that touch what it writes, or the other way round. Those are queued. Of calls by
// proxies, which know their streams, none waits for another; and none where one stream is captured in a graph and the other is not.
func (g groupOrder) follow(call *Call) (err error) {
	own := call.Comm.family.device
	for i := range g[:min(len(g), max(call.place-1, 0))] {
		o := &g[i]
		if o.Comm.proxy == nil && call.Comm.proxy == nil || o.Stream == call.Stream || o.memory().Device != call.memory().Device || own == nil || own.Device.Device() != o.memory().Device || call.proxies() && o.proxies() || !call.awaits([]Call{*o}) {
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
	for i := len(calls) - 1; i >= 0; i-- {
		o := calls[i]
		before := func(f Call) bool { return f.awaits([]Call{o}) }
		same := func(f Call) bool { return f.Comm == o.Comm && sameLane(&f, &o) }
		if slices.ContainsFunc(of, before) || slices.ContainsFunc(first, before) || slices.ContainsFunc(first, same) {
			first = append(first, o)
		} else {
			rest = append(rest, o)
		}
	}
	slices.Reverse(first)
	slices.Reverse(rest)
	return first, rest
}
