package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// Alloc returns memory of the device, with any content. It is physical memory of its own, in whole granules (2 MiB today); it can be
// given to other processes, and network adapters reach it, where Info says so. It waits for nothing on the GPU and may be called while
// a stream is captured. Devices that were connected reach it. Free or Close frees it.
func (d *Device) Alloc(bytes int64) (kernels.Mem, error) {
	if bytes < 0 {
		return kernels.Mem{}, fmt.Errorf("cuda: Alloc of %d bytes: %w", bytes, kernels.ErrInvalid)
	}
	whole, err := d.granules(bytes)
	var b cu.Block
	if err == nil {
		b, err = cu.BlockCreate(d.ctx, d.info.Ordinal, d.handles(), d.info.DirectRDMA, whole)
	}
	if err == nil {
		err = d.keep(b)
	}
	if err != nil {
		return kernels.Mem{}, fmt.Errorf("cuda: Alloc of %d bytes on %v: %w", bytes, d, err)
	}
	return kernels.Mem{Ptr: b.Ptr, Bytes: bytes, Device: d.Device()}, nil
}

// handles are the kinds that Alloc's memory can be exported as.
func (d *Device) handles() (kinds int) {
	if d.info.Exportable {
		kinds = cu.HandlePosix
	}
	if d.info.Fabric {
		kinds |= cu.HandleFabric
	}
	return kinds
}

// granules rounds up to what physical memory comes in.
func (d *Device) granules(bytes int64) (int64, error) {
	grain, err := cu.Granularity(d.ctx, d.info.Ordinal, d.handles(), d.info.DirectRDMA)
	if err != nil {
		return 0, err
	}
	return max(1, (bytes+grain-1)/grain) * grain, nil
}

// keep maps a block for the devices that were connected, and remembers it. On an error it is freed.
func (d *Device) keep(b cu.Block) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, peer := range d.peers {
		if err := cu.BlockAccess(d.ctx, b, peer); err != nil {
			_ = cu.BlockFree(d.ctx, b) // the first error says more
			return err
		}
	}
	d.blocks[uintptr(b.Ptr)] = b
	return nil
}

// Free gives back what Alloc, Import or ImportFabric returned. Nothing may use it any more: no work that is queued, and no peer.
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

// Export returns a new file descriptor of memory that Alloc returned, to be sent to another process of the host, which gives it to
// Import. The caller closes it; the memory stays while anybody has it mapped.
func (d *Device) Export(m kernels.Mem) (fd int, err error) {
	b, err := d.block(m)
	if err != nil {
		return -1, err
	}
	return cu.BlockExport(d.ctx, b)
}

// ExportFabric is Export for any host on the NVLink fabric, where Info.Fabric says that there is one.
func (d *Device) ExportFabric(m kernels.Mem) (handle [64]byte, err error) {
	if !d.info.Fabric {
		return handle, fmt.Errorf("cuda: %v offers no fabric handles: no multi-node NVLink, or no IMEX channel: %w", d, errors.ErrUnsupported)
	}
	b, err := d.block(m)
	if err != nil {
		return handle, err
	}
	return cu.BlockExportFabric(d.ctx, b)
}

// block finds what Alloc returned.
func (d *Device) block(m kernels.Mem) (cu.Block, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, ok := d.blocks[uintptr(m.Ptr)]
	if !ok {
		return b, fmt.Errorf("cuda: Export of %p, which is none of %v's allocations: %w", m.Ptr, d, kernels.ErrInvalid)
	}
	return b, nil
}

// Import maps memory that Export gave, here or in another process, of this GPU or one that it reaches; bytes are those asked of Alloc.
// The descriptor stays the caller's and may be closed. Free unmaps it.
func (d *Device) Import(fd int, bytes int64) (kernels.Mem, error) {
	return d.imported(bytes, func(whole int64) (cu.Block, error) { return cu.BlockImport(d.ctx, d.info.Ordinal, fd, whole) })
}

