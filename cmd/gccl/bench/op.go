package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gccl-project/gccl/kernels"
)

// Op is what a reduction does: an operator of package kernels, or MulSum.
type Op struct {
	kernels.RedOp
	factors bool
}

// MulSum is a sum in which each rank's input is multiplied first (NCCL's PreMulSum), by reference.Factor. It is for
// floating-point numbers; rows of other types leave it out.
var MulSum = Op{factors: true}

// OpOf is an operator as it is.
func OpOf(op kernels.RedOp) Op { return Op{RedOp: op} }

// Ops returns all, MulSum last. The slice is the caller's.
func Ops() []Op {
	var all []Op
	for _, op := range kernels.RedOps() {
		all = append(all, OpOf(op))
	}
	return append(all, MulSum)
}

// String returns nccl-tests' name.
func (o Op) String() string {
	if o.factors {
		return "mulsum"
	}
	return o.RedOp.String()
}

// ParseOp returns the one that name stands for, in upper or lower case. The error of any other lists the names.
func ParseOp(name string) (Op, error) {
	all := Ops()
	if i := slices.IndexFunc(all, func(o Op) bool { return o.String() == strings.ToLower(name) }); i >= 0 {
		return all[i], nil
	}
	return Op{}, fmt.Errorf("reduction operator %q; want one of %s", name, strings.Trim(fmt.Sprint(all), "[]"))
}

// fits reports whether elements of a type can be reduced so.
func (o Op) fits(d kernels.DType) bool { return !o.factors || d.IsFloat() }
