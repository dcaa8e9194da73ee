package cuda

import (
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// DMABuf returns a new file descriptor of memory of the device, whoever allocated it, by which network adapters can be told of it: whole
// pages of the host's, of one allocation. The caller closes it, which it may do as soon as they were told. It is an error that wraps
// errors.ErrUnsupported where the driver cannot; the kernel may refuse, too.
func (d *Device) DMABuf(m kernels.Mem) (fd int, err error) {
	if fd, err = cu.DMABuf(d.ctx, m.Ptr, m.Bytes); err != nil {
		return -1, fmt.Errorf("cuda: %d bytes at %p on %v as a DMA-BUF: %w", m.Bytes, m.Ptr, d, err)
	}
	return fd, nil
}

// FlushWrites returns when kernels on the device see what network adapters wrote to its memory before. Where they do anyway it does nothing.
func (d *Device) FlushWrites() error {
	if d.ordered {
		return nil
	}
	return cu.FlushWrites(d.ctx)
}

// CopyNow copies between the device and the host, either way, and returns when that is done. Other work of the device is not waited for.
func (d *Device) CopyNow(dst, src unsafe.Pointer, bytes int64) error {
	s, err := d.copying()
	if err == nil {
		err = d.CopyAny(s, dst, src, bytes)
	}
	if err == nil {
		err = d.Wait(s)
	}
	return err
}

// copying is CopyNow's stream, of the highest priority.
func (d *Device) copying() (Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.copies != 0 {
		return d.copies, nil
	}
	s, err := d.NewPriorityStream()
	d.copies = s
	return s, err
}
