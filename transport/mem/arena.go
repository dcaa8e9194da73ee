package mem

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
)

const (
	page = 4096
	most = 64 << 30 // bytes of one allocation
)

// arena is the memory that an endpoint lends out. It is Go memory: kept from the
// collector while allocated here.
type arena struct {
	mu     sync.RWMutex
	blocks []block // by address
	total  int64
	closed bool
}

type block struct {
	start uintptr
	n     int64
	whole []byte // holds the block and what aligns it
}

func (e *endpoint) Alloc(n int64) (unsafe.Pointer, error) {
	a := &e.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, fmt.Errorf("mem: cannot allocate %d bytes: %w", n, transport.ErrClosed)
	}
	if n < 1 || n > most {
		return nil, fmt.Errorf("mem: cannot allocate %d bytes, want 1 to %d: %w", n, int64(most), transport.ErrSpace)
	}
	whole := make([]byte, n+page-1)
	p := unsafe.Pointer(&whole[0])
	p = unsafe.Add(p, (page-uintptr(p)%page)%page)
	b := block{start: uintptr(p), n: n, whole: whole}
	at, _ := a.find(b.start)
	a.blocks = slices.Insert(a.blocks, at, b)
	a.total += n
	return p, nil
}

// find returns the place of the block that starts at start, or where it would be.
func (a *arena) find(start uintptr) (int, bool) {
	return slices.BinarySearchFunc(a.blocks, start, func(b block, s uintptr) int {
		switch {
		case b.start < s:
			return -1
		case b.start > s:
			return 1
		}
		return 0
	})
}

func (e *endpoint) Free(p unsafe.Pointer) error {
	a := &e.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.find(uintptr(p))
	if !ok {
		return fmt.Errorf("mem: cannot free %p: it was not allocated here, or was freed already", p)
	}
	a.total -= a.blocks[at].n
	a.blocks = slices.Delete(a.blocks, at, at+1)
	return nil
}

func (e *endpoint) Owns(p unsafe.Pointer, n int64) bool { return e.arena.owns(p, n) }

func (a *arena) owns(p unsafe.Pointer, n int64) bool {
	if p == nil || n < 0 {
		return false
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	at, exact := a.find(uintptr(p))
	if !exact {
		at--
	}
	if at < 0 {
		return false
	}
	b := a.blocks[at]
	offset := int64(uintptr(p) - b.start)
	return offset < b.n && n <= b.n-offset
}

func (a *arena) bytes() int64 {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.total
}

func (a *arena) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.blocks, a.total, a.closed = nil, 0, true
}
