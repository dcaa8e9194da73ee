package comm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// batch is calls of one rank that are done together, of a Group or one alone.
type batch struct {
	proxy  *proxy
	calls  []proxied
	rounds int
	open   []*round // whose results nothing is queued for yet
	err    error

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
// others write, which come in their order.
func queueProxied(calls []Call) (errs []error) {
	var batches []*batch
	for i := range calls {
		y := calls[i].Comm.proxy
		x, err := y.cut(&calls[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		n := slices.IndexFunc(batches, func(b *batch) bool { return b.proxy == y })
		if n >= 0 && slices.ContainsFunc(batches[n].calls, func(o proxied) bool { return x.touches(&o) }) {
			errs = append(errs, queueBatches(batches)...)
			batches, n = nil, -1
		}
		if n < 0 {
			batches, n = append(batches, &batch{proxy: y, captured: x.captured}), len(batches)
		}
		if b := batches[n]; b.captured || x.captured {
			if err := b.capturable(x); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		batches[n].add(x)
	}
	batches = slices.DeleteFunc(batches, func(b *batch) bool { return len(b.calls) == 0 })
	return append(errs, queueBatches(batches)...)
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

// queueBatches queues the rounds of several ranks of this process by turns, for they wait for each other.
func queueBatches(batches []*batch) (errs []error) {
	slices.SortFunc(batches, func(a, b *batch) int { return cmp.Compare(a.proxy.id, b.proxy.id) })
	rounds := 0
	for _, b := range batches {
		b.proxy.mu.Lock()
		defer b.proxy.mu.Unlock()
		if b.err = b.admit(); b.err == nil {
			b.err = b.begin()
		}
		if b.err == nil && b.travels() {
			b.err = b.travel()
			b.rounds = 0
		}
		rounds = max(rounds, b.rounds)
	}
	for k := range rounds {
		for _, b := range batches {
			if k < b.rounds && b.err == nil {
				b.err = b.send(k)
			}
		}
	}
	for _, b := range batches {
		if b.err == nil {
			b.err = b.end()
		}
		if c := b.proxy.comm; b.err != nil {
			c.fail(b.err) // unless it has failed
			errs = append(errs, (&run{comm: c, call: b.calls[0].call, seq: c.begun()}).outcome())
		}
	}
	return errs
}

// admit counts the calls, unless the communicator has failed.
func (b *batch) admit() error {
	c := b.proxy.comm
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range b.calls {
		x := &b.calls[i]
		c.count(x.src, x.dst)
		if !x.call.Kind.pointToPoint() {
			c.seq++
			c.recent[c.seq%remembered] = entry{c.seq, c.preparedOnDevice(x.call.signature(false)), nil}
		}
	}
	return c.reason()
}

// stream is what all is queued on.
func (b *batch) stream() cuda.Stream { return b.calls[0].call.Stream }

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
				most = [2]int64{max(most[0], apart(l.in.total())), max(most[1], apart(l.out.total()))}
			}
		}
		in, out = in+most[0], out+most[1]
	}
	return in, out
}

// apart is what a piece of so many bytes takes of its slot.
func apart(bytes int64) int64 { return (bytes + 255) &^ 255 }

// legs gives a round the k-th pieces of the calls, with places on the host from these on.
func (b *batch) legs(r *round, k int, in, out unsafe.Pointer) {
	for i := range b.calls {
		x := &b.calls[i]
		if k < x.first || k >= x.first+x.rounds {
			continue
		}
		l := x.leg(k - x.first)
		x.place(&l, in, out)
		in, out = unsafe.Add(in, apart(l.in.total())), unsafe.Add(out, apart(l.out.total()))
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
		r.ops += min(r.legs[i].in.rows, 1) + min(r.legs[i].out.rows, 1)
	}
	if err := y.ease(r.ops); err != nil {
		return err
	}
	if err := y.until(b.stream(), r.number-proxyDepth); err != nil {
		return err
	}
	for i := range r.legs {
		if l := &r.legs[i]; l.in.rows > 0 {
			if err := d.CopyRows(b.stream(), l.call.Src.Ptr, l.in.bytes, l.in.at, l.in.pitch, l.in.bytes, l.in.rows); err != nil {
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
	if err := d.Record(y.behind, b.stream()); err != nil {
		return err
	}
	y.stream = b.stream()
	for _, s := range b.others() {
		if err := d.WaitEvent(s, y.behind); err != nil {
			return err
		}
	}
	return nil
}
