package cuda

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// A Kernel is one of the interpreters in kernels.cu: one of each type and operator, and those of bytes.
type Kernel uint8

// The kernels for bytes; those that fold are found by FoldKernel.
const (
	MoveBytes Kernel = iota // Move
	SwapBytes               // Exchange, Divide
	TripBytes               // of a Trip, not of Programs
	numBytes
)

// operators are the kernels' own: an average of floating-point numbers is a sum that scales.
var operators = [...]string{kernels.Sum: "sum", kernels.Prod: "prod", kernels.Max: "max", kernels.Min: "min", kernels.Avg: "avg"}

const (
	numDTypes  = 12
	numRedOps  = 5
	numKernels = numBytes + numDTypes*numRedOps
)

// FoldKernel returns the kernel whose instrs fold by d and op. An average of an integer type is a sum, to be divided afterwards.
func FoldKernel(d kernels.DType, op kernels.RedOp) (Kernel, error) {
	if err := d.Check(); err != nil {
		return 0, err
	}
	if err := op.Check(); err != nil {
		return 0, err
	}
	if op == kernels.Avg && !d.IsFloat() {
		op = kernels.Sum
	}
	return numBytes + Kernel(int(d)*numRedOps+int(op)), nil
}

// name returns the kernel's name in kernels.cu. Signed and unsigned integers share sums and products.
func (k Kernel) name() string {
	if k < numBytes {
		return [...]string{"gccl_move_bytes", "gccl_swap_bytes", "gccl_trip_bytes"}[k]
	}
	i := int(k - numBytes)
	d, op := kernels.DType(i/numRedOps), kernels.RedOp(i%numRedOps)
	if op == kernels.Sum || op == kernels.Prod {
		switch d {
		case kernels.Int8:
			d = kernels.Uint8
		case kernels.Int32:
			d = kernels.Uint32
		case kernels.Int64:
			d = kernels.Uint64
		}
	}
	return "gccl_move_" + operators[op] + "_" + d.String()
}

// size returns the bytes of what the kernel counts in.
func (k Kernel) size() uint64 {
	if k < numBytes {
		return 1
	}
	return uint64(kernels.DType(int(k-numBytes) / numRedOps).Size())
}

// ofFloat8 reports whether the kernel is of an 8-bit floating-point type.
func (k Kernel) ofFloat8() bool {
	return k >= numBytes && kernels.DType(int(k-numBytes)/numRedOps) >= kernels.Float8e4m3
}

// exists is false for the averages of integers, which are none of the kernels.
func (k Kernel) exists() bool {
	if k < numBytes {
		return true
	}
	i := int(k - numBytes)
	return kernels.RedOp(i%numRedOps) != kernels.Avg || kernels.DType(i/numRedOps).IsFloat()
}

//go:embed zkernels_sm80.ptx.gz
var everywhere []byte

//go:embed zfloat8_sm90.ptx.gz
var float8 []byte

// ptx returns the text of the kernels that all GPUs run, or of those of the 8-bit floating-point types.
func ptx(ofFloat8 bool) ([]byte, error) {
	if ofFloat8 {
		return unpack(float8)
	}
	return unpack(everywhere)
}

func unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// Float8Capability is the compute capability from which on the 8-bit floating-point types are folded.
const Float8Capability = 9

// Folds reports whether the device folds a type, or a *kernels.UnsupportedError. Every device copies all types.
func (d *Device) Folds(t kernels.DType) error {
	if t.IsFloat() && t.Size() == 1 && d.info.Major < Float8Capability {
		return &kernels.UnsupportedError{Kernel: "fold", Device: fmt.Sprintf("%v, a %s of compute capability %d.%d", d, d.info.Name, d.info.Major, d.info.Minor),
			DType: t, Accepted: "it from compute capability 9.0 on; everywhere the other types"}
	}
	return nil
}

// load compiles the kernels and finds them all: finding one later could wait for work on the GPU. Side by side the two parts take the
// driver no less time.
func (d *Device) load() error {
	for i := range d.module {
		if i == 0 || d.info.Major >= Float8Capability {
			if err := d.loadPart(i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Device) loadPart(i int) error {
	ofFloat8 := i == 1
	text, err := ptx(ofFloat8)
	if err != nil {
		return err
	}
	if d.module[i], err = cu.ModuleLoad(d.ctx, d.edit(text)); err != nil {
		return err
	}
	for k := range Kernel(numKernels) {
		if !k.exists() || k.ofFloat8() != ofFloat8 {
			continue
		}
		if d.table[k], err = cu.ModuleFunction(d.ctx, d.module[i], k.name()); err != nil {
			return err
		}
		if _, err = cu.FunctionAttribute(d.ctx, d.table[k], cu.FunctionRegisters); err != nil { // loads it, whatever the driver's laziness
			return fmt.Errorf("%s: %w", k.name(), err)
		}
	}
	return nil
}

// Resident returns how many blocks of so many threads of a kernel the device runs at once.
func (d *Device) Resident(k Kernel, threads int) (int, error) {
	n, err := cu.Occupancy(d.ctx, d.table[k], threads)
	return n * d.info.Multiprocessors, err
}
