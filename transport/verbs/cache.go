//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"golang.org/x/sys/unix"
)

// cache keeps the registrations of memory that the user registered, by range. A range is pinned when it is used, and stays so; where the
// device or the bound on pinned memory has no room for one more, those that were used longest ago and that nobody holds are let go, to be
// pinned again when they are used again. So what is registered may be more than what can be pinned at once.
//
// A pinned range is not inherited by a forked child, whose copy-on-write would part us from the pages that the device has.
type cache struct {
	pins func(addr uintptr, bytes int64) ([]registered, error) // registers with all devices, or with none
	most int64                                                 // bytes pinned at once; 0: no bound but the system's

	mu     sync.Mutex // guards what follows and all spans
	spans  []*span    // by address
	pinned int64
	clock  uint64
}

// registered is an *ibv.MR.
type registered interface {
	LKey() uint32
	RKey() uint32
	Close() error
}

// span is a range of memory.
type span struct {
	addr   uintptr
	bytes  int64
	memory []byte
	shares int // Register that were not closed
	holds  int // operations under way, and tokens
	used   uint64
	mrs    []registered // by NIC; nil: not pinned
}

func newCache(nics []*nic, most int64) *cache {
	return &cache{most: most, pins: func(addr uintptr, bytes int64) (all []registered, err error) {
		for _, n := range nics {
			access := ibv.LocalWrite | ibv.RemoteWrite | ibv.RemoteRead | ibv.RelaxedOrdering
			if n.limits.Atomics {
				access |= ibv.RemoteAtomic
			}
			mr, err := n.pd.Register(addr, int(bytes), access)
			if err != nil {
				for _, mr := range all {
					err = errors.Join(err, mr.Close())
				}
				return nil, n.explain(fmt.Errorf("register %d bytes: %w", bytes, err))
			}
			all = append(all, mr)
		}
		return all, nil
	}}
}

// find returns the place of the first span that ends behind addr.
func (c *cache) find(addr uintptr) int {
	i, _ := slices.BinarySearchFunc(c.spans, addr, func(s *span, addr uintptr) int {
		if s.addr+uintptr(s.bytes) <= addr {
			return -1
		}
		return 1
	})
	return i
}

func addressIn(memory []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(memory))) }

// declare makes a range known, and pins it for a first time, so that who cannot is told at once.
func (c *cache) declare(memory []byte) (*span, error) {
	addr, bytes, page := addressIn(memory), int64(len(memory)), uintptr(unix.Getpagesize())
	if bytes == 0 || addr%page != 0 || uintptr(bytes)%page != 0 {
		return nil, fmt.Errorf("verbs: register %d bytes at %#x, want whole pages of %d: the rest of a page would not be inherited by a forked child", bytes, addr, page)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.find(addr)
	if i < len(c.spans) && c.spans[i].addr < addr+uintptr(bytes) {
		s := c.spans[i]
		if s.addr > addr || s.addr+uintptr(s.bytes) < addr+uintptr(bytes) {
			return nil, fmt.Errorf("verbs: register %d bytes at %#x, of which a part is registered already, %d bytes at %#x: close that first", bytes, addr, s.bytes, s.addr)
		}
		s.shares++
		return s, nil
	}
	s := &span{addr: addr, bytes: bytes, memory: memory, shares: 1}
	if err := c.pin(s); err != nil {
		return nil, err
	}
	c.spans = slices.Insert(c.spans, i, s)
	return s, nil
}

// pin registers a span if it is not, and makes room for it. c.mu is held.
func (c *cache) pin(s *span) error {
	c.clock++
	s.used = c.clock
	if s.mrs != nil {
		return nil
	}
	for c.most > 0 && c.pinned+s.bytes > c.most {
		if evicted, err := c.evict(); err != nil {
			return err
		} else if !evicted {
			return fmt.Errorf("%w: verbs: pin %d bytes: %d are in use, and at most %d may be (memory.pool_size_gb)", transport.ErrSpace, s.bytes, c.pinned, c.most)
		}
	}
	if err := unix.Madvise(s.memory, unix.MADV_DONTFORK); err != nil {
		return fmt.Errorf("verbs: keep %d bytes at %#x from children: %w: is that memory mapped?", s.bytes, s.addr, err)
	}
	for {
		mrs, err := c.pins(s.addr, s.bytes)
		if err == nil {
			s.mrs = mrs
			c.pinned += s.bytes
			return nil
		}
		evicted := false
		if errors.Is(err, syscall.ENOMEM) {
			var failed error
			evicted, failed = c.evict()
			err = errors.Join(err, failed)
		}
		if !evicted {
			return errors.Join(err, unix.Madvise(s.memory, unix.MADV_DOFORK))
		}
	}
}

// evict lets the span go that was used longest ago of those that nobody holds. c.mu is held.
func (c *cache) evict() (bool, error) {
	var oldest *span
	for _, s := range c.spans {
		if s.mrs != nil && s.holds == 0 && (oldest == nil || s.used < oldest.used) {
			oldest = s
		}
	}
	if oldest == nil {
		return false, nil
	}
	return true, c.unpin(oldest)
}

// unpin takes a span from the devices. c.mu is held.
func (c *cache) unpin(s *span) error {
	if s.mrs == nil {
		return nil
	}
	for _, mr := range s.mrs {
		if err := mr.Close(); err != nil {
			return fmt.Errorf("verbs: %w", err)
		}
	}
	s.mrs = nil
	c.pinned -= s.bytes
	if err := unix.Madvise(s.memory, unix.MADV_DOFORK); err != nil {
		return fmt.Errorf("verbs: give %d bytes at %#x back to children: %w", s.bytes, s.addr, err)
	}
	return nil
}

// hold pins a span until as many let go of it.
func (c *cache) hold(s *span) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.shares == 0 {
		return fmt.Errorf("%w: the region was closed", transport.ErrClosed)
	}
	if err := c.pin(s); err != nil {
		return err
	}
	s.holds++
	return nil
}

func (c *cache) letGo(s *span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.holds--
}

// withdraw ends a share of a span, of which the caller holds so many tokens, and with the last share its registration.
func (c *cache) withdraw(s *span, tokens int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.shares == 1 && s.holds > tokens {
		return fmt.Errorf("verbs: close a region of %d bytes: %d operations use it: wait for them first", s.bytes, s.holds-tokens)
	}
	s.shares, s.holds = s.shares-1, s.holds-tokens
	if s.shares > 0 {
		return nil
	}
	c.spans = slices.DeleteFunc(c.spans, func(x *span) bool { return x == s })
	return c.unpin(s)
}

// close takes everything from the devices.
func (c *cache) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, s := range c.spans {
		s.shares = 0
		errs = append(errs, c.unpin(s))
	}
	c.spans = nil
	return errors.Join(errs...)
}
