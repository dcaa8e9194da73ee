//go:build linux && cgo

package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// region is memory that the user registered.
type region struct {
	cache *cache
	span  *span
	at    int64 // in the span
	bytes int64

	mu     sync.Mutex // guards what follows
	tokens int        // 1 once somebody may have a token: then it stays pinned
	closed bool
}

// Register is transport.Registrar.
func (e *endpoint) Register(m kernels.Mem) (transport.Region, error) {
	s, err := e.cache.declare(m)
	if err != nil {
		return nil, err
	}
	return &region{cache: e.cache, span: s, at: int64(uintptr(m.Ptr) - s.addr()), bytes: m.Bytes}, nil
}

// addr is where we and our peers know the memory.
func (r *region) addr() uint64 { return uint64(r.span.addr()) + uint64(r.at) }

func (r *region) String() string {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	s := fmt.Sprintf("%d bytes at %#x on %v", r.bytes, r.addr(), r.span.Device)
	if r.span.way != "" {
		s += ": " + r.span.way
	}
	return s
}

// Token is
//
//	"gcclRDMA" 8 | address 8 | bytes 8 | a key 4 for each of our ports
//
// Numbers are big-endian.
func (r *region) Token() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, fmt.Errorf("verbs: a token of a region that was closed: %w", transport.ErrClosed)
	case r.tokens == 0:
		if err := r.cache.hold(r.span); err != nil {
			return nil, err
		}
		r.tokens = 1
	}
	if r.span.bounce != nil { // which nobody would bring up to date
		r.cache.letGo(r.span)
		r.tokens = 0
		return nil, fmt.Errorf("verbs: no peer gets at %v by itself: %w", r, errors.ErrUnsupported)
	}
	b := binary.BigEndian.AppendUint64([]byte(tokenMagic), r.addr())
	b = binary.BigEndian.AppendUint64(b, uint64(r.bytes))
	for _, mr := range r.span.mrs {
		b = binary.BigEndian.AppendUint32(b, mr.RKey())
	}
	return b, nil
}

func (r *region) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	err := r.cache.withdraw(r.span, r.tokens)
	r.closed = err == nil
	return err
}

const tokenMagic = "gcclRDMA"

// window is a peer's region.
type window struct {
	addr  uint64
	bytes int64
	keys  []uint32 // by its port
}

func (w *window) Bytes() int64 { return w.bytes }

func parseToken(b []byte, ports int) (*window, error) {
	be := binary.BigEndian
	if len(b) != 24+4*ports || string(b[:8]) != tokenMagic {
		return nil, fmt.Errorf("verbs: no token of the peer's: it has %d bytes and begins with %q, want %d", len(b), b[:min(8, len(b))], 24+4*ports)
	}
	w := &window{addr: be.Uint64(b[8:]), bytes: int64(be.Uint64(b[16:]))}
	if w.bytes <= 0 || w.addr+uint64(w.bytes) < w.addr {
		return nil, fmt.Errorf("verbs: token of %d bytes at %#x", w.bytes, w.addr)
	}
	for b = b[24:]; len(b) > 0; b = b[4:] {
		w.keys = append(w.keys, be.Uint32(b))
	}
	return w, nil
}

// oneSided is what a connection's operations on the peer's memory are at. All go by one QP, which keeps their order.
type oneSided struct {
	by       *queue
	accepted uint64
	done     uint64
	under    [oneSidedMost]operation // by number
	err      error
}

// oneSidedMost is how many may be under way.
const oneSidedMost = 128

type operation struct {
	position  uint32 // in by
	span      *span
	at, bytes int64 // in the span
}

// bytes is how many of operations under way there are.
func (o *oneSided) bytes() (n int64) {
	for i := o.done; i < o.accepted; i++ {
		n += o.under[i%oneSidedMost].bytes
	}
	return n
}

// Window is transport.OneSided.
func (c *conn) Window(token []byte) (transport.Window, error) {
	return parseToken(token, int(c.address.ports))
}

// Get is transport.OneSided.
func (c *conn) Get(to transport.Region, at int64, from transport.Window, offset int64, n int) (bool, error) {
	return c.operate(ibv.Send{Op: ibv.Read}, to, at, from, offset, n)
}

// FetchAdd is transport.OneSided.
func (c *conn) FetchAdd(to transport.Region, at int64, on transport.Window, offset int64, add uint64) (bool, error) {
	return c.operate(ibv.Send{Op: ibv.FetchAdd, AddOrCompare: add}, to, at, on, offset, 8)
}

