// Package kernels holds the words that every part of gccl uses for data: which numbers a buffer
// holds ([DType]), how they are combined ([RedOp]), where the buffer is ([Mem], [Device]), and the
// short floating-point formats that Go lacks ([Half], [BFloat16], [Float8E4M3], [Float8E5M2]). The folds themselves are in
// the packages below it, one per kind of device; package cpu is the one for host memory.
//
// The package is pure: it keeps no state, starts nothing and builds on every system. All of its
// functions may be called from any goroutine.
//
// # What is promised of every fold, on every device
//
//   - dst[i] = srcs[0][i] ⊕ srcs[1][i] ⊕ … , a left fold in that order. Callers pass sources in rank
//     order, so that the result depends on the inputs alone.
//   - Integers wrap around. Float32 and Float64 round to nearest even after each operation.
//     Shorter types are folded in float32 and rounded once, at the end of the fold. The 8-bit ones are saturated then: what
//     is too large, infinity too, becomes the largest number of its sign.
//   - A product is never fused with a following addition.
//   - Min and Max are IEEE 754-2019 minimum and maximum: a NaN among the operands gives NaN, and
//     -0 is less than +0.
//   - Every NaN that a fold writes, also a fold of one source, is the format's canonical quiet NaN:
//     0x7f, 0x7e00, 0x7fc0, 0x7fc00000, 0x7ff8000000000000. Which NaN a processor returns depends on the
//     processor and on the order of its operands; with one NaN, equal trees of values give equal
//     bits on all ranks.
//   - Avg of a floating-point type multiplies each rank's own input by 1/n, rounded to the type,
//     before it is added (PreMul); avg of an integer type divides the sum by n and drops the
//     fraction (PostDiv). A Factor given with a Sum takes the place of 1/n.
//
// The caller keeps memory alive and unmoved while a fold or a transfer uses it: a Mem is borrowed.
//
//	d, err := kernels.ParseDType("bf16")
//	if err != nil {
//		return err // names the word and lists the accepted ones
//	}
//	bytes := count * d.Size()
package kernels
