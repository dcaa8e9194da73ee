package comm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// batch is calls of one rank that are done together, of a Group or one alone.
type batch struct {
	proxy  *proxy
	calls  []proxied
	rounds int
	open   []*round // whose results nothing is queued for yet

	captured bool // in a graph
}

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
		batches, err := fork(batches)
		if err != nil { // what comes after would have other ranks' numbers
			for i := range calls {
				calls[i].Comm.fail(err)
			}
			return append(errs, err)
		}
		errs = append(errs, queueBatches(batches)...)
	}
	return errs
}

// fork gives calls that may have to wait for different things proxies and streams of their own where not all their rounds are under way at once: so they
// do in the end what they would do one by one.
func fork(batches []*batch) (forked []*batch, err error) {
	type place struct {
		device *opened
		stream cuda.Stream
	}
	taken := map[place]bool{}
	for _, b := range batches {
		if b.rounds <= proxyDepth || b.captured {
			forked = append(forked, b)
			continue
		}
		lanes, own := []*batch(nil), 0
		for _, x := range b.calls {
			n := slices.IndexFunc(lanes, func(l *batch) bool { return sameLane(&l.calls[0].call, &x.call) })
			if n < 0 {
				lanes, n = append(lanes, &batch{proxy: b.proxy}), len(lanes)
			}
			lanes[n].add(x)
		}
		for i, l := range lanes {
			if i > 0 || taken[place{l.proxy.device, l.stream()}] { // of one stream at a time each
				lane, err := l.proxy.laneOf(own)
				switch {
				case err == nil:
					l.proxy = lane
					own++
				case l.proxy.comm.reason() == nil: // else nothing is queued
					return nil, errors.Join(err, errors.New("nothing of the group is done"))
				}
			}
			taken[place{l.proxy.device, l.stream()}] = true
			forked = append(forked, l)
		}
	}
	return forked, nil
}

// capturable says why a call cannot be captured in a graph with those that are there, if it cannot.
func (b *batch) capturable(x proxied) error {
	with := batch{proxy: b.proxy, captured: true, calls: slices.Clone(b.calls), rounds: b.rounds}
	with.add(x)
	why := ""
	switch {
	case b.proxy.trips == nil:
		why = "another rank has the GPU, too"
	case !b.captured || !x.captured || x.call.Stream != with.stream():
		why = "and others of its group are not, or on another stream"
	case !with.travels():
		why = fmt.Sprintf("want at most %d bytes at a time, all ranks' blocks together, and %d buffers", tripRoom, cuda.MaxParts)
	default:
		return nil
	}
	return fmt.Errorf("comm %s: %v is captured in a graph, between processes: %s: %w", b.proxy.comm.name(), &x.call, why, ErrUnsupported)
}

// add gives a call its place among the rounds.
func (b *batch) add(x proxied) {
	for i := range b.calls {
		if o := &b.calls[i]; sameLane(&o.call, &x.call) {
			x.first = max(x.first, o.first+o.rounds)
		}
	}
	b.calls = append(b.calls, x)
	b.rounds = max(b.rounds, x.first+x.rounds)
}

// queueBatches queues the rounds of several batches by turns, for they may wait for each other, also those of several ranks of this process.
func queueBatches(batches []*batch) (errs []error) {
	var locks []*proxy
	for _, b := range batches {
		for _, y := range []*proxy{b.proxy, b.proxy.main} {
			if y != nil && !slices.Contains(locks, y) {
				locks = append(locks, y)
			}
		}
	}
	slices.SortFunc(locks, func(a, b *proxy) int { return cmp.Compare(a.id, b.id) })
	for _, y := range locks {
		y.mu.Lock()
		defer y.mu.Unlock()
	}
	failed := make([]error, len(batches))
	fails := func(i int, err error) {
		if failed[i] = err; err != nil {
			batches[i].proxy.dirty = true
			batches[i].proxy.comm.fail(err) // unless it has failed; at once, for others may wait for it
		}
	}
	each := func(do func(*batch) error) {
		for i, b := range batches {
			if failed[i] == nil {
				fails(i, do(b))
			}
		}
	}
	each((*batch).admit)
	each((*batch).begin)
	rounds := 0
	each(func(b *batch) error {
		if b.travels() {
			b.rounds = 0
			return b.travel()
		}
		rounds = max(rounds, b.rounds)
		return nil
	})
	if slices.ContainsFunc(batches, func(b *batch) bool { return b.proxy.shares }) { // sends wait themselves
		var sending sync.WaitGroup
		for i, b := range batches {
			sending.Go(func() {
				for k := 0; k < b.rounds && failed[i] == nil; k++ {
					fails(i, b.send(k))
				}
			})
		}
		sending.Wait()
	} else {
		for k := range rounds {
			each(func(b *batch) error {
				if k < b.rounds {
					return b.send(k)
				}
				return nil
			})
		}
	}
	each((*batch).end)
	for i, b := range batches {
		if c := b.proxy.comm; failed[i] != nil {
			errs = append(errs, (&run{comm: c, call: b.calls[0].call, seq: b.proxy.host.begun()}).outcome())
		}
	}
	return errs
}

// admit counts the calls, unless the communicator has failed. They have their numbers on the host.
func (b *batch) admit() error {
	c := b.proxy.comm
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range b.calls {
		c.count(b.calls[i].src, b.calls[i].dst)
	}
	return c.reason()
}

// stream is what all is queued on.
func (b *batch) stream() cuda.Stream {
	if b.proxy.main != nil {
		return b.proxy.own
	}
	return b.calls[0].call.Stream
}

