// Package collective holds collective algorithms as data, the compiler that turns them into
// plans, and the proof that plans are right. It knows no bytes, types, pointers, devices
// or sockets, and does no input or output.
//
// # The idea
//
// An algorithm is a pure function from (shape, rank) to a [Schedule]: steps of Send, Recv,
// RecvReduce, Fold and Copy on numbered chunks of four memories: In, Out, Temp and the wire.
// [Compile] turns one rank's schedule into a [Plan], a flat array of small ops without pointers.
// Whatever runs a collective runs a plan: an engine over sockets or shared memory, a kernel on
// a GPU, a simulator in virtual time, and [Verify] on symbols. So an algorithm is one page,
// proven for every number of ranks before it meets a socket, and run unchanged everywhere.
//
// A plan has two readings: [Plan.Linear], an order that an engine walks by a program counter, and
// [Machine], which says what is ready when ops may end in any order. Verify proves both.
//
// # Promises
//
//   - Build and Compile are pure: the same arguments give the same schedule and plan on every
//     rank, machine and day. They cost what the rank's own steps cost.
//   - A schedule that passes [Schedule.Check] compiles, and its plan does what the schedule
//     says, in place or not, scaled or not.
//   - The schedules of [Catalog] have passed Verify: right values, in an all-reduce by the same
//     tree of sums on every rank and so with the same bits, no deadlock with one message of
//     room between two ranks, no memory overwritten before its last reader.
//   - Options that may differ between ranks never change the number, order or length of messages.
//   - Bad input is an error that names the value, the instr or the line; there is no panic.
//   - Values are immutable once made and may be shared, but for Machine, which belongs to one
//     goroutine.
//
// # Duties
//
// Whoever runs a plan runs its ops in Linear's order, or as Machine says; keeps a message's
// memory unchanged as [Ref] and [Op] say; adds up the sources of a fold in their order, with one
// rounding to the buffer's type; and lets [Layout] find every offset. Ranks
// must agree on shape, algorithm, Scale, round and number of rounds.
//
// # Rules for writers of algorithms
//
// An algorithm is a file (or a function in its family's file) and a line in the catalog. Users
// may bring their own: build a Schedule, or [Parse] one, and Verify it.
//
//  1. The instrs of a step happen together: all read what was there before the step. Nothing is
//     written twice in a step, and In never.
//  2. Receive a message in the step of the number in which it is sent (empty steps keep numbers
//     in line), and send a peer at most one message in a step. Then the plans cannot deadlock;
//     the comment of Compile has the proof. Where memory that was sent is never written again, the
//     steps need not be in line.
//  3. A send is free of waits, but memory that was sent has to be waited for before it is written
//     again. Leave it alone for two steps and it can be lent, which saves a copy.
//  4. What is received into Temp and folded in the next step is read where it arrives: such Temp
//     costs nothing.
//  5. In an all-reduce every rank needs the same tree of sums: mind which operand is first. One
//     fold of all inputs in rank order rounds once and makes bits independent of how
//     a message is cut.
//  6. Take peers in turn from the next rank on, and send and receive in one step: links
//     work both ways.
//  7. Long messages are cut in rounds, several of which are in flight. So a chain is as fast as a
//     link, and no schedule needs to pipeline within itself.
//
// # Example
//
// The all-reduce of two ranks who exchange what they have:
//
//	s, err := collective.Build(collective.Shape{Kind: collective.AllReduce, Ranks: 2}, rank, "oneshot")
//	p, err := collective.Compile(s, collective.Options{})
//	for _, op := range p.Linear() {
//		// send in[0]; view what the peer sent; fold out[0] = in[0] + view
//	}
//
// # Cost
//
// BenchmarkLinearWalk and BenchmarkMachine measure what the two readings cost apart from messages
// and sums, on a one-shot all-reduce of two ranks (3 ops) and a ring of eight (41 ops):
//
//	go test -run '^$' -bench 'Machine|LinearWalk' ./collective
//
// On a core of a shared virtual machine (Xeon, Go 1.26) an op of the linear walk takes 2-3 ns, of
// the machine 9-11 ns; both take up to three times as long when the host is busy. Neither
// allocates. BenchmarkVerify: the proof of a ring of 8 ranks takes 0.4 ms, of 64 ranks 30 ms.
package collective
