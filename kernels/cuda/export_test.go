package cuda

import (
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// PTX returns the text of all kernels.
func PTX() ([]byte, error) {
	one, err := ptx(false)
	if err != nil {
		return nil, err
	}
	other, err := ptx(true)
	return append(one, other...), err
}

// RDMACapable asks the driver whether network adapters can read and write memory.
func RDMACapable(d *Device, p unsafe.Pointer) (bool, error) {
	const attribute = 15
	yes, err := cu.PointerAttribute(d.ctx, attribute, p)
	return yes != 0, err
}

// KernelNames returns the names of all kernels that can be asked for, each once.
func KernelNames() []string {
	seen := map[string]bool{}
	var names []string
	for k := range Kernel(numKernels) {
		if n := k.name(); k.exists() && !seen[n] {
			seen[n] = true
			names = append(names, n)
		}
	}
	return names
}

// Attribute is what the device says of itself by the driver's number.
func Attribute(d *Device, number int) (int, error) { return attribute(d.info.Ordinal, number) }

// Copying is the stream of CopyNow.
func Copying(d *Device) (Stream, error) { return d.copying() }
