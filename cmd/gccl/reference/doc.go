// Package reference knows what collectives must give, element by element, without sharing a line of
// arithmetic with what it checks.
//
// The inputs of all ranks are a function of (seed, rank, index), so that every rank can work out
// what every other gave and no expected result travels or is stored. Where an algorithm may choose
// the order of its roundings, the reference accepts what lies within a bound that holds for any order
// ([Input.Reduced] writes it down); everything else must be right to the bit, also NaN, -0, and
// the sums of denormals.
//
// It promises that each element is compared. The caller fills the inputs of its own rank with
// [Input.Write], poisons the outputs, and after the call hands in what it got. All methods may be
// called from any goroutine.
//
//	in := reference.Input{DType: kernels.Float32, RedOp: kernels.Sum, Ranks: 4, Seed: 1}
//	in.Write(src, rank, 0)
//	// … all-reduce src to dst …
//	if v := in.Reduced(dst, 0); v.Wrong != 0 {
//		return fmt.Errorf("%d elements are wrong: %s", v.Wrong, v.First)
//	}
package reference
