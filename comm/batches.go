package comm

import (
	"cmp"
	"slices"
	"sync"
)

// startProxied queues one call.
func (c *Comm) startProxied(call *Call) error {
	of := *call
	of.Comm = c
	if errs := queueProxied([]Call{of}); len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// queueProxied queues calls of communicators that have proxies. Those of one communicator are done together, but for calls that touch what
// earlier ones of any communicator write, which come in phases behind them.
func queueProxied(calls []Call) (errs []error) {
	var phases [][]*batch
	for i := range calls {
		y := calls[i].Comm.proxy
		x, err := y.cut(&calls[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !x.captured && !x.call.Kind.pointToPoint() {
			y.collectives.Add(1)
		}
		phase := 0
		for k, batches := range phases {
			for _, b := range batches {
				switch {
				case slices.ContainsFunc(b.calls, func(o proxied) bool { return x.touches(&o) }):
					phase = k + 1
				case b.proxy == y: // in the order of calls
					phase = max(phase, k)
				}
			}
		}
		if phase == len(phases) {
			phases = append(phases, nil)
		}
		n := slices.IndexFunc(phases[phase], func(b *batch) bool { return b.proxy == y })
		b := &batch{proxy: y, captured: x.captured}
		if n >= 0 {
			b = phases[phase][n]
		}
		if b.captured || x.captured {
			if err := b.capturable(x); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		b.add(x)
		if n < 0 {
			phases[phase] = append(phases[phase], b)
		}
	}
	for _, batches := range phases {
		errs = append(errs, queueBatches(batches)...)
	}
	return errs
}

// queueBatches queues several batches, which may wait for each other, also those of several ranks of this process.
func queueBatches(batches []*batch) (errs []error) {
	locks := slices.Clone(batches)
	slices.SortFunc(locks, func(a, b *batch) int { return cmp.Compare(a.proxy.id, b.proxy.id) })
	for _, b := range locks {
		b.proxy.mu.Lock()
		defer b.proxy.mu.Unlock()
	}
	failed := make([]error, len(batches))
	try := func(i int, do func(*batch) error) {
		if failed[i] != nil {
			return
		}
		if failed[i] = do(batches[i]); failed[i] != nil {
			batches[i].proxy.dirty = true
			batches[i].proxy.comm.fail(failed[i]) // unless it has failed; at once, for others may wait for it
		}
	}
	each := func(do func(*batch) error) {
		for i := range batches {
			try(i, do)
		}
	}
	each((*batch).admit)
	each(func(b *batch) error { return b.split(b.alone(batches)) })
	each((*batch).begin)
	each(func(b *batch) error { // inputs come before anything waits on the same stream
		switch {
		case b.travels() && (b.captured || b.alone(batches)): // a trip waits at once
			b.rounds = 0
			return b.travel()
		case b.waits || b.long():
			return nil
		}
		return b.send(b.rounds)
	})
	var sending sync.WaitGroup
	for i, b := range batches {
		if b.waits || b.long() {
			sending.Go(func() { try(i, (*batch).run) })
		}
	}
	sending.Wait()
	each((*batch).end)
	for i, b := range batches {
		if c := b.proxy.comm; failed[i] != nil {
			errs = append(errs, (&run{comm: c, call: b.calls[0].call, seq: b.proxy.host.begun()}).outcome())
		}
	}
	return errs
}
