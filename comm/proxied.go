package comm

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// proxied is a call that is cut in rounds.
type proxied struct {
	call          Call
	src, dst      int64 // bytes
	chunk, rounds int   // elements of a round's piece
	first         int   // round of the batch
	in, out       int   // blocks that are copied from and to the GPU
	echoes        bool  // the host's result is its input
	captured      bool  // in a graph
	stream        cuda.StreamID
}

// blocks are equal blocks of bytes, each of which begins a pitch behind the one before.
type blocks struct {
	at           unsafe.Pointer
	bytes, pitch int64
	rows         int
}

func (b blocks) total() int64 { return b.bytes * int64(b.rows) }

// leg is a call's part of a round: what is copied from and to the GPU's memory, and the call on host memory.
type leg struct {
	call    Call
	in, out blocks
	factor  blocks // one number, copied like in, to where call.Factor.At is
}

// inRoom and outRoom are what the leg takes of a slot.
func (l *leg) inRoom() int64  { return apart(l.in.total()) + apart(l.factor.total()) }
func (l *leg) outRoom() int64 { return apart(l.out.total()) }

// apart is what so many bytes take of a slot.
func apart(bytes int64) int64 { return (bytes + 255) &^ 255 }

// proxies reports whether the call is on GPU memory and done by the communicator's proxy.
func (c *Call) proxies() bool {
	return c.Comm != nil && c.Comm.proxy != nil && !c.memory().Device.IsHost() && !c.crosses(c.Comm)
}

// awaits reports whether a call that no proxy does touches what one of the others writes, or the other way round.
func (c *Call) awaits(others []Call) bool {
	memory := func(c *Call) (x proxied) {
		if c.Comm.checkShape(c) == nil {
			x.call = *c
			x.src, x.dst, _ = c.Comm.sizes(c)
		}
		return x
	}
	if len(others) == 0 || c.memory().Device.IsHost() {
		return false
	}
	x := memory(c)
	for i := range others { // not by value, which would allocate
		if y := memory(&others[i]); x.touches(&y) {
			return true
		}
	}
	return false
}

// behind returns which of the calls by proxies that came before this one in a Group are queued before it, and which after it: collectives
// of its communicator stand in the order of calls, on all ranks alike, and so does what touches the same memory; messages come after
// collectives, in whatever order a rank names them.
func (c *Call) behind(proxied []Call) (first, rest []Call) {
	if len(proxied) == 0 || c.memory().Device.IsHost() {
		return nil, proxied
	}
	return apartFrom(proxied, func(o *Call, first []Call) bool {
		return o.Comm == c.Comm && !o.Kind.pointToPoint() || c.awaits([]Call{*o}) || o.awaitedBy(first)
	})
}

// apartFrom takes those calls out that belong in front, from the last one on: belongs is told which of those behind do.
func apartFrom(calls []Call, belongs func(o *Call, first []Call) bool) (first, rest []Call) {
	for i := len(calls) - 1; i >= 0; i-- {
		if o := &calls[i]; belongs(o, first) {
			first = append(first, *o)
		} else {
			rest = append(rest, *o)
		}
	}
	slices.Reverse(first)
	slices.Reverse(rest)
	return first, rest
}

// awaitedBy reports whether any of others awaits the call.
func (c *Call) awaitedBy(others []Call) bool {
	return slices.ContainsFunc(others, func(o Call) bool { return o.awaits([]Call{*c}) })
}

// endWith has the communicator fail when the context ends before stop is called.
func (c *Comm) endWith(ctx context.Context) (stop func() bool) {
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(ctx, func() { c.fail(context.Cause(ctx)) })
}

