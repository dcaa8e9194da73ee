//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// arena is memory that was mapped for the user and registered.
type arena struct {
	mu     sync.Mutex // guards what follows
	given  map[unsafe.Pointer]allocation
	bytes  int64
	closed bool
}

type allocation struct {
	memory []byte
	region transport.Region // nil: it could not be registered
}

// Alloc is transport.Allocator: messages are read where they lie in such memory, and in all that is registered. What cannot be registered is
// memory like any other.
func (e *endpoint) Alloc(n int64) (unsafe.Pointer, error) {
	page := int64(unix.Getpagesize())
	if n <= 0 || n > math.MaxInt-page {
		return nil, fmt.Errorf("verbs: allocate %d bytes, want at least one and an address space that has them", n)
	}
	a := &e.arena
	if a.over() {
		return nil, fmt.Errorf("verbs: allocate: %w", transport.ErrClosed)
	}
	b, err := unix.Mmap(-1, 0, int((n+page-1)/page*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("%w: verbs: map %d bytes: %w", transport.ErrSpace, n, err)
	}
	r, err := e.Register(kernels.MemOf(b))
	if err != nil {
		e.config.Log.Warn("verbs: messages from allocated memory are copied, for it cannot be registered", "bytes", n, "reason", err)
		r = nil
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, errors.Join(fmt.Errorf("verbs: allocate: %w", transport.ErrClosed), unix.Munmap(b))
	}
	if a.given == nil {
		a.given = map[unsafe.Pointer]allocation{}
	}
	a.given[p] = allocation{b, r}
	a.bytes += int64(len(b))
	return p, nil
}

// Free is transport.Allocator.
func (e *endpoint) Free(p unsafe.Pointer) error {
	a := &e.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	given, ok := a.given[p]
	if !ok {
		return fmt.Errorf("verbs: free %p, which Alloc did not return", p)
	}
	if given.region != nil {
		if err := given.region.Close(); err != nil {
			return err
		}
	}
	delete(a.given, p)
	a.bytes -= int64(len(given.memory))
	return unix.Munmap(given.memory)
}

// Owns is transport.Allocator.
func (e *endpoint) Owns(p unsafe.Pointer, n int64) bool { return e.cache.owns(p, n) }

// over reports whether the endpoint was closed.
func (a *arena) over() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.closed
}

// allocated is how many bytes Alloc has given out.
func (a *arena) allocated() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

// close unmaps what was not freed, once no device has it.
func (a *arena) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	var errs []error
	for _, given := range a.given {
		errs = append(errs, unix.Munmap(given.memory))
	}
	a.given, a.bytes = nil, 0
	return errors.Join(errs...)
}
