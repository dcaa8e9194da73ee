//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// publish puts a connection into our directory, which grows if it must. Where its pieces are it knows by heart: peers can write to the header.
func (e *Endpoint) publish(k transport.Key) (*entry, uint64, error) {
	h := e.seg.header()
	hash := hashKey(k, k.Self, k.Peer)
	for i := range pieces {
		if e.piece[i] == 0 {
			n := int64(pieceEntries << i * entryBytes)
			off, err := e.seg.take(n, e.seg.page, "the directory of connections")
			if err != nil {
				atomic.StoreUint32(&h.full, 1)
				e.seg.announce()
				return nil, 0, err
			}
			e.piece[i] = off
			atomic.StoreUint64(&h.piece[i], uint64(off))
		}
		var free *entry
		slots(e.seg.at(e.piece[i]), i, hash, func(x *entry) bool {
			if x.state == entryFree {
				free = x
			}
			return free == nil
		})
		if free == nil {
			continue
		}
		e.nextID++
		atomic.StoreUint64(&free.id, e.nextID)
		free.becomes(k)
		atomic.StoreUint64(&free.ring, 0)
		atomic.StoreUint64(&free.ack, 0)
		atomic.StoreUint64(&free.state, entryOpen)
		return free, e.nextID, nil
	}
	atomic.StoreUint32(&h.full, 1)
	e.seg.announce()
	return nil, 0, &SpaceError{For: fmt.Sprintf("one more connection besides %d", len(e.conns)), Need: entryBytes, Err: fmt.Errorf("the directory of connections: %w: close some", unix.ENOSPC)}
}

// slab is memory for the rings of several connections: all rings of an endpoint
// have the same size, and most are much smaller than a page.
type slab struct {
	off, bytes int64
	used       []bool
	count      int
}

func (e *Endpoint) ringBytes() int64 { return e.seg.ringsBytes(e.opts.Streams) }

// takeRing returns the offset of fresh rings.
func (e *Endpoint) takeRing() (int64, error) {
	n := e.ringBytes()
	for _, s := range e.slabs {
		for i, used := range s.used {
			if !used {
				s.used[i] = true
				s.count++
				return s.off + int64(i)*n, nil
			}
		}
	}
	bytes := e.seg.round(max(n, 8<<10))
	off, err := e.seg.take(bytes, e.seg.page, "the lines of a connection")
	if err != nil {
		return 0, err
	}
	s := &slab{off: off, bytes: bytes, used: make([]bool, bytes/n), count: 1}
	s.used[0] = true
	e.slabs = append(e.slabs, s)
	return off, nil
}

// putRing is the inverse of takeRing.
func (e *Endpoint) putRing(off int64) {
	for i, s := range e.slabs {
		if off < s.off || off >= s.off+s.bytes {
			continue
		}
		s.used[(off-s.off)/e.ringBytes()] = false
		if s.count--; s.count == 0 {
			e.slabs = append(e.slabs[:i], e.slabs[i+1:]...)
			_ = e.seg.put(s.off, s.bytes) // it goes with Close at the latest
		}
		return
	}
}
