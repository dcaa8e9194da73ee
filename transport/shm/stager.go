//go:build linux && (amd64 || arm64)

package shm

import (
	"unsafe"

	"github.com/gccl-project/gccl/transport"
)

var _ transport.Stager = (*stream)(nil)

// Stage returns a slot for the next message. See transport.Stager.
func (s *stream) Stage(n int) unsafe.Pointer {
	t := &s.tx
	if t.short == 0 || n <= t.ring.inline() || n > s.c.e.opts.MaxMessage {
		return nil
	}
	if full, err := t.full(1); full || err != nil {
		return nil // Send will say what is wrong
	}
	off, err := t.stage(s.c.e, n, false)
	if err != nil {
		return nil // Send will say what is wrong, if it lasts
	}
	t.staged, t.lands = off, false
	return s.c.e.seg.at(off)
}

// Fill copies into a slot or lent memory. See transport.Stager.
func (s *stream) Fill(dst, src unsafe.Pointer, n int) { s.c.p.puts.copy(dst, src, n) }

// Lends reports whether shared memory is lent. See transport.Stager. Now and then it is not, since copies alone tell how far the peer is.
func (s *stream) Lends(n int) bool {
	return n >= s.c.e.config.LendFrom && !s.c.p.puts.wantsCopy() && (n >= lendFar || !s.c.p.puts.far)
}

// lendFar is the shortest message that is lent to a distant processor: what we have just written it has to fetch from our caches, while copying past
// them is fast. From here on both take about as long, and lending spares memory.
const lendFar = 64 << 10

// FillsLent reports whether streaming stores are better, or may be. See transport.Stager.
func (s *stream) FillsLent() bool { return s.c.p.puts.wantsFill() }

// SendStaged sends what Stage returned. See transport.Stager.
func (s *stream) SendStaged(tag uint32, n int) error {
	t := &s.tx
	if s.err != nil {
		return s.err
	}
	p := t.ring.line(t.seq)
	*(*uint64)(unsafe.Add(unsafe.Pointer(p), inlineAt)) = uint64(t.staged)
	meta := uint64(n) | farBit | s.rx.ack() // with checksums nothing is staged
	if t.lands {
		meta |= landedBit
	}
	*(*uint64)(unsafe.Add(unsafe.Pointer(p), 8)) = meta
	t.lent[t.seq%ringLines] = false
	t.publish(p, tag, n)
	return nil
}
