package comm

import "sync/atomic"

// regular is a collective that was made lately, and the run of such calls by callers who drive them at once. The run belongs to whoever holds the
// communicator's lock and the driver's token: its call is done when it gives the token back.
type regular struct {
	prepared atomic.Pointer[prepared]
	run      run
}

// regulars is how many collectives a communicator knows by heart: programs make some few by turns.
const regulars = 4

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
		call.Count == is.Count && call.whole == is.whole && call.Kind == is.Kind && call.DType == is.DType && call.RedOp == is.RedOp && call.Root == is.Root &&
		call.Algorithm == is.Algorithm && call.Comm == is.Comm && call.Src.Device.IsHost() && call.Dst.Device.IsHost() &&
		!call.Factor.Set && call.Factor.At == nil && r.prepared.small
}

// again reports whether a call is as one before was, and right: so are most, and they need no more checks.
func (c *Comm) again(p *prepared, call *Call) bool {
	if p.kind != call.Kind || p.count != call.Count || p.dtype != call.DType || p.redop != call.redop() || p.root != call.Root ||
		p.signature.algorithm != call.Algorithm || p.scaled != call.Factor.Set || p.whole != call.whole || call.Factor.At != nil || call.Comm != nil && call.Comm != c ||
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
