// Package comm is what users of gccl import: communicators, and collectives on them.
//
// Every rank makes a Comm with New, given the same unique id; then all ranks call the same collectives in the
// same order. AllReduce and the other typed functions work on Go slices, Comm.Do on a Call, which is plain data; Start
// and Wait overlap calls; Group runs sends and receives that depend on each other.
//
//	c, err := comm.New(ctx, comm.Config{})        // from the environment of gccl run or torchrun
//	if err != nil { … }
//	defer c.Close()
//	err = comm.AllReduce(ctx, c, sum, grad, kernels.Sum)
//
// Gccl promises the same bits on every rank for every all-reduce, an error that names ranks instead of a
// hang, and memory that nobody touches once a call has returned. The caller must keep the order of collectives equal on
// all ranks, must not use memory of a call before it is done, and must Close.
//
// A failed call that was not just a bad argument ends the communicator on all ranks: every call in flight and every
// later one returns an *Error wrapping ErrAborted, which names the ranks to blame: those that made another call, died, closed
// their communicator, or are late while others wait. Ranks find out by asking each other when a call stands still, so the
// neighbour that only waits, too, is not accused. The ranks that are left may Shrink to a new communicator.
//
// Ranks tell each other the topology of their hosts when they meet (package topology has the words) and decide alike: rings, chains and
// trees pass through the ranks host by host, and on a host along its links; each rank takes the network port next to its GPU; GPUs use
// each other's memory where driver and levels let them, between processes of a host where links keep the order of what is stored, as NVLink does, and
// otherwise pass messages by way of host memory. Comm.Site and Comm.Paths say what came of it, and why.
package comm
