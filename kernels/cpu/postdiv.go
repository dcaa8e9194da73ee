package cpu

import (
	"fmt"
	"unsafe"
)

// The quotients are taken in 64 bits: a divisor may be larger than any number of a small type.

func divideSigned[T int8 | int32 | int64](dst unsafe.Pointer, n int, divisor int64) {
	checkDivisor(divisor)
	if n <= 0 {
		return
	}
	d := unsafe.Slice((*T)(dst), n)
	for i, x := range d {
		d[i] = T(int64(x) / divisor)
	}
}

func divideUnsigned[T uint8 | uint32 | uint64](dst unsafe.Pointer, n int, divisor int64) {
	checkDivisor(divisor)
	if n <= 0 {
		return
	}
	d := unsafe.Slice((*T)(dst), n)
	for i, x := range d {
		d[i] = T(uint64(x) / uint64(divisor))
	}
}

// checkDivisor panics on a caller's broken promise, also when there is nothing to divide.
func checkDivisor(divisor int64) {
	if divisor < 1 {
		panic(fmt.Sprintf("cpu: PostDiv: divisor %d; want at least 1", divisor))
	}
}
