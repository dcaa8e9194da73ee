package kernels

import "unsafe"

// A Factor is what a rank's own input is multiplied by before a sum, rounded to the data type, as each product is. It is plain data;
// the zero value is none.
type Factor struct {
	Set   bool
	Value float64
	// At is not nil: the factor is one element of the sum's data type there, in memory of the GPU that does the sum; it is read
	// when the work is done, and Value counts for nothing.
	At unsafe.Pointer
}

// FactorOf is a factor that the host knows.
func FactorOf(v float64) Factor { return Factor{Set: true, Value: v} }

// FactorAt is a factor in a GPU's memory.
func FactorAt(p unsafe.Pointer) Factor { return Factor{Set: true, At: p} }

// Load is the factor with the value of the element at At, of this type, in memory that the host can read. One that the host knows stays as it is.
func (f Factor) Load(t DType) Factor {
	if f.At == nil {
		return f
	}
	switch t {
	case Float16:
		return FactorOf(float64((*Half)(f.At).Float32()))
	case Bfloat16:
		return FactorOf(float64((*BFloat16)(f.At).Float32()))
	case Float8e4m3:
		return FactorOf(float64((*Float8E4M3)(f.At).Float32()))
	case Float8e5m2:
		return FactorOf(float64((*Float8E5M2)(f.At).Float32()))
	case Float32:
		return FactorOf(float64(*(*float32)(f.At)))
	case Float64:
		return FactorOf(*(*float64)(f.At))
	}
	panic("kernels: a factor of integers")
}
