package cpu_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cpu"
	"github.com/gccl-project/gccl/kernels/kernelstest"
)

func TestImplementations(t *testing.T) {
	all := cpu.Implementations()
	if last := all[len(all)-1].Name(); last != "generic" {
		t.Errorf("the last implementation is %q, want the generic one", last)
	}
	for _, m := range all {
		t.Run(m.Name(), func(t *testing.T) { kernelstest.Run(t, m) })
	}
}

func TestChoose(t *testing.T) {
	for _, m := range cpu.Implementations() {
		chosen, err := cpu.Choose(m.Name())
		same(t, err, nil)
		same(t, chosen.Name(), m.Name())
	}
	best, err := cpu.Choose("")
	same(t, err, nil)
	same(t, best.Name(), cpu.Implementations()[0].Name())
	_, err = cpu.Choose("avx1024")
	var value *kernels.ValueError
	if !errors.As(err, &value) || !strings.HasSuffix(value.Accepted, "generic") {
		t.Errorf("an impossible choice gives %v", err)
	}
}

// On the host nothing is left out: what kernelstest would skip is a failure here.
func TestUC78_EveryTypeAndOperator(t *testing.T) {
	for _, d := range kernels.DTypes() {
		for _, op := range kernels.RedOps() {
			if _, err := cpu.Reducer(d, op); err != nil {
				t.Errorf("%s %s: %v", d, op, err)
			}
		}
		var scaling error
		if d.IsFloat() {
			_, scaling = cpu.PreMul(d)
		} else {
			_, scaling = cpu.PostDiv(d)
		}
		if scaling != nil {
			t.Errorf("scaling of %s: %v", d, scaling)
		}
	}
}

func TestUnsupportedNamesTypes(t *testing.T) {
	_, err := cpu.PreMul(kernels.Int32)
	same(t, fmt.Sprint(err), "kernels: PreMul on cpu does not support data type int32; accepted: half, float, double, bfloat16, f8e4m3, f8e5m2")
	_, err = cpu.PostDiv(kernels.Bfloat16)
	same(t, fmt.Sprint(err), "kernels: PostDiv on cpu does not support data type bfloat16; accepted: int8, uint8, int32, uint32, int64, uint64")
}

func TestBrokenPromisesPanic(t *testing.T) {
	x := []float32{1}
	p := unsafe.Pointer(&x[0])
	for _, d := range kernels.DTypes() {
		if preMul, err := cpu.PreMul(d); err == nil {
			for _, scaled := range []int{-2, 1} {
				same(t, panicOf(func() { preMul(p, []unsafe.Pointer{p}, 1, scaled, 2) }),
					fmt.Sprintf("cpu: PreMul: source %d of 1 cannot be scaled; want 0 to 0, or AllSources", scaled))
			}
		}
		if postDiv, err := cpu.PostDiv(d); err == nil {
			same(t, panicOf(func() { postDiv(p, 1, 0) }), "cpu: PostDiv: divisor 0; want at least 1")
		}
	}
	same(t, x[0], 1)
}

func panicOf(f func()) (text string) {
	defer func() { text = fmt.Sprint(recover()) }()
	f()
	return
}

