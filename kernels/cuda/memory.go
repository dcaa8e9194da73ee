package cuda

import (
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// Alloc returns memory of the device, with any content. It is physical memory of its own, in whole granules (2 MiB today); it can be
// given to other processes where Info says so. It waits for nothing on the GPU and may be called while a stream is captured.
// Devices that were
// connected reach it. Free or Close frees it.
func (d *Device) Alloc(bytes int64) (kernels.Mem, error) {
	if bytes < 0 {
		return kernels.Mem{}, fmt.Errorf("cuda: Alloc of %d bytes: %w", bytes, kernels.ErrInvalid)
	}
	handles := 0
	if d.info.Exportable {
		handles = cu.HandlePosix
	}
	fail := func(err error) (kernels.Mem, error) {
		return kernels.Mem{}, fmt.Errorf("cuda: Alloc of %d bytes on %v: %w", bytes, d, err)
	}
	grain, err := cu.Granularity(d.ctx, d.info.Ordinal, handles, d.info.DirectRDMA)
	if err != nil {
		return fail(err)
	}
	b, err := cu.BlockCreate(d.ctx, d.info.Ordinal, handles, d.info.DirectRDMA, max(1, (bytes+grain-1)/grain)*grain)
	if err != nil {
		return fail(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, peer := range d.peers {
		if err := cu.BlockAccess(d.ctx, b, peer); err != nil {
			_ = cu.BlockFree(d.ctx, b) // the first error says more
			return fail(err)
		}
	}
	d.blocks[uintptr(b.Ptr)] = b
	return kernels.Mem{Ptr: b.Ptr, Bytes: bytes, Device: d.Device()}, nil
}

// Free gives back what Alloc returned. Nothing may use it any more: no work that is queued, and no peer.
func (d *Device) Free(m kernels.Mem) error {
	d.mu.Lock()
	b, ok := d.blocks[uintptr(m.Ptr)]
	delete(d.blocks, uintptr(m.Ptr))
	d.mu.Unlock()
	if !ok {
		return fmt.Errorf("cuda: Free of %p, which is none of %v's allocations: %w", m.Ptr, d, kernels.ErrInvalid)
	}
	return cu.BlockFree(d.ctx, b)
}

// Export returns a new file descriptor of memory that Alloc returned. The caller closes it.
func (d *Device) Export(m kernels.Mem) (fd int, err error) {
	d.mu.Lock()
	b, ok := d.blocks[uintptr(m.Ptr)]
	d.mu.Unlock()
	if !ok {
		return -1, fmt.Errorf("cuda: Export of %p, which is none of %v's allocations: %w", m.Ptr, d, kernels.ErrInvalid)
	}
	return cu.BlockExport(d.ctx, b)
}

// Check returns an error unless all of m is memory of this device, whoever allocated it.
func (d *Device) Check(m kernels.Mem) error {
	if m.Bytes == 0 {
		return nil
	}
	ordinal, err := cu.PointerAttribute(d.ctx, cu.PointerDeviceOrdinal, m.Ptr)
	if err != nil {
		return fmt.Errorf("cuda: %p is no memory that %v knows: %w", m.Ptr, d, err)
	}
	if int32(ordinal) != int32(d.info.Ordinal) {
		return fmt.Errorf("cuda: %p is memory of device %d, not of %v: %w", m.Ptr, int32(ordinal), d, kernels.ErrInvalid)
	}
	start, err := cu.PointerAttribute(d.ctx, cu.PointerRangeStart, m.Ptr)
	if err != nil {
		return err
	}
	size, err := cu.PointerAttribute(d.ctx, cu.PointerRangeSize, m.Ptr)
	if err != nil {
		return err
	}
	if room := start + size - uint64(uintptr(m.Ptr)); uint64(m.Bytes) > room {
		return fmt.Errorf("cuda: %d bytes at %p on %v, but its allocation ends after %d: %w", m.Bytes, m.Ptr, d, room, kernels.ErrInvalid)
	}
	return nil
}

// Pinned is host memory that kernels can use too.
type Pinned struct {
	Host, Device unsafe.Pointer // the same memory, for the host and for kernels
	Bytes        int64
}

// AllocPinned returns host memory that kernels can use.
func (d *Device) AllocPinned(bytes int64) (Pinned, error) {
	h, p, err := cu.HostAlloc(d.ctx, bytes)
	return Pinned{h, p, bytes}, err
}

// FreePinned frees it. It waits for all kernels on the device.
func (d *Device) FreePinned(p Pinned) error { return cu.HostFree(d.ctx, p.Host) }
