//go:build linux && (amd64 || arm64)

package shm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// peer is another endpoint whose segment we have mapped.
type peer struct {
	mapping
	address *address
	pidfd   int // readable when the process is dead; -1: where the kernel has none, the lock of fd tells
	fd      int

	// The driver's:
	known extents // pages that were found there
	conns []*conn
	gone  error // the process is dead, or the endpoint was closed and the peer is buried
	puts  puts
}

// reach gets, proves and maps the peer's segment.
func reach(ctx context.Context, own *Endpoint, a *address) (*peer, error) {
	if ok, why := SameHost(own.address.identity, a.identity); !ok {
		return nil, errors.New(why)
	}
	h, err := meet(ctx, own, a)
	if err != nil {
		return nil, err
	}
	p := &peer{address: a, pidfd: h.process, fd: h.memory}
	if err := p.attach(own); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// meet asks at the peer's door, at the path that it has there or, where the same file system is mounted elsewhere here, in our own directory.
func meet(ctx context.Context, own *Endpoint, a *address) (handed, error) {
	dir, ours, theirs, another := filepath.Dir(own.door.path), own.address.identity, a.identity, false
	for _, path := range []string{a.path, filepath.Join(dir, filepath.Base(a.path))} {
		h, err := knock(ctx, path)
		switch {
		case err == nil:
			if found, err := readHeader(h.memory); err == nil && found.magic == segmentMagic && found.nonce == a.nonce {
				return h, nil
			}
			h.close()
			another = true
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, fs.ErrInvalid):
		case errors.Is(err, unix.ECONNREFUSED):
			return h, fmt.Errorf("nobody listens at %s any more: process %d is dead: %w", path, a.pid, transport.ErrGone)
		case errors.Is(err, fs.ErrPermission):
			return h, fmt.Errorf("permission denied: connect to %s as user %d: run ranks that share a host as one user: %w", path, os.Geteuid(), err)
		default:
			return h, fmt.Errorf("ask process %d for its memory at %s: %w", a.pid, path, err)
		}
	}
	if !another && ours.ShmDevice != "" && ours.ShmDevice == theirs.ShmDevice && ours.BootID == theirs.BootID {
		return handed{-1, -1}, fmt.Errorf("process %d is not at %s any more (nonce not found), and device %s is the same here and there: "+
			"it has closed its endpoint, or lets no more peers in; else it means another directory of that device", a.pid, a.path, ours.ShmDevice)
	}
	return handed{-1, -1}, fmt.Errorf("no shared %s (nonce not found): device %s here, %s at the peer", dir, ours.ShmDevice, theirs.ShmDevice)
}

// readHeader reads the part of the header that does not change.
func readHeader(fd int) (*header, error) {
	h := new(header)
	b := unsafe.Slice((*byte)(unsafe.Pointer(h)), unsafe.Offsetof(h.piece))
	n, err := unix.Pread(fd, b, 0)
	if err == nil && n < len(b) {
		err = fs.ErrInvalid
	}
	return h, err
}

