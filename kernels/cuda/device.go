package cuda

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// A Device is a GPU with our kernels loaded. It is safe for any goroutine until Close.
type Device struct {
	info   Info
	ctx    cu.Context
	module [2]cu.Module // of each PTX
	table  [numKernels]cu.Function

	mu     sync.Mutex
	blocks map[uintptr]cu.Block // what Alloc gave, by address
	peers  []int                // ordinals of devices that use our memory
	linked map[int]bool         // ordinals of devices whose memory we use by a link

	wireModule cu.Module // of wire.cu, from the first link on
	wire       [numWireKernels]cu.Function

	copies  Stream // CopyNow's, from its first call on
	ordered bool   // kernels see what network adapters wrote without FlushWrites

	edit func(ptx []byte) []byte // before it is loaded
}

// Info says what a device is and can.
type Info struct {
	Ordinal         int
	Name            string
	UUID            [16]byte // the same in all processes
	Major, Minor    int      // compute capability
	Multiprocessors int
	Driver          int  // CUDA version of the driver, 13000 for 13.0
	Exportable      bool // Alloc's memory can be given to other processes as a file descriptor
	Fabric          bool // … and to other hosts over NVLink
	DirectRDMA      bool // network adapters can read and write Alloc's memory
	DMABuf          bool // … which the kernel's own way is good for, without nvidia_peermem
}

// Count returns the number of GPUs. Without a driver it is an error that wraps errors.ErrUnsupported.
func Count() (int, error) {
	if err := cu.Load(); err != nil {
		return 0, err
	}
	return cu.DeviceCount()
}

// Open makes a GPU ready, by the driver's ordinal from 0 on. It loads the kernels, which may take seconds the first time and
// waits for everything that runs on the GPU: call it before the first communicator is made. The caller closes it.
func Open(ordinal int) (*Device, error) {
	return open(ordinal, func(ptx []byte) []byte { return ptx })
}

func open(ordinal int, edit func([]byte) []byte) (*Device, error) {
	n, err := Count()
	if err != nil {
		return nil, fmt.Errorf("cuda: device %d: %w", ordinal, err)
	}
	if ordinal < 0 || ordinal >= n {
		return nil, fmt.Errorf("cuda: no device %d, this process sees %d: %w", ordinal, n, kernels.ErrInvalid)
	}
	d := &Device{blocks: map[uintptr]cu.Block{}, edit: edit}
	if err := d.describe(ordinal); err != nil {
		return nil, fmt.Errorf("cuda: device %d: %w", ordinal, err)
	}
	if d.info.Major < 8 {
		return nil, fmt.Errorf("cuda: device %d, %s, has compute capability %d.%d, but gccl's kernels need 8.0: %w",
			ordinal, d.info.Name, d.info.Major, d.info.Minor, errors.ErrUnsupported)
	}
	if d.ctx, err = cu.PrimaryRetain(ordinal); err != nil {
		return nil, fmt.Errorf("cuda: device %d: %w", ordinal, err)
	}
	if d.info.Fabric {
		d.info.Fabric = d.tryFabric()
	}
	if err := d.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("cuda: device %d: kernels: %w", ordinal, err), d.Close())
	}
	return d, nil
}

func (d *Device) describe(ordinal int) (err error) {
	d.info.Ordinal = ordinal
	if d.info.Name, err = cu.DeviceName(ordinal); err != nil {
		return err
	}
	if d.info.UUID, err = cu.DeviceUUID(ordinal); err != nil {
		return err
	}
	if d.info.Driver, err = cu.DriverVersion(); err != nil {
		return err
	}
	var exportable, rdma, dmabuf, fabric, ordering int
	for _, a := range []struct {
		number int
		value  *int
	}{
		{cu.DeviceMajor, &d.info.Major}, {cu.DeviceMinor, &d.info.Minor}, {cu.DeviceMultiprocessors, &d.info.Multiprocessors},
		{cu.DevicePosixHandles, &exportable}, {cu.DeviceGPUDirectRDMAByVMM, &rdma}, {cu.DeviceDMABuf, &dmabuf},
		{cu.DeviceFabricHandles, &fabric}, {cu.DeviceRDMAWritesOrdering, &ordering},
	} {
		if *a.value, err = attribute(ordinal, a.number); err != nil {
			return err
		}
	}
	d.ordered = d.info.Major >= 9 && ordering >= cu.OrderedForOwner // older ones are flushed whatever the driver says, as NCCL does
	d.info.Exportable, d.info.DirectRDMA, d.info.DMABuf, d.info.Fabric = exportable != 0, rdma != 0, dmabuf != 0, fabric != 0
	return nil
}

// attribute is 0 where the driver is too old to know it: what it says the device can, nobody could use.
func attribute(ordinal, number int) (int, error) {
	v, err := cu.DeviceAttribute(ordinal, number)
	if errors.Is(err, cu.InvalidValue) {
		return 0, nil
	}
	return v, err
}

// imexChannels is where the driver has the channels that a process needs for fabric handles, which is seldom.
const imexChannels = "/dev/nvidia-caps-imex-channels"

// tryFabric makes memory with a fabric handle: that the device could is not enough. Where there is no channel it leaves the driver in
// peace, whose refusals debuggers report.
func (d *Device) tryFabric() bool {
	if channels, err := os.ReadDir(imexChannels); err != nil || len(channels) == 0 {
		return false
	}
	whole, err := d.granules(1)
	if err != nil {
		return false
	}
	b, err := cu.BlockCreate(d.ctx, d.info.Ordinal, d.handles(), d.info.DirectRDMA, whole)
	if err != nil {
		return false
	}
	return cu.BlockFree(d.ctx, b) == nil
}

// Close unloads the kernels and lets go of the GPU. No work may be queued, and what Alloc gave is freed.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == 0 {
		return nil
	}
	var errs []error
	for _, b := range d.blocks {
		errs = append(errs, cu.BlockFree(d.ctx, b))
	}
	clear(d.blocks)
	if d.copies != 0 {
		errs = append(errs, cu.StreamDestroy(d.ctx, d.copies))
		d.copies = 0
	}
	if d.wireModule != 0 {
		errs = append(errs, cu.ModuleUnload(d.ctx, d.wireModule))
		d.wireModule = 0
	}
	for i, m := range d.module {
		if m != 0 {
			errs = append(errs, cu.ModuleUnload(d.ctx, m))
		}
		d.module[i] = 0
	}
	errs = append(errs, cu.PrimaryRelease(d.info.Ordinal))
	d.ctx = 0
	return errors.Join(errs...)
}

// Info returns what the device is.
func (d *Device) Info() Info { return d.info }

// Device names the device in a kernels.Mem.
func (d *Device) Device() kernels.Device {
	return kernels.Device{Kind: kernels.CUDA, Ordinal: int32(d.info.Ordinal)}
}

func (d *Device) String() string { return d.Device().String() }

// MemInfo returns the free and all memory of the device in bytes.
func (d *Device) MemInfo() (free, total int64, err error) { return cu.MemInfo(d.ctx) }

// Synchronize waits for everything that is queued on the device by this process.
func (d *Device) Synchronize() error { return cu.Synchronize(d.ctx) }
