//go:build linux && (amd64 || arm64)

package shm

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

const (
	hugePage     = 2 << 20
	reservePiece = 8 << 20 // a signal undoes one fallocate; keep what that can cost small
)

// segment is our own segment: its file, its mapping, and which of its bytes are
// in use. The books are on the Go heap, where peers cannot write.
type segment struct {
	mapping
	path string
	fd   int
	page int64

	mu       sync.Mutex
	free     extents
	given    []extent // what alloc gave out, in order
	detached extents  // of it: what is not the file's any more
	reserved int64    // bytes in use, without given
	allotted int64    // bytes in given
	unlinked bool
	closed   bool
	staged   int64 // bytes of staging slots; the driver's alone
}

// segmentSize is how much address space to ask for: what the file system could
// hold, twice because of gaps, as far as the limits allow every peer's segment
// to be mapped too.
func segmentSize(config Config) (int64, error) {
	const unit = 2 << 20
	size := int64(64 << 30)
	var fs unix.Statfs_t
	if unix.Statfs(config.Dir, &fs) == nil && fs.Blocks > 0 && fs.Blocks < math.MaxInt64/uint64(fs.Bsize)/2 {
		size = min(size, 2*int64(fs.Blocks)*fs.Bsize)
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
func newSegment(dir string, size int64, n name) (*segment, error) {
	s := &segment{page: int64(os.Getpagesize()), fd: -1}
	var err error
	for range 16 {
		n.random = rand.Uint64()
		s.path = filepath.Join(dir, n.String())
		s.fd, err = unix.Open(s.path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
		if err != unix.EEXIST && err != unix.EINTR {
			break
		}
	}
	if err != nil {
		if err == unix.ENOSPC || err == unix.EDQUOT {
			return nil, s.spaceError("a new file", headerBytes, err)
		}
		return nil, fmt.Errorf("create %s: %w", s.path, err)
	}
	if err := s.init(size); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *segment) init(size int64) error {
	// The lock is what peers in other pid namespaces know us alive by. Where the
	// file system has none, they just do not know.
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
			return fmt.Errorf("map %d bytes of %s: %w", size, s.path, err)
		}
		size /= 2
	}
	s.size = size
	_ = unix.Madvise(s.bytes(0, size), unix.MADV_DONTDUMP)
	n := (headerBytes + s.page - 1) / s.page * s.page
	if err := s.fill(0, n, "a header"); err != nil {
		return err
	}
	s.reserved = n
	s.free.add(n, size)
	return nil
}

// take reserves n bytes, rounded up to pages and zero, at a multiple of align.
func (s *segment) take(n, align int64, what string) (int64, error) {
	n = s.round(n)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return 0, fmt.Errorf("%s: %w", s.path, transport.ErrClosed)
	}
	off, ok := s.free.take(n, align)
	s.mu.Unlock()
	if !ok {
		return 0, s.spaceError(what, n, fmt.Errorf("the segment has %d bytes of address space (Config.SegmentSize, ulimit -v): %w", s.size, unix.ENOSPC))
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

// put gives n bytes at off back to the file system.
func (s *segment) put(off, n int64) error {
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
			space := s.spaceError(what, n, err)
			_ = s.punch(off, n)
			if err == unix.ENOSPC || err == unix.EDQUOT || err == unix.ENOMEM || err == unix.EFBIG {
				return space
			}
			return fmt.Errorf("reserve %d bytes of %s: %w", n, s.path, err)
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
			return fmt.Errorf("give %d bytes of %s back: %w", n, s.path, err)
		}
	}
}

func (s *segment) spaceError(what string, need int64, err error) error {
	e := &SpaceError{Path: s.path, For: what, Need: need, Err: err}
	var fs unix.Statfs_t
	if unix.Statfs(filepath.Dir(s.path), &fs) == nil {
		e.Free, e.Of = int64(fs.Bavail)*fs.Bsize, int64(fs.Blocks)*fs.Bsize
	}
	return e
}

// announce changes what peers see when they look: call it after every change.
func (s *segment) announce() { atomic.AddUint64(&s.header().gen, 1) }

func (s *segment) unlink() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unlinked {
		return nil
	}
	s.unlinked = true
	if err := unix.Unlink(s.path); err != nil && err != unix.ENOENT {
		return fmt.Errorf("remove %s: %w", s.path, err)
	}
	return nil
}

// close removes the file and the mapping. Peers keep what they have mapped.
func (s *segment) close() error {
	err := s.unlink()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return err
	}
	s.closed = true
	if s.base != nil {
		err = errors.Join(err, unix.MunmapPtr(s.base, uintptr(s.size)))
		s.base = nil
	}
	s.given = nil
	s.reserved, s.allotted = 0, 0
	return errors.Join(err, unix.Close(s.fd))
}
