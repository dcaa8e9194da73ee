package cpu

import (
	"strings"

	"github.com/gccl-project/gccl/kernels"
)

// An Implementation is one complete set of kernels. It is a small value; its methods are what the
// package's functions of the same names are, on this set.
type Implementation struct {
	name    string
	reduce  func(kernels.DType, kernels.RedOp) Reduce // valid arguments; Avg never
	preMul  func(kernels.DType) PreMulReduce          // nil for an integer type
	postDiv func(kernels.DType) PostDivide            // nil for a floating-point type
}

// generic is plain Go. The other sets are held to its bits.
var generic = Implementation{name: "generic", reduce: genericReduce, preMul: genericPreMul, postDiv: genericPostDiv}

// best is what the package's functions use.
var best = Implementations()[0]

// Implementations returns the sets that this build has and this processor can run, best first; the
// last is always "generic". The slice is the caller's.
func Implementations() []Implementation { return append(accelerated(), generic) }

// Name returns a short name of the set, such as "generic".
func (m Implementation) Name() string { return m.name }

// Reducer is as the function [Reducer].
func (m Implementation) Reducer(d kernels.DType, op kernels.RedOp) (Reduce, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	if err := op.Check(); err != nil {
		return nil, err
	}
	if op == kernels.Avg {
		op = kernels.Sum
	}
	return m.reduce(d, op), nil
}

// PreMul is as the function [PreMul].
func (m Implementation) PreMul(d kernels.DType) (PreMulReduce, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	if f := m.preMul(d); f != nil {
		return f, nil
	}
	return nil, m.unsupported("PreMul", d)
}

// PostDiv is as the function [PostDiv].
func (m Implementation) PostDiv(d kernels.DType) (PostDivide, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	if f := m.postDiv(d); f != nil {
		return f, nil
	}
	return nil, m.unsupported("PostDiv", d)
}

// unsupported reports a kernel that exists only for the other kind of types than d's.
func (m Implementation) unsupported(kernel string, d kernels.DType) error {
	var accepted []string
	for _, other := range kernels.DTypes() {
		if other.IsFloat() != d.IsFloat() {
			accepted = append(accepted, other.String())
		}
	}
	return &kernels.UnsupportedError{Kernel: kernel, Device: "cpu", DType: d, Accepted: strings.Join(accepted, ", ")}
}
