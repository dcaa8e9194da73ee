package comm

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// batch is calls of one rank that are done together, of a Group or one alone.
type batch struct {
	proxy  *proxy
	calls  []proxied
	rounds int
	open   []*round // whose results nothing is queued for yet

	captured bool     // in a graph
	waits    bool     // the caller does, not the stream, so that nothing that is queued holds up anything else
	parts    []*batch // that go on independently of each other, on one stream; none: it is one
}

// alone reports whether no other batch is on this one's stream.
func (b *batch) alone(batches []*batch) bool {
	return !slices.ContainsFunc(batches, func(o *batch) bool {
		return o != b && o.proxy.device == b.proxy.device && o.stream() == b.stream()
	})
}

// long reports whether not all rounds can be under way at once.
func (b *batch) long() bool { return b.rounds > proxyDepth }

// split finds out who waits, and gives calls that may have to wait for different things parts of their own, where not all their rounds are under way
// at once: so they do in the end what they would do one by one. The main proxy's lock is held.
func (b *batch) split(alone bool) error {
	b.waits = b.proxy.shares || b.long() && !alone
	if !b.long() {
		return nil
	}
	var parts []*batch
	for _, x := range b.calls {
		n := slices.IndexFunc(parts, func(p *batch) bool { return sameLane(&p.calls[0].call, &x.call) })
		if n < 0 {
			parts, n = append(parts, &batch{proxy: b.proxy, waits: true}), len(parts)
		}
		parts[n].add(x)
	}
	if len(parts) == 1 {
		return nil
	}
	b.parts, b.waits = parts, true
	for i, p := range parts[1:] {
		var err error
		if p.proxy, err = b.proxy.laneOf(i); err != nil {
			return err
		}
	}
	return nil
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

// run queues a batch while others are queued.
func (b *batch) run() error {
	if len(b.parts) == 0 {
		if err := b.send(b.rounds); err != nil || !b.waits {
			return err
		}
		return b.receiveAll()
	}
	var parts errgroup.Group
	before := b.proxy.queued
	for i, p := range b.parts {
		parts.Go(func() error {
			if i > 0 { // the host may not have begun what was queued before
				if err := b.proxy.await(before); err != nil {
					return err
				}
			}
			err := p.send(p.rounds)
			if err == nil {
				err = p.receiveAll()
			}
			if err == nil { // before what is queued behind, on other words
				err = p.proxy.await(p.proxy.queued)
			}
			if err != nil {
				b.proxy.comm.fail(err)
			}
			return err
		})
	}
	return parts.Wait()
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
	if b.calls[0].stream != y.stream {
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

// send queues the input of so many rounds.
func (b *batch) send(rounds int) error {
	if rounds == 0 {
		return nil
	}
	if err := b.proxy.reserve(b.need()); err != nil {
		return err
	}
	for k := range rounds {
		if len(b.open) == proxyDepth {
			if err := b.receive(); err != nil {
				return err
			}
		}
		if err := b.sendRound(k); err != nil {
			return err
		}
	}
	return nil
}

// until has the stream wait until a round is done, or waits itself, unless that was done before.
func (b *batch) until(number uint32) error {
	y := b.proxy
	if int32(number-y.waited) <= 0 {
		return nil
	}
	y.waited = number
	if b.waits {
		return y.await(number)
	}
	return y.device.Until(b.stream(), unsafe.Add(y.words.Device, doneAt), number)
}

// sendRound queues the input of the k-th round, once the results of an earlier one have left its place.
func (b *batch) sendRound(k int) error {
	y, d := b.proxy, b.proxy.device
	r := &round{number: y.queued + 1, ops: 2}
	in, out := y.slots.of(r.number)
	b.legs(r, k, in, out)
	for i := range r.legs {
		r.ops += min(r.legs[i].in.rows, 1) + min(r.legs[i].out.rows, 1) + r.legs[i].factor.rows
	}
	if err := y.ease(r.ops); err != nil {
		return err
	}
	if err := b.until(r.number - proxyDepth); err != nil {
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
		if err := b.until(r.number); err != nil {
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

func (b *batch) receiveAll() error {
	for len(b.open) > 0 {
		if err := b.receive(); err != nil {
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
	if err := b.receiveAll(); err != nil {
		return err
	}
	if err := d.Record(y.behind, b.stream()); err != nil {
		return err
	}
	y.stream = b.calls[0].stream
	for _, s := range b.others() {
		if err := d.WaitEvent(s, y.behind); err != nil {
			return err
		}
	}
	return nil
}