// ImportFabric is Import of what ExportFabric gave.
func (d *Device) ImportFabric(handle [64]byte, bytes int64) (kernels.Mem, error) {
	return d.imported(bytes, func(whole int64) (cu.Block, error) {
		return cu.BlockImportFabric(d.ctx, d.info.Ordinal, handle, whole)
	})
}

func (d *Device) imported(bytes int64, take func(whole int64) (cu.Block, error)) (kernels.Mem, error) {
	if bytes < 0 {
		return kernels.Mem{}, fmt.Errorf("cuda: Import of %d bytes: %w", bytes, kernels.ErrInvalid)
	}
	whole, err := d.granules(bytes)
	var b cu.Block
	if err == nil {
		b, err = take(whole)
	}
	if err == nil {
		err = d.keep(b)
	}
	if err != nil {
		return kernels.Mem{}, fmt.Errorf("cuda: Import of %d bytes for %v: %w", bytes, d, err)
	}
	return kernels.Mem{Ptr: b.Ptr, Bytes: bytes, Device: d.Device()}, nil
}

// Check returns an error unless all of m is memory of this device, whoever allocated it.
func (d *Device) Check(m kernels.Mem) error {
	if m.Bytes == 0 {
		return nil
	}
	_, err := d.Allocation(m)
	return err
}

// Allocation returns all of the allocation that m is in, or Check's error.
func (d *Device) Allocation(m kernels.Mem) (kernels.Mem, error) {
	ordinal, err := cu.PointerAttribute(d.ctx, cu.PointerDeviceOrdinal, m.Ptr)
	if err != nil {
		return kernels.Mem{}, fmt.Errorf("cuda: %p is no memory that %v knows: %w", m.Ptr, d, err)
	}
	if int32(ordinal) != int32(d.info.Ordinal) {
		return kernels.Mem{}, fmt.Errorf("cuda: %p is memory of device %d, not of %v: %w", m.Ptr, int32(ordinal), d, kernels.ErrInvalid)
	}
	start, err := cu.PointerAttribute(d.ctx, cu.PointerRangeStart, m.Ptr)
	if err != nil {
		return kernels.Mem{}, err
	}
	size, err := cu.PointerAttribute(d.ctx, cu.PointerRangeSize, m.Ptr)
	if err != nil {
		return kernels.Mem{}, err
	}
	if room := start + size - uint64(uintptr(m.Ptr)); uint64(m.Bytes) > room {
		return kernels.Mem{}, fmt.Errorf("cuda: %d bytes at %p on %v, but its allocation ends after %d: %w", m.Bytes, m.Ptr, d, room, kernels.ErrInvalid)
	}
	return kernels.Mem{Ptr: unsafe.Add(m.Ptr, -int64(uint64(uintptr(m.Ptr))-start)), Bytes: int64(size), Device: m.Device}, nil
}

// Pinned is host memory that kernels can use too.
type Pinned struct {
	Host, Device unsafe.Pointer // the same memory, for the host and for kernels
	Bytes        int64
}

// AllocPinned returns host memory that kernels can use.
func (d *Device) AllocPinned(bytes int64) (Pinned, error) {
	h, p, err := cu.HostAlloc(d.ctx, bytes)
	if err != nil {
		return Pinned{}, err // what was there has been freed
	}
	return Pinned{h, p, bytes}, nil
}

// FreePinned frees it. It waits for all kernels on the device.
func (d *Device) FreePinned(p Pinned) error { return cu.HostFree(d.ctx, p.Host) }

// Pin lets the device copy from and to host memory by itself, in whole pages of an address range that stays mapped until Unpin.
func (d *Device) Pin(m kernels.Mem) error { return cu.HostRegister(d.ctx, m.Ptr, m.Bytes) }

// Unpin ends it, once no copy is queued.
func (d *Device) Unpin(m kernels.Mem) error { return cu.HostUnregister(d.ctx, m.Ptr) }