// others are the calls' other streams.
func (b *batch) others() (list []cuda.Stream) {
	for i := range b.calls {
		if s := b.calls[i].call.Stream; s != b.stream() && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// begin has the calls' streams meet behind the batch before. What a graph captures comes behind what is ahead of it there, alone.
func (b *batch) begin() error {
	y, d := b.proxy, b.proxy.device
	if b.captured {
		return nil
	}
	if b.stream() != y.stream {
		if err := d.WaitEvent(b.stream(), y.behind); err != nil {
			return err
		}
	}
	if y.main != nil { // what the main one's stream has gone past may not have begun on the host
		if err := errors.Join(d.WaitEvent(b.stream(), y.main.behind), y.main.await(b.stream(), y.main.queued)); err != nil {
			return err
		}
	}
	for _, s := range b.others() {
		if err := errors.Join(d.Record(y.behind, s), d.WaitEvent(b.stream(), y.behind)); err != nil {
			return err
		}
	}
	return nil
}

// need is the room of any round, in bytes.
func (b *batch) need() (in, out int64) {
	for i := range b.calls {
		x := &b.calls[i]
		if slices.ContainsFunc(b.calls[:i], func(o proxied) bool { return sameLane(&o.call, &x.call) }) {
			continue
		}
		var most [2]int64 // of the calls that follow each other
		for j := i; j < len(b.calls); j++ {
			if o := &b.calls[j]; o.rounds > 0 && sameLane(&o.call, &x.call) {
				l := o.leg(0)
				most = [2]int64{max(most[0], l.inRoom()), max(most[1], l.outRoom())}
			}
		}
		in, out = in+most[0], out+most[1]
	}
	return in, out
}

// legs gives a round the k-th pieces of the calls, with places on the host from these on.
func (b *batch) legs(r *round, k int, in, out unsafe.Pointer) {
	for i := range b.calls {
		x := &b.calls[i]
		if k < x.first || k >= x.first+x.rounds {
			continue
		}
		l := x.leg(k - x.first)
		x.place(&l, in, out)
		in, out = unsafe.Add(in, l.inRoom()), unsafe.Add(out, l.outRoom())
		r.legs = append(r.legs, l)
	}
}

// send queues the input of the k-th round, once the results of an earlier one have left its place.
func (b *batch) send(k int) error {
	y, d := b.proxy, b.proxy.device
	if k == 0 {
		if err := y.reserve(b.need()); err != nil {
			return err
		}
	}
	if len(b.open) == proxyDepth {
		if err := b.receive(); err != nil {
			return err
		}
	}
	r := &round{number: y.queued + 1, ops: 2}
	in, out := y.slots.of(r.number)
	b.legs(r, k, in, out)
	for i := range r.legs {
		r.ops += min(r.legs[i].in.rows, 1) + min(r.legs[i].out.rows, 1) + r.legs[i].factor.rows
	}
	if err := y.ease(r.ops); err != nil {
		return err
	}
	if err := y.until(b.stream(), r.number-proxyDepth); err != nil {
		return err
	}
	for i := range r.legs {
		l := &r.legs[i]
		if l.in.rows > 0 {
			if err := d.CopyRows(b.stream(), l.call.Src.Ptr, l.in.bytes, l.in.at, l.in.pitch, l.in.bytes, l.in.rows); err != nil {
				return err
			}
		}
		if l.factor.rows > 0 {
			if err := d.CopyAny(b.stream(), l.call.Factor.At, l.factor.at, l.factor.bytes); err != nil {
				return err
			}
		}
	}
	if err := d.Store(b.stream(), y.words.Device, r.number); err != nil {
		return err
	}
	y.queued = r.number
	y.rounds <- r
	b.open = append(b.open, r)
	return nil
}

// Fewer bytes of one row the driver has stored by the part of the GPU that computes, of several rows by a copy engine: of two processes that share an
// H200 an all_reduce of 8 bytes took 245 µs so, for each turn of the other one's to compute, and takes 41 of two rows.
const fewBytes = 4096

// receive queues what comes of the oldest round that is open.
func (b *batch) receive() error {
	y, r := b.proxy, b.open[0]
	b.open = b.open[1:]
	for i := range r.legs {
		l := &r.legs[i]
		if l.out.rows == 0 && l.call.Kind != KindBarrier {
			continue
		}
		if err := y.until(b.stream(), r.number); err != nil {
			return err
		}
		if l.out.rows == 0 {
			continue
		}
		out := l.out
		if out.rows == 1 && out.bytes < fewBytes && out.bytes%2 == 0 {
			out = blocks{out.at, out.bytes / 2, out.bytes / 2, 2}
		}
		if err := y.device.CopyRows(b.stream(), out.at, out.pitch, l.call.Dst.Ptr, out.bytes, out.bytes, out.rows); err != nil {
			return err
		}
	}
	return nil
}

// end queues what remains, and has the calls' streams go on.
func (b *batch) end() error {
	y, d := b.proxy, b.proxy.device
	if b.captured {
		return nil
	}
	for len(b.open) > 0 {
		if err := b.receive(); err != nil {
			return err
		}
	}
	if y.main != nil { // as what comes behind, on the main one's words
		if err := y.until(b.stream(), y.queued); err != nil {
			return err
		}
	}
	if err := d.Record(y.behind, b.stream()); err != nil {
		return err
	}
	y.stream = b.stream()
	for _, s := range b.others() {
		if err := d.WaitEvent(s, y.behind); err != nil {
			return err
		}
		if y.main == nil {
			continue
		}
		if err := errors.Join(d.WaitEvent(s, y.main.behind), d.Record(y.main.behind, s)); err != nil { // and all that it was behind
			return err
		}
		y.main.stream = s
	}
	return nil
}
