package gpu

import (
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// A Call is one rank's part of a collective, on device memory. What Src and Dst hold, in blocks of Count elements, is said by
// collective.Kind.Blocks; a buffer that the kind or the rank has no use for is nil. In place, Dst is Src, in an all-gather Src is
// Dst's block of the rank, in a reduce-scatter Dst is Src's; any other overlap is the caller's mistake. Buffers are aligned to
// the element's size. All ranks agree on everything but Dst, Src, Stream and the value of Factor.
type Call struct {
	Kind      collective.Kind
	DType     kernels.DType
	RedOp     kernels.RedOp
	Count     int
	Root      int
	Algorithm string // a name of collective.Catalog; empty: the one that moves the fewest bytes
	// Factor is what the rank multiplies its own input by in a Sum of floating-point numbers. All ranks have one or none has, in memory
	// of the GPU or not; its value is each rank's own. In memory it is read when the work is done.
	Factor   kernels.Factor
	Dst, Src unsafe.Pointer
	Stream   cuda.Stream
}

// same reports whether two ranks' calls fit together.
func (c *Call) same(o *Call) bool {
	return c.Kind == o.Kind && c.DType == o.DType && c.RedOp == o.RedOp && c.Count == o.Count && c.Root == o.Root && c.Algorithm == o.Algorithm &&
		c.Factor.Set == o.Factor.Set && (c.Factor.At == nil) == (o.Factor.At == nil)
}

func (c *Call) String() string {
	s := fmt.Sprintf("%v of %d %v %v, root %d", c.Kind, c.Count, c.DType, c.RedOp, c.Root)
	switch {
	case c.Factor.At != nil:
		s += ", by a factor in GPU memory"
	case c.Factor.Set:
		s += fmt.Sprintf(", by %v", c.Factor.Value)
	}
	if c.Algorithm != "" {
		s += " by " + c.Algorithm
	}
	return s
}

// check returns an error that names what makes no sense, whoever else calls.
func (c *Call) check(ranks int) error {
	if err := (collective.Shape{Kind: c.Kind, Ranks: ranks, Root: c.Root}).Check(); err != nil {
		return err
	}
	if err := c.DType.Check(); err != nil {
		return err
	}
	if err := c.RedOp.Check(); err != nil {
		return err
	}
	if c.Kind == collective.Barrier && c.Count != 0 {
		return fmt.Errorf("gpu: a barrier of %d elements, want 0", c.Count)
	}
	if c.Factor.Set && (!c.Kind.Reduces() || c.Kind == collective.Barrier || c.RedOp != kernels.Sum || !c.DType.IsFloat()) {
		return fmt.Errorf("gpu: %v: a factor goes with a sum of floating-point numbers alone: %w", c, kernels.ErrInvalid)
	}
	ins, outs := c.Kind.Blocks(ranks)
	return c.layout(1).Check(max(ins, outs))
}

func (c *Call) layout(pieces int) collective.Layout {
	return collective.Layout{Count: c.Count, Elem: c.DType.Size(), Round: max(c.Count, 1), Pieces: pieces}
}

// inPlace reports whether input and output of the rank are the same memory, as far as the shorter one goes.
func (c *Call) inPlace(rank int) bool {
	if c.Dst == nil || c.Src == nil {
		return false
	}
	block := uintptr(rank) * uintptr(c.Count) * uintptr(c.DType.Size())
	switch c.Kind {
	case collective.AllGather:
		return uintptr(c.Src) == uintptr(c.Dst)+block
	case collective.ReduceScatter:
		return uintptr(c.Dst) == uintptr(c.Src)+block
	}
	return c.Dst == c.Src
}

// scales reports whether the operands are multiplied by a factor: their ranks', or for an average of floating-point numbers 1/n.
func (c *Call) scales() bool {
	return c.Factor.Set || c.Kind.Reduces() && c.Kind != collective.Barrier && c.RedOp == kernels.Avg && c.DType.IsFloat()
}

// divides reports whether the results are divided: the average of integers.
func (c *Call) divides() bool {
	return c.Kind.Reduces() && c.Kind != collective.Barrier && c.RedOp == kernels.Avg && !c.DType.IsFloat()
}

// A MismatchError reports ranks that called different collectives. Nothing was queued.
type MismatchError struct {
	Rank, Other int
	Call, Wants string // what Rank and Other called
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("gpu: rank %d called %s, but rank %d %s: all ranks must make the same calls in the same order", e.Rank, e.Call, e.Other, e.Wants)
}

// A MissingError reports ranks that did not call before the others gave up. Nothing was queued.
type MissingError struct {
	Ranks []int // that did not call
	Call  string
	Err   error // why nobody waits any longer
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("gpu: %s waited for ranks %v, which have not called: %v", e.Call, e.Ranks, e.Err)
}

// Unwrap returns the cause.
func (e *MissingError) Unwrap() error { return e.Err }
