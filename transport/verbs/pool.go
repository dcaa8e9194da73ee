//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"golang.org/x/sys/unix"
)

// pool is the endpoint's staging memory: chunks that every NIC has registered, cut into blocks of one size, a block for each connection.
// The first chunk lives as long as the pool; others go with their last block.
type pool struct {
	nics   []*nic
	size   int64 // of a block
	config Config

	mu     sync.Mutex // guards what follows
	chunks []*chunk
	bytes  int64 // mapped
}

// chunk is memory that devices read and write: mapped for that alone, outside the Go heap, and not inherited by a forked child, whose
// copy-on-write would part us from the pages that the device has pinned.
type chunk struct {
	bytes []byte
	mrs   []registered // by NIC
	free  []int        // blocks, by number
	cut   int          // blocks in all
	keep  bool         // until the pool is closed
}

// block is a piece of a chunk.
type block struct {
	of     *chunk
	number int
	bytes  []byte
}

const hugePage = 2 << 20

// newPool registers the first chunk, so that whoever may not pin memory is told before anybody connects.
func newPool(nics []*nic, blockBytes int, c Config) (*pool, error) {
	p := &pool{nics: nics, size: int64(blockBytes+63) &^ 63, config: c}
	r, err := p.grow()
	if err != nil {
		return nil, err
	}
	p.chunks = []*chunk{r}
	return p, nil
}

// grow maps and registers a chunk more.
func (p *pool) grow() (*chunk, error) {
	bytes := max(p.config.Chunk, p.size)
	page := int64(unix.Getpagesize())
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if p.config.HugePages {
		page = hugePage
		flags |= unix.MAP_HUGETLB | unix.MAP_HUGE_2MB
	}
	bytes = (bytes + page - 1) / page * page
	if most := p.config.Pool; most > 0 && p.bytes+bytes > most {
		return nil, fmt.Errorf("%w: verbs: %d bytes of pinned memory are in use and %d more are wanted, the pool has %d: raise it (memory.pool_size_gb), or use fewer connections, Streams or Slots", transport.ErrSpace, p.bytes, bytes, most)
	}
	b, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		if p.config.HugePages {
			return nil, fmt.Errorf("%w: verbs: map %d huge pages of 2 MiB: %w: set enough aside (sysctl vm.nr_hugepages=%d or more), or do without (memory.hugepage)", transport.ErrSpace, bytes/hugePage, err, bytes/hugePage)
		}
		return nil, fmt.Errorf("%w: verbs: map %d bytes: %w", transport.ErrSpace, bytes, err)
	}
	r := &chunk{bytes: b, cut: int(bytes / p.size)}
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		return nil, errors.Join(fmt.Errorf("verbs: keep %d bytes from children: %w", bytes, err), r.close())
	}
	// The order of a piece's bytes in memory does not matter: the completion comes after all of them.
	access := ibv.LocalWrite | ibv.RemoteWrite | ibv.RelaxedOrdering
	if p.config.HugePages {
		access |= ibv.HugeTLB
	}
	for _, n := range p.nics {
		mr, err := n.register(uintptr(unsafe.Pointer(&b[0])), len(b), access)
		if err != nil && (len(p.chunks) == 0 || !n.without(err)) {
			return nil, errors.Join(n.explain(fmt.Errorf("register %d bytes: %w", bytes, err)), r.close())
		}
		r.mrs = append(r.mrs, mr)
	}
	for i := range r.cut {
		r.free = append(r.free, r.cut-1-i)
	}
	p.bytes += bytes
	return r, nil
}

// take returns a block, with whatever bytes it had.
func (p *pool) take() (block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.chunks {
		if len(r.free) > 0 {
			return p.of(r), nil
		}
	}
	r, err := p.grow()
	if err != nil {
		return block{}, err
	}
	p.chunks = append(p.chunks, r)
	return p.of(r), nil
}

func (p *pool) of(r *chunk) block {
	number := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	at := int64(number) * p.size
	return block{of: r, number: number, bytes: r.bytes[at : at+p.size : at+p.size]}
}

// give takes a block back, which no QP may touch any more.
func (p *pool) give(b block) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b.of.free = append(b.of.free, b.number)
	for i, r := range p.chunks {
		if i > 0 && r == b.of && !r.keep && len(r.free) == r.cut {
			p.chunks = append(p.chunks[:i], p.chunks[i+1:]...)
			p.bytes -= int64(len(r.bytes))
			return r.close()
		}
	}
	return nil
}

// held is how many bytes are mapped.
func (p *pool) held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}

func (p *pool) close() error {
	var errs []error
	for _, r := range p.chunks {
		errs = append(errs, r.close())
	}
	p.chunks, p.bytes = nil, 0
	return errors.Join(errs...)
}

// close takes the memory from the devices, then unmaps it. If one keeps it, it stays mapped.
func (r *chunk) close() error {
	var err error
	if r.mrs, err = deregister(r.mrs); err != nil {
		return err
	}
	return unix.Munmap(r.bytes)
}

func (b block) addr() uint64 { return uint64(uintptr(unsafe.Pointer(&b.bytes[0]))) }
