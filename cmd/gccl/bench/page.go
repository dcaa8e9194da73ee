package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	lineBytes = 128 // of a rank in the page: two cache lines, since processors fetch them in pairs
	nonceLen  = 32
)

// page is a barrier for the ranks of one host in a page of shared memory: each rank counts its
// arrivals in a line of its own and reads everybody's, so that all leave together, about one
// transfer of a cache line after the last has come, and a missing rank has a name.
type page struct {
	rank, ranks int
	mem         []byte
	count       uint64        // our arrivals
	polls       int           // between yields of the processor
	patience    time.Duration // after which a missing rank is an error
	started     time.Time     // of the wait, a little late
}

// newPage makes the file of a page in dir and returns its path and what marks it as ours.
func newPage(dir string, ranks int) (path, nonce string, err error) {
	var random [nonceLen / 2]byte
	rand.Read(random[:])
	nonce = hex.EncodeToString(random[:])
	path = filepath.Join(dir, fmt.Sprintf("gccl-bench-%d-%s", os.Getpid(), nonce[:8]))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", "", err
	}
	// Written, not only made long: a page that has no memory behind it when that has run out is a fault.
	content := make([]byte, lineBytes*(ranks+1))
	copy(content, nonce)
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		os.Remove(path)
		return "", "", err
	}
	return path, nonce, nil
}

// openPage maps the page that one of the ranks made. It fails where that isn't to be found, as on
// another host. The file may be removed once all ranks have mapped it.
func openPage(path, nonce string, rank, ranks int) (*page, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := lineBytes * (ranks + 1)
	if info, err := f.Stat(); err != nil || info.Size() != int64(size) {
		return nil, fmt.Errorf("%s is not the page of this run", path)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if string(mem[:nonceLen]) != nonce {
		unix.Munmap(mem)
		return nil, fmt.Errorf("%s is not the page of this run", path)
	}
	return &page{rank: rank, ranks: ranks, mem: mem, polls: 1000, patience: time.Minute}, nil
}

func (p *page) line(rank int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&p.mem[lineBytes*(rank+1)]))
}

// wait returns when all ranks have called it as often as we have. It fails when ctx ends or a rank
// doesn't come for a minute.
func (p *page) wait(ctx context.Context) error {
	p.count++
	p.line(p.rank).Store(p.count)
	for q := range p.ranks {
		line := p.line(q)
		for n := 1; line.Load() < p.count; n++ {
			if n%p.polls == 0 {
				if err := p.yield(ctx, n/p.polls, q); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// yield gives the processor to other processes and this process's goroutines, and now and then
// looks whether there is still something to wait for.
func (p *page) yield(ctx context.Context, n, rank int) error {
	unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	if n%256 != 0 {
		return nil
	}
	runtime.Gosched()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("wait for rank %d before a call: %w", rank, context.Cause(ctx))
	}
	switch {
	case n == 256:
		p.started = time.Now()
	case time.Since(p.started) > p.patience:
		return fmt.Errorf("rank %d has not come to the barrier before a call for %v: see whether it still runs", rank, p.patience)
	}
	return nil
}

func (p *page) close() error { return unix.Munmap(p.mem) }