func same[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestCopy(t *testing.T) {
	cpu.Copy(nil, nil, 0)
	cpu.Copy(nil, nil, -1)
	b := []byte("0123456789")
	cpu.Copy(unsafe.Pointer(&b[2]), unsafe.Pointer(&b[0]), 5)
	same(t, string(b), "0101234789")
	cpu.Copy(unsafe.Pointer(&b[0]), unsafe.Pointer(&b[2]), 5)
	same(t, string(b), "0123434789")
}

// Every byte arrives, and none beside it changes, wherever the ends lie between the lines of memory.
func TestCopyStreaming(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	src, dst, want := make([]byte, 1<<20), make([]byte, 1<<20), make([]byte, 1<<20)
	for i := range src {
		src[i] = byte(random.Uint32())
	}
	try := func(to, from, n int) {
		copy(dst, want)
		cpu.CopyStreaming(unsafe.Pointer(&dst[to]), unsafe.Pointer(&src[from]), n)
		copy(want[to:to+n], src[from:])
		if !bytes.Equal(dst, want) {
			t.Fatalf("copy of %d bytes from %d to %d is wrong", n, from, to)
		}
	}
	cpu.CopyStreaming(nil, nil, 0)
	for n := range 600 {
		try(random.IntN(64), random.IntN(64), n)
	}
	for range 50 {
		try(random.IntN(64), random.IntN(64), random.IntN(1<<20-64))
	}
}

func TestNothingIsAllocated(t *testing.T) {
	const n = 3000
	srcs := make([]unsafe.Pointer, 8)
	for k := range srcs {
		srcs[k] = unsafe.Pointer(unsafe.SliceData(make([]uint64, n)))
	}
	for _, d := range kernels.DTypes() {
		for _, op := range kernels.RedOps() {
			for _, nsrc := range []int{1, 2, 3, 8} {
				for _, length := range []int{1, n} {
					if allocs := testing.AllocsPerRun(5, func() {
						f, err := cpu.Reducer(d, op)
						if err == nil {
							f(srcs[0], srcs[:nsrc], length)
						}
					}); allocs != 0 {
						t.Errorf("%s %s, %d sources, %d elements: %v allocations", d, op, nsrc, length, allocs)
					}
				}
			}
		}
		for _, scaled := range []int{kernels.AllSources, 0, 7} {
			if allocs := testing.AllocsPerRun(5, func() {
				if d.IsFloat() {
					f, err := cpu.PreMul(d)
					if err == nil {
						f(srcs[0], srcs, n, scaled, 0.5)
					}
					return
				}
				f, err := cpu.PostDiv(d)
				if err == nil {
					f(srcs[0], n, 3)
				}
			}); allocs != 0 {
				t.Errorf("scaling of %s: %v allocations", d, allocs)
			}
		}
	}
}

// FuzzReduce gives all implementations the fuzzer's bytes as sources, and its choice of everything else.
func FuzzReduce(f *testing.F) {
	for _, d := range kernels.DTypes() {
		for _, op := range kernels.RedOps() {
			f.Add(uint8(d), uint8(op), uint8(2), uint8(1), kernelstest.Random(d, 70, uint64(op)))
		}
	}
	f.Fuzz(func(t *testing.T, dtype, redop, nsrc, place uint8, data []byte) {
		d := kernels.DType(int(dtype) % len(kernels.DTypes()))
		op := kernels.RedOp(int(redop) % len(kernels.RedOps()))
		sources := 1 + int(nsrc)%12
		n := len(data) / sources / d.Size()
		f := newFold(d, sources, n, int(place), data)
		want := kernelstest.Reduce(d, op, f.srcs)
		for _, m := range cpu.Implementations() {
			kernel, err := m.Reducer(d, op)
			if err != nil {
				t.Fatal(err)
			}
			if got := f.run(func(dst unsafe.Pointer, srcs []unsafe.Pointer) { kernel(dst, srcs, n) }); !bytes.Equal(got, want) {
				t.Fatalf("%s: %s %s, %d sources, in place at %d:\n got %x\nwant %x", m.Name(), d, op, sources, f.target, got, want)
			}
		}
	})
}

// FuzzPreMul is as FuzzReduce, for the scaled sum.
func FuzzPreMul(f *testing.F) {
	for _, d := range kernels.DTypes() {
		if d.IsFloat() {
			f.Add(uint8(d), uint8(2), uint8(1), int8(1), 1.0/3, kernelstest.Random(d, 70, 1))
		}
	}
	f.Fuzz(func(t *testing.T, dtype, nsrc, place uint8, scaled int8, factor float64, data []byte) {
		d := []kernels.DType{kernels.Float16, kernels.Float32, kernels.Float64, kernels.Bfloat16, kernels.Float8e4m3, kernels.Float8e5m2}[dtype%6]
		sources := 1 + int(nsrc)%12
		n := len(data) / sources / d.Size()
		which := max(kernels.AllSources, int(scaled)%sources)
		f := newFold(d, sources, n, int(place), data)
		want := kernelstest.PreMul(d, f.srcs, which, factor)
		for _, m := range cpu.Implementations() {
			kernel, err := m.PreMul(d)
			if err != nil {
				t.Fatal(err)
			}
			if got := f.run(func(dst unsafe.Pointer, srcs []unsafe.Pointer) { kernel(dst, srcs, n, which, factor) }); !bytes.Equal(got, want) {
				t.Fatalf("%s: %s, %d sources, in place at %d, %d scaled by %v:\n got %x\nwant %x", m.Name(), d, sources, f.target, which, factor, got, want)
			}
		}
	})
}

// A fuzzFold is a fold of the fuzzer's bytes.
type fuzzFold struct {
	srcs   [][]byte
	size   int // bytes of each
	target int // the source that is the destination; len(srcs): one apart
}

func newFold(d kernels.DType, sources, n, place int, data []byte) fuzzFold {
	f := fuzzFold{make([][]byte, sources), n * d.Size(), place % (sources + 1)}
	for k := range f.srcs {
		f.srcs[k] = data[k*f.size:][:f.size]
	}
	return f
}

// run gives the kernel copies of the sources and returns the destination.
func (f fuzzFold) run(kernel func(dst unsafe.Pointer, srcs []unsafe.Pointer)) []byte {
	pointers := make([]unsafe.Pointer, len(f.srcs)+1)
	for k := range pointers {
		pointers[k] = unsafe.Pointer(unsafe.SliceData(make([]uint64, f.size/8+1)))
		if k < len(f.srcs) {
			copy(unsafe.Slice((*byte)(pointers[k]), f.size), f.srcs[k])
		}
	}
	kernel(pointers[f.target], pointers[:len(f.srcs)])
	return unsafe.Slice((*byte)(pointers[f.target]), f.size)
}
