//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"golang.org/x/sys/unix"
)

// region is memory that the device reads and writes: mapped for that alone, outside the Go heap, and not inherited by a forked child,
// whose copy-on-write would part us from the pages that the device has pinned.
type region struct {
	bytes []byte
	addr  uint64
	mr    *ibv.MR
}

func (n *nic) newRegion(bytes int, access ibv.Access) (*region, error) {
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("%w: verbs: map %d bytes: %w", transport.ErrSpace, bytes, err)
	}
	r := &region{bytes: b, addr: uint64(uintptr(unsafe.Pointer(&b[0])))}
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		return nil, errors.Join(fmt.Errorf("verbs: keep %d bytes from children: %w", bytes, err), r.close())
	}
	if r.mr, err = n.pd.Register(uintptr(r.addr), bytes, access); err != nil {
		return nil, errors.Join(n.explain(fmt.Errorf("register %d bytes: %w", bytes, err)), r.close())
	}
	return r, nil
}

// close takes the memory from the device, then unmaps it. If the device keeps it, it stays mapped.
func (r *region) close() error {
	if r.mr != nil {
		if err := r.mr.Close(); err != nil {
			return fmt.Errorf("verbs: %w", err)
		}
	}
	return unix.Munmap(r.bytes)
}
