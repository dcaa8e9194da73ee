// Package engine runs plans on host memory over transport streams.
//
// A Port is a communicator's way into the engine: a number of Lanes, each with its own
// stream to every peer. A Task is a plan with a message, a share of whose rounds
// a lane runs, one after the other, by walking Plan.Linear with a program counter until an op would
// block (Lane.advance). Lanes run their tasks in the order given and are independent of each other: rounds
// of one call overlap because they are dealt to several lanes. All ranks give the same tasks to the same
// lanes in the same order, so what one lane does on all ranks is one sequential program, and a lane cannot
// deadlock if its plans cannot.
//
// A Driver is what makes ports of a process move. It has one token. Whoever waits for a call
// takes the token and drives everything that is in flight on the driver, so calls started in any order, on
// any number of communicators, can be waited for in any order; a blocking call that nobody
// competes with runs from start to end in its caller's goroutine, without a hand-over. Calls that were
// started and that nobody waits for are driven by a goroutine that lives as long as there are any.
//
// A call of one round of few bytes that is made again and again skips most of this (short, Driver.sprint): through the public call, an all-reduce of 8 bytes
// between two processes takes 190 ns where a bare line each way takes 110 (processors near each other), and 371–380 where it takes 281 (far):
// tests/latency, after a barrier. Op by op it was 261 and 441.
//
// A fold whose result is sent next makes it, 8 KiB at a time, in its own memory and in every slot that the peers read, or, in memory that a peer
// has from its transport's Allocator, right where the peer wants it (relay, transport.Lander): a two-shot all-reduce between such memories
// moves each byte once each way.
//
// While nothing moves, a driver spins on the one word that must change, 64 polls at a time in a few
// lines of assembly with PAUSE, or asks a stream that has no such word, a socket, a few times, then calls
// an ordinary function so that the Go runtime can stop it, then yields, and at last sleeps, in a futex or in epoll. When there are more ranks than processors it yields
// almost at once, or sleeps at once for a while after a yield of more than a millisecond, which says that others compute on its processor.
package engine
