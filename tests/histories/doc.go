// Package histories runs whole jobs (bootstrap, communicators, engine, messages) in one process and virtual time, breaks
// each in a way that its seed chooses, and judges what every rank saw.
//
// A history is a program of calls that all ranks run, and a fault: what happens, to whom, in which phase. The promise that is
// tested is the failure contract: whatever fails, every call of every surviving rank ends in bounded time, with the right data
// or with an error that names a rank that is truly at fault; communicators that the fault does not touch go on; afterwards
// the survivors make a smaller communicator, which works; and nothing is left behind.
//
// Everything a history does follows from its seed, but for the order in which Go runs goroutines at one and the same
// virtual time. A seed that fails rarely may have to be run several times:
//
//	go test ./tests/histories -run TestHistory -seed=12345 -count=100 -v
//
// GCCL_TEST_FULL=1 runs 100,000 seeds.
package histories