func (p *peer) attach(own *Endpoint) error {
	h, err := readHeader(p.fd)
	if err != nil {
		return fmt.Errorf("read the memory of process %d: %w", p.address.pid, err)
	}
	if err := h.agrees(own.opts, p.address); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(p.fd, &st); err != nil {
		return fmt.Errorf("stat the memory of process %d: %w", p.address.pid, err)
	}
	if sealed, err := unix.FcntlInt(uintptr(p.fd), unix.F_GET_SEALS, 0); err != nil || sealed&seals != seals || st.Size < int64(h.size) {
		return fmt.Errorf("the memory of process %d has %d bytes, seals %#x (%v), and says it has %d: not a segment", p.address.pid, st.Size, sealed, err, h.size)
	}
	p.size = int64(h.size)
	p.base, err = unix.MmapPtr(p.fd, 0, nil, uintptr(p.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		p.base = nil
		return fmt.Errorf("map %d bytes of process %d (raise ulimit -v, or lower Config.SegmentSize): %w", p.size, p.address.pid, err)
	}
	_ = unix.Madvise(p.bytes(0, p.size), unix.MADV_DONTDUMP)
	if err := p.check(0, headerBytes); err != nil {
		return err
	}
	if p.dead() {
		return p.fate()
	}
	if p.pidfd >= 0 {
		unix.Close(p.fd)
		p.fd = -1
	}
	return nil
}

// agrees says what is wrong with the header of a segment at that address, as our options go.
func (h *header) agrees(o transport.Options, at *address) error {
	var sum uint32
	if o.Checksum {
		sum = 1
	}
	for _, f := range []struct {
		field       string
		mine, their uint64
	}{
		{"layout version", layoutVersion, uint64(h.version)},
		{"Options.Streams", uint64(o.Streams), uint64(h.streams)},
		{"Options.MaxMessage", uint64(o.MaxMessage), h.maxMessage},
		{"Options.Checksum", uint64(sum), uint64(h.checksum)},
		{"Options.FirstSeq", o.FirstSeq, h.firstSeq},
	} {
		if f.mine != f.their {
			return fmt.Errorf("%s is %d here and %d at the peer (pid %d on %q), and must be equal on all ranks: %w",
				f.field, f.mine, f.their, at.pid, at.identity.HostName, transport.ErrMismatch)
		}
	}
	if h.size != at.size {
		return fmt.Errorf("the memory of process %d says it has %d bytes, and its address %d: not a segment", at.pid, h.size, at.size)
	}
	return nil
}

// check makes sure that n bytes at off, which lie in the mapping, can be read and
// written, and remembers it.
func (p *peer) check(off, n int64) error {
	page := int64(os.Getpagesize())
	lo, hi := off/page*page, min((off+n+page-1)/page*page, p.size)
	if _, ok := p.known.around(lo, hi); ok {
		return nil
	}
	// A hole would be filled by the first access, and SIGBUS when it cannot be.
	if err := unix.Madvise(p.bytes(lo, hi-lo), unix.MADV_POPULATE_WRITE); err == unix.ENOMEM { // for our own page tables
		return memoryError("what a peer wrote", hi-lo, err)
	} else if err != nil && err != unix.EINVAL {
		return &descriptorError{What: "something", Offset: uint64(off), Bytes: n, Segment: p.size, Err: err}
	}
	if len(p.known) > 4096 {
		p.known = p.known[:0]
	}
	p.known.add(lo, hi)
	return nil
}

// dead reports whether the process is dead, as Progress finds out.
func (p *peer) dead() bool {
	if p.pidfd < 0 {
		return p.lockFree()
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// lockFree reports that the owner let go of its segment, which only its death does
// before shut is set.
func (p *peer) lockFree() bool {
	if p.fd < 0 {
		return false
	}
	held, err := locked(p.fd)
	return err == nil && !held
}

// fate is how a process ended that is dead: after it closed its endpoint or before.
func (p *peer) fate() error {
	if atomic.LoadUint32(&p.header().shut) != 0 {
		return errShut
	}
	return fmt.Errorf("process %d, which listened at %s, is dead: %w", p.address.pid, p.address.path, transport.ErrGone)
}

var errShut = fmt.Errorf("the peer closed its endpoint: %w", transport.ErrLeft)

// die notes that the process is dead. What it did before comes first.
func (p *peer) die() {
	p.gone = p.fate()
	for _, c := range p.conns {
		c.refresh()
		c.end(p.gone, true)
	}
}

// bury lets go of the memory of a process that is dead, or of an endpoint that is closed, once there is nothing in it that anybody could still read: it
// goes with the last that has it mapped.
func (p *peer) bury(past *transport.Past) bool {
	if len(p.conns) > 0 || p.gone == nil && atomic.LoadUint32(&p.header().shut) == 0 || p.wanted(past) {
		return false
	}
	if p.gone == nil {
		p.gone = errShut
	}
	p.close()
	return true
}

// wanted reports whether the peer has sent something on a connection whose other end has not been closed, perhaps since it was not opened yet. Of a communicator
// that our user has left, as past says, it is not wanted.
func (p *peer) wanted(past *transport.Past) bool {
	for i := range pieces {
		off, n := atomic.LoadUint64(&p.header().piece[i]), int64(pieceEntries<<i*entryBytes)
		if off != firstPieceAt && (i == 0 || !p.holds(off, n, entryBytes) || p.check(int64(off), n) != nil) {
			return false // the end of the directory, or nonsense
		}
		for k := range int64(pieceEntries << i) {
			x := (*entry)(p.at(int64(off) + k*entryBytes))
			if atomic.LoadUint64(&x.state) != entryFree && atomic.LoadUint64(&x.ring) != 0 && atomic.LoadUint64(&x.ack) != atomic.LoadUint64(&x.id) &&
				!past.Left(atomic.LoadUint64(&x.comm)) {
				return true
			}
		}
	}
	return false
}

// name describes the peer as a rank.
func (p *peer) name(rank int32) string {
	return fmt.Sprintf("rank %d (pid %d on %q)", rank, p.address.pid, p.address.identity.HostName)
}

// ring wakes the peer if it sleeps.
func (p *peer) ring() { wake(&p.header().sleep) }

// wake sets a sleep word to 0 and wakes its owner.
func wake(word *uint32) {
	if atomic.LoadUint32(word) != 0 && atomic.CompareAndSwapUint32(word, 1, 0) {
		const futexWake = 1
		// No error helps: nobody waited, or the owner's memory is gone with it.
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1<<30, 0, 0, 0)
	}
}

func (p *peer) close() {
	if p.base != nil {
		_ = unix.MunmapPtr(p.base, uintptr(p.size))
		p.base = nil
	}
	for _, fd := range []*int{&p.pidfd, &p.fd} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}
