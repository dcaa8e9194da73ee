package cpu_test

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cpu"
)

// Bytes per second are those of one operand, as in the tables of message sizes: a fold of two moves
// three times as many.

func BenchmarkReduce(b *testing.B) {
	for _, op := range []kernels.RedOp{kernels.Sum, kernels.Prod, kernels.Max, kernels.Min} {
		for _, d := range kernels.DTypes() {
			for _, nsrc := range []int{2, 8} {
				if op == kernels.Sum || nsrc == 2 {
					b.Run(fmt.Sprintf("%s/%s/%dsrcs/32KiB", op, d, nsrc), func(b *testing.B) { benchmarkReduce(b, d, op, nsrc, 32<<10) })
				}
			}
		}
	}
}

// A few elements: what a call costs.
func BenchmarkReduceShort(b *testing.B) {
	for _, d := range []kernels.DType{kernels.Float32, kernels.Float16, kernels.Bfloat16} {
		for _, nsrc := range []int{2, 8} {
			b.Run(fmt.Sprintf("%s/%dsrcs/8B", d, nsrc), func(b *testing.B) { benchmarkReduce(b, d, kernels.Sum, nsrc, 8) })
		}
	}
}

// More than the first caches hold, and more than all do.
func BenchmarkReduceLong(b *testing.B) {
	for _, d := range []kernels.DType{kernels.Float32, kernels.Float16, kernels.Bfloat16, kernels.Int8} {
		for _, mib := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/2srcs/%dMiB", d, mib), func(b *testing.B) { benchmarkReduce(b, d, kernels.Sum, 2, mib<<20) })
		}
	}
}

// What memory allows: a copy of the same size.
func BenchmarkCopy(b *testing.B) {
	for _, mib := range []int{1, 64} {
		b.Run(fmt.Sprintf("%dMiB", mib), func(b *testing.B) {
			p := buffers(kernels.Int8, 2, mib<<20)
			b.SetBytes(int64(mib) << 20)
			for b.Loop() {
				cpu.Copy(p[0], p[1], mib<<20)
			}
		})
	}
}

func benchmarkReduce(b *testing.B, d kernels.DType, op kernels.RedOp, nsrc, bytes int) {
	srcs := buffers(d, nsrc, bytes)
	dst := buffers(d, 1, bytes)[0]
	kernel, err := cpu.Reducer(d, op)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(bytes))
	for b.Loop() {
		kernel(dst, srcs, bytes/d.Size())
	}
}

func BenchmarkPreMul(b *testing.B) {
	for _, d := range kernels.DTypes() {
		kernel, err := cpu.PreMul(d)
		if err != nil {
			continue
		}
		b.Run(d.String(), func(b *testing.B) {
			const bytes = 32 << 10
			srcs := buffers(d, 2, bytes)
			dst := buffers(d, 1, bytes)[0]
			b.SetBytes(bytes)
			for b.Loop() {
				kernel(dst, srcs, bytes/d.Size(), 1, 1.0/3)
			}
		})
	}
}

func BenchmarkPostDiv(b *testing.B) {
	for _, d := range kernels.DTypes() {
		kernel, err := cpu.PostDiv(d)
		if err != nil {
			continue
		}
		b.Run(d.String(), func(b *testing.B) {
			const bytes = 32 << 10
			dst := buffers(d, 1, bytes)[0]
			b.SetBytes(bytes)
			for b.Loop() {
				kernel(dst, bytes/d.Size(), 3)
			}
		})
	}
}

// buffers returns memory filled with small numbers, none of them NaN or denormal.
func buffers(d kernels.DType, count, bytes int) []unsafe.Pointer {
	all := make([]unsafe.Pointer, count)
	for k := range all {
		words := make([]uint64, bytes/8)
		for i := range words {
			x := uint64(i*7+k) % 97
			switch d {
			case kernels.Float64:
				words[i] = 0x3ff0<<48 | x<<40
			case kernels.Float32:
				words[i] = (0x3f80<<16 | x<<10) * (1<<32 + 1)
			case kernels.Float16:
				words[i] = (0x3c00 | x) * 0x0001000100010001
			case kernels.Bfloat16:
				words[i] = (0x3f80 | x&0x7f) * 0x0001000100010001
			default:
				words[i] = x * 0x0101010101010101
			}
		}
		all[k] = unsafe.Pointer(&words[0])
	}
	return all
}
