package kernelstest_test

import (
	"bytes"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cpu"
	"github.com/gccl-project/gccl/kernels/kernelstest"
)

func TestCodec(t *testing.T) {
	for _, row := range []struct {
		d kernels.DType
		x uint64
		v float64
	}{
		{kernels.Float16, 0x3c00, 1}, {kernels.Float16, 0xc000, -2}, {kernels.Float16, 0x7bff, 65504},
		{kernels.Float16, 0x0001, 0x1p-24}, {kernels.Float16, 0x0400, 0x1p-14}, {kernels.Float16, 0x03ff, 0x3ffp-24},
		{kernels.Float16, 0x3555, 0x1.554p-2}, {kernels.Float16, 0xfc00, math.Inf(-1)},
		{kernels.Bfloat16, 0x3f80, 1}, {kernels.Bfloat16, 0xc040, -3}, {kernels.Bfloat16, 0x7f7f, 0x1.fep127},
		{kernels.Float8e4m3, 0x01, 0x1p-9}, {kernels.Float8e4m3, 0x08, 0x1p-6}, {kernels.Float8e4m3, 0xb8, -1}, {kernels.Float8e4m3, 0x7e, 448},
		{kernels.Float8e5m2, 0x01, 0x1p-16}, {kernels.Float8e5m2, 0x04, 0x1p-14}, {kernels.Float8e5m2, 0x3e, 1.5}, {kernels.Float8e5m2, 0xfb, -57344},
		{kernels.Bfloat16, 0x0001, 0x1p-133}, {kernels.Bfloat16, 0x7f80, math.Inf(1)},
		{kernels.Float32, 0x3f800000, 1}, {kernels.Float32, 0x00000001, math.SmallestNonzeroFloat32},
		{kernels.Float32, 0xff7fffff, -math.MaxFloat32}, {kernels.Float64, 0x3ff8000000000000, 1.5},
		{kernels.Float64, 0x0000000000000001, math.SmallestNonzeroFloat64}, {kernels.Float64, 0xffefffffffffffff, -math.MaxFloat64},
	} {
		if got := kernelstest.Decode(row.d, row.x); got != row.v {
			t.Errorf("%s %#x is %v, want %v", row.d, row.x, got, row.v)
		}
		if got := kernelstest.Encode(row.d, row.v); got != row.x {
			t.Errorf("%s %v is %#x, want %#x", row.d, row.v, got, row.x)
		}
	}
	for d, want := range map[kernels.DType]uint64{
		kernels.Float16: 0x7e00, kernels.Bfloat16: 0x7fc0, kernels.Float32: 0x7fc00000, kernels.Float64: 0x7ff8000000000000,
		kernels.Float8e4m3: 0x7f, kernels.Float8e5m2: 0x7f,
	} {
		if got := kernelstest.Encode(d, math.NaN()); got != want {
			t.Errorf("%s NaN is %#x, want %#x", d, got, want)
		}
	}
	for _, row := range []struct {
		v float64
		x uint64
	}{{65519.99, 0x7bff}, {65520, 0x7c00}, {-1e9, 0xfc00}, {0x1p-25, 0}, {0x1.8p-24, 2}, {2049, 0x6800}, {2051, 0x6802}} {
		if got := kernelstest.Encode(kernels.Float16, row.v); got != row.x {
			t.Errorf("half %v is %#x, want %#x", row.v, got, row.x)
		}
	}
	for _, row := range []struct {
		v      float64
		e4, e5 uint64
	}{{465, 0x7e, 0x5f}, {-1e9, 0xfe, 0xfb}, {math.Inf(1), 0x7e, 0x7b}, {0x1p-10, 0, 0x14}, {0x1.8p-9, 2, 0x1a}, {17, 0x58, 0x4c}, {19, 0x5a, 0x4d}} {
		if e4, e5 := kernelstest.Encode(kernels.Float8e4m3, row.v), kernelstest.Encode(kernels.Float8e5m2, row.v); e4 != row.e4 || e5 != row.e5 {
			t.Errorf("%v is %#x and %#x, want %#x and %#x", row.v, e4, e5, row.e4, row.e5)
		}
	}
}

// A mutant is a right device with one fault in one type.
type mutant struct {
	cpu.Implementation
	dtype  kernels.DType
	reduce func(right cpu.Reduce, dst unsafe.Pointer, srcs []unsafe.Pointer, n int)
}

func (m mutant) Reducer(d kernels.DType, op kernels.RedOp) (cpu.Reduce, error) {
	right, err := m.Implementation.Reducer(d, op)
	if err != nil || d != m.dtype {
		return right, err
	}
	return func(dst unsafe.Pointer, srcs []unsafe.Pointer, n int) { m.reduce(right, dst, srcs, n) }, nil
}

