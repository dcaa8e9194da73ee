//go:build linux && (amd64 || arm64)

package shm

import (
	"cmp"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// alloc gives out zeroed memory, whole pages, and huge ones from 2 MiB on where
// the kernel has them for shared memory.
func (s *segment) alloc(n int64) (unsafe.Pointer, error) {
	if n < 1 || n > s.size {
		return nil, fmt.Errorf("shm: Alloc of %d bytes, want 1 to %d", n, s.size)
	}
	n = s.round(n)
	align := s.page
	if n >= hugePage {
		align = hugePage
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	off, err := s.reserve(n, align, "Alloc")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given = slices.Insert(s.given, s.indexGiven(off), extent{off, off + n})
	s.reserved -= n
	s.allotted += n
	return s.at(off), nil
}

// release is the inverse of alloc.
func (s *segment) release(p unsafe.Pointer) error {
	if err := s.enter(); err != nil {
		return fmt.Errorf("shm: Free: %w", err)
	}
	defer s.leave()
	s.mu.Lock()
	off, inside := s.offset(p, 0)
	i := s.indexGiven(off)
	if !inside || i == len(s.given) || s.given[i].lo != off {
		s.mu.Unlock()
		return fmt.Errorf("shm: Free of %p, which Alloc of this endpoint did not return or which is free already", p)
	}
	n := s.given[i].hi - off
	s.given = slices.Delete(s.given, i, i+1)
	s.allotted -= n
	s.reserved += n
	left := s.detached.touch(off, off+n)
	s.mu.Unlock()
	if left { // a peer may still write to the file there
		return nil
	}
	return s.giveBack(off, n)
}

// detach puts other memory in the place of n bytes at off, whole pages that alloc gave out, so that nobody else writes there any more. What
// they held is lost. They are never shared or given out again.
func (s *segment) detach(off, n int64) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := unix.MmapPtr(-1, 0, s.at(off), uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED)
	if err != nil {
		return fmt.Errorf("map %d bytes over the segment: %w", n, err)
	}
	s.detached.add(off, off+n)
	return nil
}

// owns reports whether the n bytes at p lie in one piece that alloc gave out.
func (s *segment) owns(p unsafe.Pointer, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	off, inside := s.offset(p, 0)
	if s.closed || !inside || n < 0 {
		return false
	}
	i := s.indexGiven(off + 1)
	return i > 0 && off < s.given[i-1].hi && n <= s.given[i-1].hi-off && !s.detached.touch(off, off+n)
}

// indexGiven returns the number of pieces that begin before off.
func (s *segment) indexGiven(off int64) int {
	i, _ := slices.BinarySearchFunc(s.given, off, func(e extent, off int64) int { return cmp.Compare(e.lo, off) })
	return i
}
