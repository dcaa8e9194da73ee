//go:build !purego

package cpu

import (
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/klauspost/cpuid/v2"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/kernels"
)

func TestAVX2IsTheBest(t *testing.T) {
	if !cpuid.CPU.Supports(cpuid.AVX2, cpuid.F16C) {
		if slices.Contains(strings.Split(os.Getenv("GCCL_REQUIRE"), ","), "avx2") {
			t.Fatal("GCCL_REQUIRE asks for avx2; this processor lacks AVX2 or F16C")
		}
		t.Skip("this processor lacks AVX2 or F16C")
	}
	require.Equal(t, "avx2", Implementations()[0].Name())
}

// TestAssemblyIsCalledForShortStretches: what a call touches is bounded whatever the number of sources, and the stretches fit
// together. The kernel stands in for assembly and records.
func TestAssemblyIsCalledForShortStretches(t *testing.T) {
	for _, nsrc := range []int{1, 2, 3, 64, 5000, 20000} {
		for _, bytes := range []int{4, 31 * 4, 32, 4096, 1<<20 + 68} {
			at, tail := 0, 0
			record := func(_ *byte, _ **byte, n, from, to int) {
				require.Equal(t, nsrc, n)
				require.Equal(t, at, from)
				require.Zero(t, from%vectorBytes+to%vectorBytes)
				require.LessOrEqual(t, (to-from)*(nsrc+1), max(callBytes, vectorBytes*(nsrc+1)))
				at = to
			}
			twin := func(_ unsafe.Pointer, _ []unsafe.Pointer, from, to int) {
				require.Equal(t, at, from*4)
				tail = to - from
			}
			var word uint64
			vectorReduce(record, twin, 4)(unsafe.Pointer(&word), make([]unsafe.Pointer, nsrc), bytes/4)
			require.Equal(t, bytes, at+4*tail)
			require.Less(t, 4*tail, vectorBytes)
		}
	}
}

// TestEvery16BitsThroughEveryKernel: every number and NaN of the 16-bit formats, with those that hurt.
func TestEvery16BitsThroughEveryKernel(t *testing.T) {
	if len(Implementations()) == 1 {
		t.Skip("this processor lacks AVX2 or F16C")
	}
	for _, d := range []kernels.DType{kernels.Float16, kernels.Bfloat16} {
		a, b, got, want := make([]uint16, 1<<16), make([]uint16, 1<<16), make([]uint16, 1<<16), make([]uint16, 1<<16)
		for i := range a {
			a[i] = uint16(i)
		}
		for _, other := range []uint16{0, 0x8000, 1, 0x3c00, 0x3f80, 0x7bff, 0x7f7f, 0x7c00, 0x7f80, 0xff80, 0x7c01, 0x7fc1, 0xffff} {
			for i := range b {
				b[i] = other
			}
			srcs := []unsafe.Pointer{unsafe.Pointer(&a[0]), unsafe.Pointer(&b[0])}
			for op := range avx2Spans[d] {
				for n := 1; n <= 2; n++ {
					implementations[0].reduce[d][op](unsafe.Pointer(&got[0]), srcs[:n], len(got))
					generic.reduce[d][op](unsafe.Pointer(&want[0]), srcs[:n], len(want))
					require.Equal(t, want, got, "%s %s with %#x", d, kernels.RedOp(op), other)
				}
			}
			for scaled := range 2 {
				implementations[0].preMul[d](unsafe.Pointer(&got[0]), srcs, len(got), scaled, 1.0/3)
				generic.preMul[d](unsafe.Pointer(&want[0]), srcs, len(want), scaled, 1.0/3)
				require.Equal(t, want, got, "%s scaled with %#x", d, other)
			}
		}
	}
}
