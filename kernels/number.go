package kernels

import "unsafe"

// A Number is a Go type that a buffer may hold: the machine's numbers and user types made from
// them, and the short floating-point formats (the 8-bit ones are among ~uint8). Plain uint16 is not a Number, nor are int and
// uint, whose size differs between hosts.
type Number interface {
	~int8 | ~uint8 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~float32 | ~float64 | Half | BFloat16
}

// DTypeOf returns the data type of T. It costs no reflection and no allocation: all but the choice
// between types of one short size is decided when the program is compiled.
func DTypeOf[T Number]() DType {
	var zero T
	one, two := T(1), T(2)
	fractions := one/two != zero
	signed := zero-one < zero
	switch unsafe.Sizeof(zero) {
	case 1:
		if signed {
			return Int8
		}
		switch any(zero).(type) {
		case Float8E4M3:
			return Float8e4m3
		case Float8E5M2:
			return Float8e5m2
		}
		return Uint8
	case 2:
		if _, ok := any(zero).(Half); ok {
			return Float16
		}
		return Bfloat16
	case 4:
		switch {
		case fractions:
			return Float32
		case signed:
			return Int32
		}
		return Uint32
	default:
		switch {
		case fractions:
			return Float64
		case signed:
			return Int64
		}
		return Uint64
	}
}