// pairwise folds two sources at a time into a buffer apart, so that each partial result is rounded.
func pairwise(right cpu.Reduce, dst unsafe.Pointer, srcs []unsafe.Pointer, n int) {
	if n <= 0 {
		return
	}
	words := make([]uint64, n)
	partial := unsafe.Pointer(&words[0])
	right(partial, srcs[:1], n)
	for k := range srcs[1:] {
		right(partial, []unsafe.Pointer{partial, srcs[k+1]}, n)
	}
	right(dst, []unsafe.Pointer{partial}, n)
}

var mutants = map[string]struct {
	mutant
	says string
}{
	"rounds each step": {mutant{dtype: kernels.Bfloat16, reduce: pairwise}, "bfloat16, 3 sources"},
	"from the last source to the first": {mutant{dtype: kernels.Float32,
		reduce: func(right cpu.Reduce, dst unsafe.Pointer, srcs []unsafe.Pointer, n int) {
			var back []unsafe.Pointer
			for k := range srcs {
				back = append(back, srcs[len(srcs)-1-k])
			}
			right(dst, back, n)
		}}, "float, 3 sources"},
	"accumulates in the destination": {mutant{dtype: kernels.Int32,
		reduce: func(right cpu.Reduce, dst unsafe.Pointer, srcs []unsafe.Pointer, n int) {
			right(dst, srcs[:1], n)
			for k := range srcs[1:] {
				right(dst, []unsafe.Pointer{dst, srcs[k+1]}, n)
			}
		}}, "in place at 1"},
	"writes one element too many": {mutant{dtype: kernels.Int64,
		reduce: func(right cpu.Reduce, dst unsafe.Pointer, srcs []unsafe.Pointer, n int) {
			right(dst, srcs, n)
			if n%4 == 3 {
				unsafe.Slice((*int64)(dst), n+1)[n] = 0
			}
		}}, "of the destination's"},
	"forgets the tail": {mutant{dtype: kernels.Uint8,
		reduce: func(right cpu.Reduce, dst unsafe.Pointer, srcs []unsafe.Pointer, n int) { right(dst, srcs, n-n%2) }}, "want"},
	"scribbles on a source": {mutant{dtype: kernels.Uint32,
		reduce: func(right cpu.Reduce, dst unsafe.Pointer, srcs []unsafe.Pointer, n int) {
			right(dst, srcs, n)
			if last := srcs[len(srcs)-1]; n > 0 && last != dst {
				*(*uint32)(last)++
			}
		}}, "source 0 was written to"},
	"keeps the processor's NaN": {mutant{dtype: kernels.Float64,
		reduce: func(right cpu.Reduce, dst unsafe.Pointer, srcs []unsafe.Pointer, n int) {
			right(dst, srcs, n)
			for i, x := range unsafe.Slice((*uint64)(dst), max(n, 0)) {
				if x == 0x7ff8000000000000 {
					unsafe.Slice((*uint64)(dst), n)[i] |= 1 << 63
				}
			}
		}}, "0xfff8000000000000, want 0x7ff8000000000000"},
	"takes -0 for 0": {mutant{dtype: kernels.Float16,
		reduce: func(right cpu.Reduce, dst unsafe.Pointer, srcs []unsafe.Pointer, n int) {
			right(dst, srcs, n)
			for i, x := range unsafe.Slice((*uint16)(dst), max(n, 0)) {
				if x == 0x8000 {
					unsafe.Slice((*uint16)(dst), n)[i] = 0
				}
			}
		}}, "0x0, want 0x8000"},
}

const mutantVariable = "GCCL_KERNELSTEST_MUTANT"

// TestRunFindsFaults runs each mutant in a process of its own, whose test must fail and say why.
func TestRunFindsFaults(t *testing.T) {
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			command := exec.Command(os.Args[0], "-test.run=^TestMutant$/^Reduce$", "-test.short")
			command.Env = append(os.Environ(), mutantVariable+"="+name)
			output, err := command.CombinedOutput()
			if _, failed := err.(*exec.ExitError); !failed {
				t.Fatalf("the mutant passes (%v):\n%s", err, output)
			}
			if !strings.Contains(string(output), m.says) {
				t.Errorf("the failure does not say %q:\n%s", m.says, output)
			}
			for _, d := range kernels.DTypes() {
				if found := bytes.Contains(output, []byte("/"+d.String()+"/")); found != (d == m.dtype) {
					t.Errorf("failure of %s: %v, want %v:\n%s", d, found, d == m.dtype, output)
				}
			}
		})
	}
}

func TestMutant(t *testing.T) {
	name := os.Getenv(mutantVariable)
	if name == "" {
		t.Skip("this is TestRunFindsFaults' other process")
	}
	m := mutants[name].mutant
	m.Implementation = cpu.Implementations()[0]
	kernelstest.Run(t, m)
}