// cut checks a call and cuts it.
func (y *proxy) cut(call *Call) (x proxied, err error) {
	c := y.comm
	if err := c.checkShape(call); err != nil {
		return x, err
	}
	x = proxied{call: *call, in: 1, out: 1}
	if x.src, x.dst, err = c.sizes(call); err != nil {
		return x, err
	}
	inPlace := !call.Kind.pointToPoint() && c.inPlace(call)
	if err := c.checkMemory(call, x.src, x.dst, inPlace); err != nil {
		return x, err
	}
	if own := y.device.Device.Device(); own != call.memory().Device {
		return x, argument("%v: memory on %v, but Config.Device is %v", call, call.memory().Device, own)
	}
	if x.stream, x.captured, err = y.device.Identify(call.Stream); err != nil {
		return x, fmt.Errorf("comm %s: %v: %w", c.name(), call, err)
	}
	rows, room := 1, pairRoom
	if !call.Kind.pointToPoint() {
		x.in, x.out = collective.Kind(call.Kind).Blocks(c.Size())
		rows, room = max(x.in, x.out, 1), proxyRoom
	}
	if x.src == 0 {
		x.in = 0
	}
	x.echoes = call.Kind == KindBroadcast && x.src > 0
	if x.dst == 0 || x.echoes && inPlace {
		x.out = 0
	}
	if x.chunk = max(1, room/rows/call.DType.Size()); x.chunk > 64 {
		x.chunk -= x.chunk % 64
	}
	x.rounds = max(1, (call.Count+x.chunk-1)/x.chunk) // of no element, too, for the host counts it
	if !call.Kind.pointToPoint() {                    // what is wrong with a piece is said now
		l := x.leg(0)
		_, err = y.host.prepare(l.call.signature(x.echoes), &l.call)
	}
	return x, err
}

// leg is the part of the k-th round.
func (x *proxied) leg(k int) leg {
	elem, from := int64(x.call.DType.Size()), k*x.chunk
	l := leg{call: x.call}
	l.call.Comm, l.call.Stream, l.call.whole = nil, 0, x.call.Count
	l.call.Count = min(x.chunk, x.call.Count-from)
	at, bytes, pitch := int64(from)*elem, int64(l.call.Count)*elem, int64(x.call.Count)*elem
	if x.in > 0 {
		l.in = blocks{unsafe.Add(x.call.Src.Ptr, at), bytes, pitch, x.in}
	}
	if x.out > 0 {
		l.out = blocks{unsafe.Add(x.call.Dst.Ptr, at), bytes, pitch, x.out}
	}
	if x.call.Factor.At != nil {
		l.factor = blocks{x.call.Factor.At, elem, elem, 1}
	}
	return l
}

// place gives a leg its memory on the host.
func (x *proxied) place(l *leg, in, out unsafe.Pointer) {
	l.call.Src, l.call.Dst = kernels.Mem{}, kernels.Mem{}
	if x.in > 0 {
		l.call.Src = kernels.Mem{Ptr: in, Bytes: l.in.total()}
	}
	if l.factor.rows > 0 {
		l.call.Factor.At = unsafe.Add(in, apart(l.in.total()))
	}
	switch {
	case x.echoes:
		l.call.Dst = l.call.Src
	case x.out > 0:
		l.call.Dst = kernels.Mem{Ptr: out, Bytes: l.out.total()}
	}
}

// sameLane reports whether calls have to be done one after the other, however ranks group them.
func sameLane(a, b *Call) bool {
	if a.Kind.pointToPoint() || b.Kind.pointToPoint() {
		return a.Kind == b.Kind && a.Peer == b.Peer
	}
	return true
}

// touches reports whether one of the calls writes what the other one reads or writes.
func (x *proxied) touches(o *proxied) bool {
	meet := func(a unsafe.Pointer, n int64, b unsafe.Pointer, m int64) bool {
		return a != nil && b != nil && n > 0 && m > 0 && uintptr(a) < uintptr(b)+uintptr(m) && uintptr(b) < uintptr(a)+uintptr(n)
	}
	factor := func(x, o *proxied) bool {
		return meet(x.call.Dst.Ptr, x.dst, o.call.Factor.At, int64(o.call.DType.Size()))
	}
	return factor(x, o) || factor(o, x) || meet(x.call.Dst.Ptr, x.dst, o.call.Dst.Ptr, o.dst) || meet(x.call.Dst.Ptr, x.dst, o.call.Src.Ptr, o.src) || meet(x.call.Src.Ptr, x.src, o.call.Dst.Ptr, o.dst)
}
