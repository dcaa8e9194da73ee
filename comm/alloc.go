package comm

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport"
)

// Alloc returns n bytes, or for 0 at least an address, of zeroed host memory that ranks on this host can read where it lies, and that RDMA devices have registered, so that long messages
// from it are not copied on their way; in an all-reduce that is not in place, they also write its results there, in whole pages of Dst. It is local: no other
// rank takes part. It belongs to the communicator and those split from or with it; it is gone when they are all closed, and Alloc ErrClosed, or by Free. Over TCP
// alone it is ordinary memory, and so are, once a call has failed, the pages of its Dst that a peer had begun to write: what they hold is undefined.
func (c *Comm) Alloc(n int64) (kernels.Mem, error) {
	if n < 0 {
		return kernels.Mem{}, argument("Alloc of %d bytes", n)
	}
	if c.family.closed.Load() {
		return kernels.Mem{}, c.noMemory(n)
	}
	if a := c.family.allocator(); a != nil {
		p, err := a.Alloc(max(n, 1))
		if err != nil {
			return kernels.Mem{}, fmt.Errorf("comm %s: Alloc of %d bytes: %w", c.name(), n, err)
		}
		m := kernels.Mem{Ptr: p, Bytes: n}
		c.family.register(a, m)
		return m, nil
	}
	b := make([]uint64, n/8+1)
	return kernels.Mem{Ptr: unsafe.Pointer(unsafe.SliceData(b)), Bytes: n}, nil
}

// AllocOn is Alloc on a device, Config.Device or the host. A GPU's memory has any content, and is gone with the last communicator of
// this process on that GPU.
func (c *Comm) AllocOn(d kernels.Device, n int64) (kernels.Mem, error) {
	if d.IsHost() {
		return c.Alloc(n)
	}
	if c.family.closed.Load() {
		return kernels.Mem{}, c.noMemory(n)
	}
	own := c.family.gpu()
	if own == nil || own.Device.Device() != d {
		return kernels.Mem{}, argument("Alloc of %d bytes on %v, which is not Config.Device (%v)", n, d, c.family.cfg.Device)
	}
	m, err := own.Alloc(n)
	if err != nil {
		err = fmt.Errorf("comm %s: %w", c.name(), err)
	}
	return m, err
}

// noMemory is why there is none after the last Close.
func (c *Comm) noMemory(n int64) error {
	return fmt.Errorf("comm %s: Alloc of %d bytes, which would be gone with this communicator and those split from it: %w", c.name(), n, ErrClosed)
}

// Free gives back what Alloc or AllocOn returned, once no call uses it. After the last Close there is nothing to give back of host memory, and it is too late
// for a GPU's.
func (c *Comm) Free(m kernels.Mem) error {
	if own := c.family.gpu(); !m.Device.IsHost() {
		if c.family.closed.Load() {
			return fmt.Errorf("comm %s: Free of memory on %v, which goes with the last communicator of this process there: %w", c.name(), m.Device, ErrClosed)
		}
		if own == nil || own.Device.Device() != m.Device {
			return argument("Free of memory on %v, which is not Config.Device (%v)", m.Device, c.family.cfg.Device)
		}
		return own.Free(m)
	}
	if a := c.family.allocator(); a != nil {
		err := c.family.withdraw(m.Ptr)
		if err == nil { // else a device still knows its pages
			err = a.Free(m.Ptr)
		}
		if err != nil {
			return fmt.Errorf("comm %s: Free: %w", c.name(), err)
		}
	}
	return nil
}

// AllocSlice is Alloc of n elements. The slice must not be used after Free or the last Close.
func AllocSlice[T kernels.Number](c *Comm, n int) ([]T, error) {
	var zero T
	size := int64(unsafe.Sizeof(zero))
	if n < 0 || int64(n) > (1<<62)/size {
		return nil, argument("Alloc of %d elements", n)
	}
	m, err := c.Alloc(int64(n) * size)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*T)(m.Ptr), n), nil
}

// allocator is who gives out memory, or nil: the first endpoint that can, before which no other's messages need copies.
func (f *family) allocator() transport.Allocator {
	for _, e := range f.live() {
		if a, ok := e.(transport.Allocator); ok {
			return a
		}
	}
	return nil
}

// registrations are of memory that an allocator gave out.
type registrations map[unsafe.Pointer][]transport.Region

// register lets the other endpoints send what was allocated from where it lies. One that cannot copies it.
func (f *family) register(by transport.Allocator, m kernels.Mem) {
	page := int64(os.Getpagesize())
	m.Bytes = (max(m.Bytes, 1) + page - 1) / page * page
	for _, e := range f.endpoints {
		r, ok := e.(transport.Registrar)
		if !ok || e == by.(transport.Endpoint) {
			continue
		}
		region, err := r.Register(m)
		if err != nil {
			f.log.Warn("messages from allocated memory are copied, for it cannot be registered", "transport", e.Name(), "bytes", m.Bytes, "reason", err)
			continue
		}
		f.mu.Lock()
		closed := f.closed.Load()
		if f.regions == nil {
			f.regions = registrations{}
		}
		if !closed {
			f.regions[m.Ptr] = append(f.regions[m.Ptr], region)
		}
		f.mu.Unlock()
		if closed {
			region.Close()
		}
	}
}

// withdraw ends register. After an error it has not.
func (f *family) withdraw(p unsafe.Pointer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for regions := f.regions[p]; len(regions) > 0; regions = f.regions[p] {
		if err := regions[0].Close(); err != nil {
			return err
		}
		f.regions[p] = regions[1:]
	}
	delete(f.regions, p)
	return nil
}
