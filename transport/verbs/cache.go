//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// cache keeps the registrations of memory that the user registered, by range. A range is pinned when it is used, and stays so; where the
// device or the bound on pinned memory has no room for one more, those that were used longest ago and that nobody holds are let go, to be
// pinned again when they are used again. So what is registered may be more than what can be pinned at once.
//
// A pinned range of the host's is not inherited by a forked child, whose copy-on-write would part us from the pages that the device has.
type cache struct {
	pins func(s *span) ([]registered, error) // registers with all devices, or with none
	most int64                               // bytes pinned at once; 0: no bound but the system's
	gpus []GPU

	mu     sync.Mutex // guards what follows and all spans
	spans  []*span    // by address; those of a GPU may overlap
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
	kernels.Mem
	gpu    GPU          // nil: the host's memory
	shares int          // Register that were not closed
	holds  atomic.Int64 // operations and loans under way, and tokens; taken under cache.mu
	used   uint64
	mrs    []registered // by NIC; nil: not pinned
	stuck  bool         // only those are left that a device did not give up
	stages bool         // a GPU's memory is not to be registered where it is: there was no room, nor anything that could give way
	bounce []byte       // pinned instead, where the devices do not get at a GPU's memory
	way    string       // how they do, with reasons
}

func (s *span) addr() uintptr { return uintptr(s.Ptr) }
func (s *span) end() uintptr  { return s.addr() + uintptr(s.Bytes) }

// has reports whether all of m is in the span.
func (s *span) has(m kernels.Mem) bool {
	at := uintptr(m.Ptr)
	return s.Device == m.Device && s.addr() <= at && at < s.end() && uintptr(m.Bytes) <= s.end()-at
}

// host is a span of the host's as bytes.
func (s *span) host() []byte { return unsafe.Slice((*byte)(s.Ptr), s.Bytes) }

// local is where the devices find what is at an offset.
func (s *span) local(offset int64) uint64 {
	if s.bounce != nil {
		return uint64(addressIn(s.bounce)) + uint64(offset)
	}
	return uint64(s.addr()) + uint64(offset)
}

// landed makes what the devices wrote at an offset the memory's, where who uses that sees it.
func (s *span) landed(offset, bytes int64) error {
	switch {
	case s.gpu == nil:
		return nil
	case s.bounce != nil:
		return s.gpu.CopyNow(unsafe.Add(s.Ptr, offset), unsafe.Pointer(&s.bounce[offset]), bytes)
	}
	return s.gpu.FlushWrites()
}

func newCache(nics []*nic, c Config) *cache {
	r := registry{nics: nics, log: c.Log, told: map[string]bool{}}
	return &cache{most: c.Pool, gpus: c.GPUs, pins: r.register}
}

// find returns the place of the first span that ends behind addr.
func (c *cache) find(addr uintptr) int {
	i, _ := slices.BinarySearchFunc(c.spans, addr, func(s *span, addr uintptr) int {
		if s.end() <= addr {
			return -1
		}
		return 1
	})
	return i
}

func addressIn(memory []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(memory))) }

// declare makes a range known, and pins it for a first time, so that who cannot is told at once.
func (c *cache) declare(m kernels.Mem) (*span, error) {
	s := &span{Mem: m, shares: 1}
	var err error
	if m.Device.IsHost() {
		page := uintptr(unix.Getpagesize())
		if m.Ptr == nil || m.Bytes <= 0 || s.end() < s.addr() || uintptr(m.Ptr)%page != 0 || uintptr(m.Bytes)%page != 0 {
			return nil, fmt.Errorf("verbs: register %d bytes at %p, want whole pages of %d: the rest of a page would not be inherited by a forked child", m.Bytes, m.Ptr, page)
		}
	} else if s.gpu, s.Mem, err = c.widen(m); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.find(s.addr())
	if s.gpu != nil {
		if k := slices.IndexFunc(c.spans, func(have *span) bool { return have.has(m) }); k >= 0 {
			c.spans[k].shares++
			return c.spans[k], nil
		}
	} else if i < len(c.spans) && c.spans[i].addr() < s.end() {
		have := c.spans[i]
		if !have.has(m) {
			return nil, fmt.Errorf("verbs: register %d bytes at %p, of which a part is registered already, %d bytes at %p: close that first", m.Bytes, m.Ptr, have.Bytes, have.Ptr)
		}
		have.shares++
		return have, nil
	}
	if err := c.pin(s); err != nil {
		return nil, err
	}
	c.spans = slices.Insert(c.spans, i, s)
	return s, nil
}

// gpuPage is what GPU memory is mapped for other devices by, so that less would not be cheaper.
const gpuPage = 2 << 20

