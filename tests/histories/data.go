package histories

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/gccl-project/gccl/kernels"
)

// value is element i of rank's data for the call id: small, so that reductions are exact in every type.
func value(id uint64, rank, i int, op kernels.RedOp) int {
	h := id + uint64(rank)*0x9e3779b97f4a7c15 + uint64(i)*0xd1342543de82ef95
	h = (h ^ h>>32) * 0xbf58476d1ce4e5b9
	x := int(h >> 40)
	if op == kernels.Prod {
		return 1 + x%2
	}
	return 1 + x%10
}

func apply(op kernels.RedOp, a, b int) int {
	switch op {
	case kernels.Sum:
		return a + b
	case kernels.Prod:
		return a * b
	case kernels.Max:
		return max(a, b)
	}
	return min(a, b)
}

// fill sets all bytes of b to x.
func fill(b []byte, x byte) {
	if len(b) > 0 {
		b[0] = x
		for n := 1; n < len(b); n *= 2 {
			copy(b[n:], b[:n])
		}
	}
}

// all reports whether all bytes of b are x.
func all(b []byte, x byte) bool { return len(b) == 0 || b[0] == x && bytes.Equal(b[1:], b[:len(b)-1]) }

func put(b []byte, t kernels.DType, v int) {
	switch t {
	case kernels.Int8, kernels.Uint8:
		b[0] = byte(v)
	case kernels.Int32, kernels.Uint32:
		binary.NativeEndian.PutUint32(b, uint32(v))
	case kernels.Int64, kernels.Uint64:
		binary.NativeEndian.PutUint64(b, uint64(v))
	case kernels.Float32:
		binary.NativeEndian.PutUint32(b, math.Float32bits(float32(v)))
	case kernels.Float64:
		binary.NativeEndian.PutUint64(b, math.Float64bits(float64(v)))
	}
}

func get(b []byte, t kernels.DType) float64 {
	switch t {
	case kernels.Int8:
		return float64(int8(b[0]))
	case kernels.Uint8:
		return float64(b[0])
	case kernels.Int32:
		return float64(int32(binary.NativeEndian.Uint32(b)))
	case kernels.Uint32:
		return float64(binary.NativeEndian.Uint32(b))
	case kernels.Int64:
		return float64(int64(binary.NativeEndian.Uint64(b)))
	case kernels.Uint64:
		return float64(binary.NativeEndian.Uint64(b))
	case kernels.Float32:
		return float64(math.Float32frombits(binary.NativeEndian.Uint32(b)))
	}
	return math.Float64frombits(binary.NativeEndian.Uint64(b))
}