// CompareSwap is transport.OneSided.
func (c *conn) CompareSwap(to transport.Region, at int64, on transport.Window, offset int64, old, new uint64) (bool, error) {
	return c.operate(ibv.Send{Op: ibv.CompareSwap, AddOrCompare: old, Swap: new}, to, at, on, offset, 8)
}

func (c *conn) operate(request ibv.Send, local transport.Region, at int64, remote transport.Window, offset int64, n int) (bool, error) {
	r, ours := local.(*region)
	w, theirs := remote.(*window)
	switch {
	case !ours || r.cache != c.e.cache || !theirs || len(w.keys) != int(c.address.ports):
		return false, fmt.Errorf("verbs: a %T of ours and a %T of rank %d's are not from this endpoint and its peer", local, remote, c.key.Peer)
	case n <= 0 || n > 1<<30 || at < 0 || at > r.bytes-int64(n) || offset < 0 || offset > w.bytes-int64(n):
		return false, fmt.Errorf("verbs: %d bytes at %d of %d and at %d of rank %d's %d", n, at, r.bytes, offset, c.key.Peer, w.bytes)
	case request.Op != ibv.Read && ((r.addr()+uint64(at))%8 != 0 || (w.addr+uint64(offset))%8 != 0):
		return false, fmt.Errorf("verbs: an atomic operation at %d and %d, want multiples of 8", at, offset)
	}
	o := &c.one
	if _, err := c.Performed(); err != nil {
		return false, err
	}
	if !c.ready() || c.park >= yielded || o.accepted-o.done == oneSidedMost {
		return false, nil
	}
	if o.accepted == o.done {
		o.by = c.link.speaker() // the last one may be gone
	}
	q := o.by
	if q.detour != nil {
		return false, c.link.hopeless()
	}
	if !q.room() {
		return false, nil
	}
	if request.Op != ibv.Read && !q.nic.limits.Atomics {
		return false, fmt.Errorf("verbs: %s has no atomic operations", q.nic)
	}
	if err := c.e.cache.hold(r.span); err != nil {
		return false, err
	}
	at += r.at
	request.Addr, request.Bytes, request.LKey = r.span.local(at), uint32(n), r.span.mrs[q.nic.index].LKey()
	request.Remote, request.RKey, request.Flags = w.addr+uint64(offset), w.keys[q.index%len(w.keys)], ibv.Signaled
	*q.next() = request
	o.under[o.accepted%oneSidedMost] = operation{q.posted + uint32(q.filled), r.span, at, int64(n)}
	o.accepted++
	c.used = c.e.tick
	c.flush()
	return true, nil
}

// hopeless is an error if there will never be a QP again, for all our devices have failed.
func (l *link) hopeless() (err error) {
	for _, q := range l.queues {
		if err = q.nic.failed(); err == nil {
			return nil
		}
	}
	return l.conn.wrap("one-sided operation", l.own(err))
}

// Performed is transport.OneSided.
func (c *conn) Performed() (uint64, error) {
	o := &c.one
	for o.done < o.accepted && o.err == nil && int32(o.by.done-o.under[o.done%oneSidedMost].position) >= 0 {
		op := o.under[o.done%oneSidedMost]
		if err := op.span.landed(op.at, op.bytes); err != nil {
			o.err = c.wrap("one-sided operation", fmt.Errorf("%d bytes arrived but are not in the memory of %v: %w", op.bytes, op.span.Device, err))
			break
		}
		c.e.cache.letGo(op.span)
		o.done++
	}
	switch {
	case o.err != nil:
	case c.lost != nil || c.closed:
		o.err = c.wrap("one-sided operation", fmt.Errorf("%w: of %d operations the outcome is unknown", c.reason(), o.accepted-o.done))
	case o.done < o.accepted && o.by.broken:
		o.err = c.wrap("one-sided operation", fmt.Errorf("%w: their QP has failed: of %d operations the outcome is unknown", transport.ErrGone, o.accepted-o.done))
	}
	return o.done, o.err
}

// drop ends the operations of a connection whose QPs are gone, and lets go of their memory.
func (c *conn) drop() {
	o := &c.one
	if _, err := c.Performed(); err == nil {
		return // it was never lost
	}
	for i := o.done; i < o.accepted; i++ {
		c.e.cache.letGo(o.under[i%oneSidedMost].span)
	}
	o.accepted = o.done
}
