// Package kernelstest is the contract of package kernels as a test. Every set of kernels passes it,
// whatever it runs on:
//
//	func TestKernels(t *testing.T) { kernelstest.Run(t, myDevice) }
//
// [Run] compares a device, to the bit, with the functions [Reduce], [PreMul] and [PostDiv] of this
// package, which compute one element at a time from the definitions: in exact arithmetic rounded
// once per operation, with tables instead of bit tricks for the 16-bit formats. They share no code
// with any kernel, and are there for other packages' tests as well. They are slow.
//
// A device must give the same bits on every run and touch nothing but its destination; Run puts
// canaries around all buffers and compares those as well.
package kernelstest

import (
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// A Device provides kernels. The functions get pointers to host memory and return when the result
// is there; a device with memory of its own copies in and out. What the methods' arguments mean is
// said in package cpu, whose implementations are Devices.
//
// A valid type or operator that the device lacks is an error that wraps errors.ErrUnsupported: Run
// then skips that part and says so.
type Device interface {
	Reducer(kernels.DType, kernels.RedOp) (func(dst unsafe.Pointer, srcs []unsafe.Pointer, n int), error)
	PreMul(kernels.DType) (func(dst unsafe.Pointer, srcs []unsafe.Pointer, n, scaled int, factor float64), error)
	PostDiv(kernels.DType) (func(dst unsafe.Pointer, n int, divisor int64), error)
}
