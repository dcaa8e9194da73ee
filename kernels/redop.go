package kernels

import (
	"fmt"
	"strings"
)

// A RedOp says how the ranks' elements are combined. Its values are NCCL's (ncclRedOp_t). The zero
// value is Sum. The package comment says what each of them promises.
type RedOp uint8

// The reduction operators.
const (
	Sum  RedOp = 0
	Prod RedOp = 1
	Max  RedOp = 2
	Min  RedOp = 3
	Avg  RedOp = 4
)

// AllSources, where the kernels below this package ask which source to multiply before a sum, means
// every one of them. A rank that folds everybody's unscaled input at once needs it for an average.
const AllSources = -1

var redopNames = [...]string{Sum: "sum", Prod: "prod", Max: "max", Min: "min", Avg: "avg"}

// RedOps returns all operators in ascending order. The slice is the caller's.
func RedOps() []RedOp {
	all := make([]RedOp, len(redopNames))
	for i := range all {
		all[i] = RedOp(i)
	}
	return all
}

// Valid reports whether op is one of the operators above.
func (op RedOp) Valid() bool { return int(op) < len(redopNames) }

// String returns nccl-tests' name of op: sum prod max min avg. A value that is not valid gives its
// number, as in "RedOp(9)".
func (op RedOp) String() string {
	if !op.Valid() {
		return fmt.Sprintf("RedOp(%d)", uint8(op))
	}
	return redopNames[op]
}

// Check returns nil when op is valid and otherwise a *[ValueError].
func (op RedOp) Check() error {
	if op.Valid() {
		return nil
	}
	return &ValueError{What: "reduction operator", Value: op.String(), Accepted: acceptedRedOps()}
}

// ParseRedOp returns the operator that name stands for: what String returns, in upper or lower
// case. Any other name gives a *[ValueError] that lists the accepted ones.
func ParseRedOp(name string) (RedOp, error) {
	word := strings.ToLower(name)
	for op, n := range redopNames {
		if word == n {
			return RedOp(op), nil
		}
	}
	return 0, &ValueError{What: "reduction operator", Value: name, Accepted: acceptedRedOps()}
}

func acceptedRedOps() string { return strings.Join(redopNames[:], ", ") }
