// Package cuda is NVIDIA GPUs as gccl uses them: memory, streams, events, graphs, and the kernels that move and fold memory. What a
// fold computes, to the bit, is promised in package kernels.
//
// Nothing of CUDA's is needed to build it. The driver's library is opened at run time; where it is missing, where there is no
// GPU, and in builds without cgo, [Open] and [Count] return errors that wrap errors.ErrUnsupported and say why. The kernels are
// C++ in this folder, compiled to PTX by generate.sh, embedded, and compiled for the GPU at hand by the driver, which keeps
// the result for the next process: the first takes some seconds. 8-bit floating-point types are copied everywhere, and folded from
// compute capability 9.0 on.
//
// Calls that take a [Stream] queue work and return: memory must stay until the stream has come so far. Everything may be called
// from any goroutine; the order of work on one stream is that of the calls. A stream may be anybody's, made by CUDA's runtime
// too: contexts are the devices' primary ones, which are shared with it.
//
// A launch is a [Program]: lanes, each a number of blocks that run a list of instrs. Package collective/gpu writes programs.
// Programs without BEGIN wait for nobody and cannot deadlock. Others wait for other lanes, which must be running: in the same
// cooperative launch, or on other devices.
//
// Traffic between GPUs that are linked has kernels of its own, which [Connect] loads: [LL128] exchanges, [Push] through FIFOs, [Bulk]
// copies. Each GPU has one such launch of a call, and all GPUs of the call must get theirs.
//
// What is a GPU's alone in the kernels is in ptx.h. emulator/host.h is its twin for processors: emulator/build.sh makes of both kernels and
// driver a library under the driver's name, in which a GPU's threads are fibers that run in random order, every access is checked, and any
// number of GPUs of any size can be had. `make test-gpu` runs the GPU tests on it. It keeps one order of all stores, so it does not find a
// fence that is missing, and its times mean nothing.
//
//	d, err := cuda.Open(0)
//	if err != nil {
//		return err
//	}
//	defer d.Close()
//	s, err := d.NewStream()
//	sum, err := d.Alloc(4 * count)
//	err = d.Fold(s, kernels.Float32, kernels.Sum, sum.Ptr, []unsafe.Pointer{mine, theirs}, count)
package cuda

//go:generate ./generate.sh
