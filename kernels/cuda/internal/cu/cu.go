// Package cu is the CUDA driver's API as far as gccl uses it, and nothing else: one thin function a call, no policy.
//
// libcuda.so.1 is opened at run time by [Load], so that one binary runs on every host; without it, or in a build without cgo, every
// function returns an error that wraps errors.ErrUnsupported. A failed call is an *[Error], which keeps the driver's number
// ([Result]) with its name and text.
//
// Every function may be called from any goroutine: the context it is given is set, used and put back within one call of C. (A
// thread that had none keeps the primary context of device 0, which CUDA's runtime would give it.) Handles
// are the driver's own pointers as numbers and belong to whoever made them. Device addresses are unsafe.Pointers into no memory of
// Go's. Lazy allocations and module loads are made in relaxed capture mode, so that they don't break a capture in progress on
// some stream; synchronising calls do, and the driver says so.
//
//	if err := cu.Load(); err != nil {
//		return err // names libcuda.so.1 and what the loader said
//	}
//	ctx, err := cu.PrimaryRetain(0)
package cu

import (
	"errors"
	"fmt"
	"unsafe"
)

// Library is what Load opens: it comes with the driver, not with the CUDA toolkit.
const Library = "libcuda.so.1"

// Handles of the driver. Zero is none; the zero Stream is the context's default stream.
type (
	Context  uintptr
	Module   uintptr
	Function uintptr
	Stream   uintptr
	Event    uintptr
	Graph    uintptr
	Node     uintptr // of a graph
	Exec     uintptr // an instantiated graph
)

// Attributes of devices, ways between them, functions and pointers, by the driver's numbers.
const (
	DeviceMultiprocessors        = 16
	DeviceMajor                  = 75
	DeviceMinor                  = 76
	DevicePosixHandles           = 103 // memory may be exported as a file descriptor
	DeviceGPUDirectRDMAByVMM     = 110
	DeviceRDMAWritesOrdering     = 118
	DeviceDMABuf                 = 124
	DeviceFabricHandles          = 128
	PeerNativeAtomics            = 3
	FunctionRegisters            = 4
	FunctionLocalBytes           = 3
	PointerContext               = 1
	PointerDeviceOrdinal         = 9
	PointerRangeStart            = 11
	PointerRangeSize             = 12
	OrderedForOwner              = 100 // a DeviceRDMAWritesOrdering; a greater one is for other devices too
	HandlePosix              int = 1
	HandleFabric             int = 8
)

// A Block is physical device memory mapped in the address space of this process.
type Block struct {
	Ptr    unsafe.Pointer
	Bytes  int64 // a multiple of the device's granularity
	handle uint64
}

// A StreamID tells streams apart for the life of the process: the handle of one that was destroyed may be given to the next. 0 is no stream's. Where
// the driver is too old to tell (before CUDA 12.0), it is another one each time.
type StreamID uint64

// Waits are events that a launch comes behind, each of which may be 0. On stream On it comes behind Done without.
type Waits struct {
	Done, Also Event
	On         StreamID
}

// MaxLaunches is what goes into one LaunchJoined.
const MaxLaunches = 8

// A Launch is one kernel of one argument by value.
type Launch struct {
	Function    Function
	Columns     uint32 // of the grid, which is of blocks
	Rows        uint32
	Threads     uint32 // of a block
	Cooperative bool   // all blocks run at once, or the launch fails
	Overlaps    bool   // it may begin before the kernel ahead of it has ended, for whose end it waits by itself

	Exec Exec // of Prepare, by which it is launched unless it is captured; 0: by itself
	Node Node
	Bind bool // Exec has to be told what it launches; false once it has been
}

// Result is the driver's number of a failure, a CUresult.
type Result int32

// Results that callers decide by.
const (
	InvalidValue        Result = 1
	OutOfMemory         Result = 2
	NoDevice            Result = 100
	PeerAlreadyEnabled  Result = 704
	NotReady            Result = 600
	CooperativeTooLarge Result = 720
	NotPermitted        Result = 800
	NotSupported        Result = 801
	SystemNotReady      Result = 802
	CaptureUnsupported  Result = 900
	missing             Result = -1 // not the driver's: it is too old for the call
)

// Is makes errors.Is(err, errors.ErrUnsupported) true for what this driver or device has not got.
func (r Result) Is(target error) bool {
	return target == errors.ErrUnsupported && (r == NotSupported || r == NoDevice || r == missing)
}

func (r Result) Error() string {
	switch r {
	case missing:
		return "the driver is too old to have it"
	case SystemNotReady:
		return "CUDA_ERROR_SYSTEM_NOT_READY (802): the NVSwitch fabric is not ready: start nvidia-fabricmanager of the driver's version"
	}
	name, text := describe(r)
	if name == "" {
		return fmt.Sprintf("CUDA error %d", int32(r))
	}
	return fmt.Sprintf("%s (%d): %s", name, int32(r), text)
}

// Error is a driver call that failed.
type Error struct {
	Call   string // the driver's name of it
	Result Result
}

func (e *Error) Error() string { return e.Call + ": " + e.Result.Error() }

// Unwrap returns the Result.
func (e *Error) Unwrap() error { return e.Result }
