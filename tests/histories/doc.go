// Package histories runs whole jobs (bootstrap, communicators, engine, messages) in one process and virtual time, breaks
// each in a way that its seed chooses, and judges what every rank saw.
//
// A history is a program of calls that all ranks run, a wire that carries their messages, and a fault: what happens, to whom, in
// which phase. The promise that is tested is the failure contract: whatever fails, every call of every surviving rank ends in
// bounded time, with the right data or with an error that names a rank that is truly at fault; communicators that the fault does
// not touch go on; afterwards the survivors make a smaller communicator, which works; and nothing is left behind. Ranks overwrite
// the memory of a call as soon as it has returned, so that whoever still reads it is found out.
//
// Successive seeds go round all combinations of fault, phase, wire and number of ranks. The fault comes with a message or after a
// time, and if the phase is over before, at its end. The wires are flavours of [mem.Network], not the real transports: memory
// that peers read where it lies, as over shm; a socket with bounded credit, as over tcp; and both in one job.
//
// Everything a history does follows from its seed, but for the order in which Go runs goroutines at one and the same
// virtual time. A seed that fails rarely may have to be run several times:
//
//	go test ./tests/histories -run TestHistory -seed=12345 -count=100 -v
//
// The race detector reports views of memory that its owner took back and writes to: that they end with an error is what is tested.
//
// GCCL_TEST_FULL=1 runs 100,000 seeds, and TestPlants, which shows that histories find bugs: it plants one after the other in a copy
// of the module. To run one of them:
//
//	go test ./tests/histories -run 'TestPlants$' -plant 'credit leaks' -v
package histories