// widen returns the GPU that the memory is on, and as much of the allocation around it as there is in whole pages of the GPU's.
func (c *cache) widen(m kernels.Mem) (GPU, kernels.Mem, error) {
	k := slices.IndexFunc(c.gpus, func(g GPU) bool { return g.Device() == m.Device })
	if k < 0 {
		return nil, m, fmt.Errorf("verbs: register %d bytes on %v: the endpoint was opened without that GPU (Config.GPUs): %w", m.Bytes, m.Device, errors.ErrUnsupported)
	}
	if m.Bytes <= 0 {
		return nil, m, fmt.Errorf("verbs: register %d bytes at %p on %v, want at least one", m.Bytes, m.Ptr, m.Device)
	}
	all, err := c.gpus[k].Allocation(m)
	if err != nil {
		return nil, m, fmt.Errorf("verbs: register %d bytes: %w", m.Bytes, err)
	}
	at, page := uintptr(m.Ptr), uintptr(unix.Getpagesize())
	first := max(uintptr(all.Ptr), at&^(gpuPage-1))
	end := min((uintptr(all.Ptr)+uintptr(all.Bytes)+page-1)&^(page-1), (at+uintptr(m.Bytes)+gpuPage-1)&^(gpuPage-1))
	return c.gpus[k], kernels.Mem{Ptr: unsafe.Add(m.Ptr, -int(at-first)), Bytes: int64(end - first), Device: m.Device}, nil
}

// pin registers a span if it is not, and makes room for it. c.mu is held.
func (c *cache) pin(s *span) error {
	c.clock++
	s.used = c.clock
	if s.stuck {
		if err := c.unpin(s); err != nil {
			return err
		}
	}
	if s.mrs != nil {
		return nil
	}
	for c.most > 0 && c.pinned+s.Bytes > c.most {
		if evicted, err := c.evict(); err != nil {
			return err
		} else if !evicted {
			return fmt.Errorf("%w: verbs: pin %d bytes: %d are in use, and at most %d may be (memory.pool_size_gb)", transport.ErrSpace, s.Bytes, c.pinned, c.most)
		}
	}
	if s.gpu == nil {
		if err := unix.Madvise(s.host(), unix.MADV_DONTFORK); err != nil {
			return fmt.Errorf("verbs: keep %d bytes at %p from children: %w: is that memory mapped?", s.Bytes, s.Ptr, err)
		}
	}
	for s.stages = false; ; {
		mrs, err := c.pins(s)
		if err == nil {
			s.mrs = mrs
			c.pinned += s.Bytes
			return nil
		}
		evicted := false
		if errors.Is(err, syscall.ENOMEM) {
			var failed error
			evicted, failed = c.evict()
			err = errors.Join(err, failed)
			if !evicted && failed == nil && s.gpu != nil && !s.stages {
				s.stages = true
				continue
			}
		}
		if !evicted {
			return errors.Join(err, s.free())
		}
	}
}

// evict lets the span go that was used longest ago of those that nobody holds. c.mu is held.
func (c *cache) evict() (bool, error) {
	var oldest *span
	for _, s := range c.spans {
		if s.mrs != nil && s.holds.Load() == 0 && (oldest == nil || s.used < oldest.used) {
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
	var err error
	s.mrs, err = deregister(s.mrs)
	if s.stuck = err != nil; s.stuck {
		return err
	}
	c.pinned -= s.Bytes
	return s.free()
}

// free undoes what was done for memory that no device has any more.
func (s *span) free() error {
	if b := s.bounce; b != nil {
		s.bounce = nil
		return unix.Munmap(b)
	}
	if s.gpu != nil {
		return nil
	}
	if err := unix.Madvise(s.host(), unix.MADV_DOFORK); err != nil {
		return fmt.Errorf("verbs: give %d bytes at %p back to children: %w", s.Bytes, s.Ptr, err)
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
	s.holds.Add(1)
	return nil
}

// lend is hold of the registered span of the host's that has all of the n bytes at p, or nil: there is none, or it cannot be pinned now.
// It does not wait for others that register memory, which takes long.
func (c *cache) lend(p unsafe.Pointer, n int64) *span {
	if !c.mu.TryLock() {
		return nil
	}
	defer c.mu.Unlock()
	s := c.around(p, n)
	if s == nil || c.pin(s) != nil {
		return nil
	}
	s.holds.Add(1)
	return s
}

// owns reports whether all of the n bytes of the host's at p are registered.
func (c *cache) owns(p unsafe.Pointer, n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.around(p, n) != nil
}

// around returns the span of the host's that has all of the n bytes at p, or nil. c.mu is held.
func (c *cache) around(p unsafe.Pointer, n int64) *span {
	i := c.find(uintptr(p))
	if i == len(c.spans) || !c.spans[i].has(kernels.Mem{Ptr: p, Bytes: n}) {
		return nil
	}
	return c.spans[i]
}

// letGo may be called while others register memory.
func (c *cache) letGo(s *span) { s.holds.Add(-1) }

// withdraw ends a share of a span, of which the caller holds so many tokens, and with the last share its registration.
func (c *cache) withdraw(s *span, tokens int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if holds := s.holds.Load() - int64(tokens); s.shares == 1 && holds > 0 {
		return fmt.Errorf("verbs: close a region of %d bytes: %d operations use it: wait for them first", s.Bytes, holds)
	}
	s.shares--
	s.holds.Add(-int64(tokens))
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
