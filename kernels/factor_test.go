package kernels

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestFactorLoad(t *testing.T) {
	h, b, e4, e5, f, d := HalfFromFloat32(1.5), BFloat16FromFloat32(1.5), Float8E4M3(0x3c), Float8E5M2(0x3e), float32(1.5), 1.5
	for dtype, p := range map[DType]unsafe.Pointer{Float16: unsafe.Pointer(&h), Bfloat16: unsafe.Pointer(&b), Float8e4m3: unsafe.Pointer(&e4), Float8e5m2: unsafe.Pointer(&e5),
		Float32: unsafe.Pointer(&f), Float64: unsafe.Pointer(&d)} {
		require.Equal(t, FactorOf(1.5), FactorAt(p).Load(dtype), "%v", dtype)
	}
	require.Equal(t, FactorOf(2), FactorOf(2).Load(Float32))
	require.Equal(t, Factor{}, Factor{}.Load(Int8))
}
