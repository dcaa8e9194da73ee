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
