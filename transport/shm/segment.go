//go:build linux && (amd64 || arm64)

package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

const (
	hugePage     = 2 << 20
	reservePiece = 8 << 20 // a signal undoes one fallocate; keep what that can cost small
	mostSegment  = 64 << 30
)

// segment is our own segment: its memory, its mapping, and which of its bytes are
// in use. The books are on the Go heap, where peers cannot write.
type segment struct {
	mapping
	fd   int
	page int64

	life     sync.RWMutex // read by who works on the file or the mapping, written by close
	mu       sync.Mutex
	free     extents
	given    []extent // what alloc gave out, in order
	detached extents  // of it: what is not the segment's any more
	reserved int64    // bytes in use, without given
	allotted int64    // bytes in given
	closed   bool
	staged   int64 // bytes of staging slots; the driver's alone
}

// segmentSize is how much address space to ask for: what the memory could hold, twice because of gaps, as far as the limits allow every peer's
// segment to be mapped too.
func segmentSize(config Config) (int64, error) {
	const unit = 2 << 20
	size := int64(mostSegment)
	if _, of := memory(); of > 0 {
		size = min(size, 2*of)
	}
	if config.SegmentSize > 0 {
		size = config.SegmentSize
	}
	size = max((size+unit-1)/unit*unit, leastSize)
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &r) == nil && r.Cur/64 < uint64(size) {
		size = max(int64(r.Cur/64)/unit*unit, leastSize)
	}
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &r) == nil && r.Cur < uint64(size) {
		if r.Cur < leastSize { // beyond it ftruncate is a fatal signal
			return 0, fmt.Errorf("the longest file may have %d bytes, want %d at least: raise ulimit -f", r.Cur, leastSize)
		}
		size = int64(r.Cur) / unit * unit
	}
	return size, nil
}

// newSegment makes and maps a segment of up to size bytes of address space, of
// which only the header is reserved.
func newSegment(size int64) (*segment, error) {
	s := &segment{page: int64(os.Getpagesize()), fd: -1}
	var err error
	for _, flags := range []int{unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING | unix.MFD_NOEXEC_SEAL, unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING} {
		if s.fd, err = unix.MemfdCreate(memoryName, flags); err != unix.EINVAL { // an older kernel does not know all flags
			break
		}
	}
	switch err {
	case nil:
	case unix.ENOMEM, unix.ENOSPC:
		return nil, memoryError("a segment", headerBytes, err)
	case unix.EPERM, unix.EACCES, unix.ENOSYS:
		return nil, fmt.Errorf("make memory to share: memfd_create: %w: allow that system call in the profile (seccomp) that the process runs under", err)
	default:
		return nil, fmt.Errorf("make memory to share: memfd_create: %w", err)
	}
	if err := s.init(size); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// memoryName is what /proc shows of a segment.
const memoryName = "gccl"

// seals let peers rely on the size of a segment.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

func (s *segment) init(size int64) error {
	// The lock is what peers know us alive by where the kernel has no pidfds.
	_ = unix.FcntlFlock(uintptr(s.fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: 1})
	for {
		err := unix.Ftruncate(s.fd, size)
		if err == nil {
			s.base, err = unix.MmapPtr(s.fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
		}
		if err == nil {
			break
		}
		if size/2 < leastSize {
			return fmt.Errorf("map %d bytes of memory to share (raise ulimit -v, or lower Config.SegmentSize): %w", size, err)
		}
		size /= 2
	}
	s.size = size
	if _, err := unix.FcntlInt(uintptr(s.fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal the size of memory to share: %w", err)
	}
	_ = unix.Madvise(s.bytes(0, size), unix.MADV_DONTDUMP)
	n := (headerBytes + s.page - 1) / s.page * s.page
	if err := s.fill(0, n, "a header"); err != nil {
		return err
	}
	s.reserved = n
	s.free.add(n, size)
	return nil
}

// enter keeps the file and the mapping from being closed until leave is called, unless they are. It is not to be called again before.
func (s *segment) enter() error {
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
		return fmt.Errorf("endpoint: %w", transport.ErrClosed)
	}
	return nil
}

func (s *segment) leave() { s.life.RUnlock() }

// take reserves n bytes, rounded up to pages and zero, at a multiple of align.
func (s *segment) take(n, align int64, what string) (int64, error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.leave()
	return s.reserve(n, align, what)
}

// reserve is take for who has entered.
func (s *segment) reserve(n, align int64, what string) (int64, error) {
	n = s.round(n)
	s.mu.Lock()
	off, ok := s.free.take(n, align)
	left := s.size - s.reserved - s.allotted
	s.mu.Unlock()
	if !ok {
		return 0, &SpaceError{For: what, Need: n, Free: left, Of: s.size, Err: fmt.Errorf("the segment's address space: %w: raise Config.SegmentSize or ulimit -v, or free memory from Alloc", unix.ENOSPC)}
	}
	if err := s.fill(off, n, what); err != nil {
		s.mu.Lock()
		s.free.add(off, off+n)
		s.mu.Unlock()
		return 0, err
	}
	s.mu.Lock()
	s.reserved += n
	s.mu.Unlock()
	return off, nil
}

// put gives n bytes at off back to the system.
func (s *segment) put(off, n int64) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return s.giveBack(off, n)
}

// giveBack is put for who has entered.
func (s *segment) giveBack(off, n int64) error {
	n = s.round(n)
	err := s.punch(off, n)
	s.mu.Lock()
	s.free.add(off, off+n)
	s.reserved -= n
	s.mu.Unlock()
	return err
}

func (s *segment) round(n int64) int64 { return (n + s.page - 1) / s.page * s.page }

// fill makes sure that the bytes are there and mapped, or leaves nothing.
func (s *segment) fill(off, n int64, what string) error {
	if n >= hugePage {
		// Huge pages come from faults in advised mappings only, never from
		// fallocate. That a fault finds no room is EFAULT here, no signal.
		_ = unix.Madvise(s.bytes(off, n), unix.MADV_HUGEPAGE)
		_ = unix.Madvise(s.bytes(off, n), unix.MADV_POPULATE_WRITE)
	}
	for at := off; at < off+n; at += reservePiece {
		var err error
		for {
			if err = unix.Fallocate(s.fd, 0, at, min(reservePiece, off+n-at)); err != unix.EINTR {
				break
			}
		}
		if err != nil {
			_ = s.punch(off, n) // first of all: we may hold all that the container has
			if err == unix.ENOSPC || err == unix.ENOMEM {
				return memoryError(what, n, err)
			}
			return fmt.Errorf("reserve %d bytes to share: %w", n, err)
		}
	}
	_ = unix.Madvise(s.bytes(off, n), unix.MADV_POPULATE_WRITE) // an old kernel faults the pages in later
	return nil
}

func (s *segment) punch(off, n int64) error {
	for {
		err := unix.Fallocate(s.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return fmt.Errorf("give %d shared bytes back: %w", n, err)
		}
	}
}

// announce changes what peers see when they look: call it after every change.
func (s *segment) announce() { atomic.AddUint64(&s.header().gen, 1) }

// close gives the memory back. Peers keep what they have mapped.
func (s *segment) close() error {
	s.life.Lock()
	defer s.life.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var err error
	if s.base != nil {
		err = unix.MunmapPtr(s.base, uintptr(s.size))
		s.base = nil
	}
	s.given = nil
	s.reserved, s.allotted = 0, 0
	return errors.Join(err, unix.Close(s.fd))
}
