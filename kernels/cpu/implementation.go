package cpu

import (
	"slices"
	"strings"

	"github.com/gccl-project/gccl/kernels"
)

// An Implementation is one complete set of kernels. It is a small value; its methods are what the
// package's functions of the same names are, on this set. The zero Implementation is none and may not be used.
type Implementation struct {
	name    string
	reduce  *[12][4]Reduce                 // Avg never
	preMul  *[12]PreMulReduce              // nil for an integer type
	postDiv func(kernels.DType) PostDivide // nil for a floating-point type
}

// generic is plain Go. The other sets are held to its bits.
var generic = newGeneric()

func newGeneric() Implementation {
	m := Implementation{name: "generic", reduce: new([12][4]Reduce), preMul: new([12]PreMulReduce), postDiv: genericPostDiv}
	for d, row := range genericSpans {
		for op, f := range row {
			m.reduce[d][op] = whole(f)
		}
	}
	for d, f := range genericPreMuls {
		if f != nil {
			m.preMul[d] = wholePreMul(f)
		}
	}
	return m
}

// implementations are all that this build has and this processor can run, best first.
var implementations = append(accelerated(), generic)

// Implementations returns the sets that this build has and this processor can run, best first; the
// last is always "generic". The slice is the caller's.
func Implementations() []Implementation { return slices.Clone(implementations) }

// Choose returns the set of that name, or the best one for "". It is a *[kernels.ValueError] to ask for one that this build and
// processor have not: the error says what they have.
func Choose(name string) (Implementation, error) {
	if name == "" {
		return implementations[0], nil
	}
	var have []string
	for _, m := range implementations {
		if m.name == name {
			return m, nil
		}
		have = append(have, m.name)
	}
	return Implementation{}, &kernels.ValueError{What: "set of kernels that this machine can run", Value: name, Accepted: strings.Join(have, ", ")}
}

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
	return m.reduce[d][op], nil
}

// PreMul is as the function [PreMul].
func (m Implementation) PreMul(d kernels.DType) (PreMulReduce, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	if f := m.preMul[d]; f != nil {
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
