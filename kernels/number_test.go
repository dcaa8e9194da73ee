package kernels_test

import (
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

type (
	celsius  float32
	userID   int32
	flags    uint8
	duration int64
)

func TestDTypeOf(t *testing.T) {
	equal(t, kernels.DTypeOf[int8](), kernels.Int8)
	equal(t, kernels.DTypeOf[uint8](), kernels.Uint8)
	equal(t, kernels.DTypeOf[int32](), kernels.Int32)
	equal(t, kernels.DTypeOf[uint32](), kernels.Uint32)
	equal(t, kernels.DTypeOf[int64](), kernels.Int64)
	equal(t, kernels.DTypeOf[uint64](), kernels.Uint64)
	equal(t, kernels.DTypeOf[kernels.Half](), kernels.Float16)
	equal(t, kernels.DTypeOf[float32](), kernels.Float32)
	equal(t, kernels.DTypeOf[float64](), kernels.Float64)
	equal(t, kernels.DTypeOf[kernels.BFloat16](), kernels.Bfloat16)
	equal(t, kernels.DTypeOf[kernels.Float8E4M3](), kernels.Float8e4m3)
	equal(t, kernels.DTypeOf[kernels.Float8E5M2](), kernels.Float8e5m2)
	equal(t, kernels.DTypeOf[celsius](), kernels.Float32)
	equal(t, kernels.DTypeOf[userID](), kernels.Int32)
	equal(t, kernels.DTypeOf[flags](), kernels.Uint8)
	equal(t, kernels.DTypeOf[duration](), kernels.Int64)
}

func TestDTypeOfAllocatesNothing(t *testing.T) {
	var d kernels.DType
	equal(t, testing.AllocsPerRun(100, func() {
		d += kernels.DTypeOf[kernels.Half]() + kernels.DTypeOf[kernels.BFloat16]() + kernels.DTypeOf[kernels.Float8E5M2]() + kernels.DTypeOf[celsius]()
	}), 0)
}

func TestMemOf(t *testing.T) {
	s := make([]userID, 5, 9)
	m := kernels.MemOf(s)
	equal(t, m.Ptr, unsafe.Pointer(&s[0]))
	equal(t, m.Bytes, 20)
	equal(t, m.Device.IsHost(), true)
	equal(t, kernels.MemOf(s[2:4]), kernels.Mem{Ptr: unsafe.Pointer(&s[2]), Bytes: 8})
	equal(t, kernels.MemOf[float64](nil), kernels.Mem{})
	equal(t, kernels.MemOf([]kernels.Half{1, 2, 3}).Bytes, 6)
}

func TestDevice(t *testing.T) {
	var host kernels.Device
	equal(t, host.IsHost(), true)
	equal(t, host.String(), "host")
	gpu := kernels.Device{Kind: kernels.CUDA, Ordinal: 1}
	equal(t, gpu.IsHost(), false)
	equal(t, gpu.String(), "cuda:1")
	equal(t, gpu == kernels.Device{Kind: kernels.CUDA}, false)
	equal(t, kernels.Device{Kind: 9, Ordinal: 2}.String(), "DeviceKind(9):2")
}
