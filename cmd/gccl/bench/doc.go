// Package bench measures collectives as nccl-tests does, and checks them harder: it is `gccl bench`
// without the command line.
//
// It promises honest figures: inputs are rewritten before each timed call, outside its time; each timed
// call begins when all ranks are there, on one host by a barrier in a page of shared memory and else by
// the library's, and a row says which; a call's time is the slowest rank's; a world of one has
// no bandwidth. And it promises checked results: in calls that aren't timed every element is compared with
// package reference's, among them NaNs, infinities, zeros of both signs and denormals; outputs are
// poisoned before and inputs compared afterwards; canaries stand around buffers; an all-reduce must leave
// the same bits everywhere.
//
// The caller makes the communicator, calls [Run] on all ranks with equal configurations, and closes
// the communicator. A row that is wrong is counted, not an error: look at [Result].Wrong.
//
//	kind, err := bench.ParseKind("all_reduce")
//	…
//	result, err := bench.Run(ctx, c, bench.Config{
//		Kind:   kind,
//		Sizes:  bench.Sizes{Min: 8, Max: 64 << 20, Factor: 4},
//		Iters:  20, Agg: 1, Checks: 1,
//		DTypes: []kernels.DType{kernels.Float32},
//		Ops:    []bench.Op{bench.OpOf(kernels.Sum)},
//		Roots:  []int{0},
//		Memory: bench.MemoryAlloc,
//	}, bench.Output{Table: os.Stdout})
package bench
