package verbs

import (
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// GPU is what an endpoint asks of a GPU whose memory is registered; *cuda.Device is one. It may be called by several goroutines at a time.
type GPU interface {
	// Device is what kernels.Mem calls it.
	Device() kernels.Device
	// Allocation returns all of the allocation that m is in, or an error unless it is memory of the GPU.
	Allocation(m kernels.Mem) (kernels.Mem, error)
	// DMABuf returns a new file descriptor of whole pages of an allocation, which the caller closes.
	DMABuf(m kernels.Mem) (fd int, err error)
	// FlushWrites returns when kernels see what network adapters wrote to the GPU's memory before.
	FlushWrites() error
	// CopyNow copies between the GPU and the host, either way, and returns when that is done.
	CopyNow(dst, src unsafe.Pointer, bytes int64) error
}

// The ways a device gets at a GPU's memory, best first.
const (
	viaDMABuf     = "DMA-BUF"
	viaPeerMemory = "nvidia-peermem"
	viaStaging    = "pinned host staging"
)
