// Package tune chooses how a collective is done: by which algorithm of the catalog, in
// rounds of how many elements, on how many lanes. It is pure: no clock, no I/O, no state.
// Who measures and exchanges the constants is the caller.
//
// # Model
//
// Time is estimated from what the schedules themselves say and a handful of constants, the
// Model: α, g, β, φ, γ, c are its Latency, Gap, Byte, Fanout, Fold and Copy. In a
// round with pieces of p bytes, a rank that sends s and receives r messages, in k steps
// whose larger numbers of sends or receives add up to x, folds f pieces and copies y, takes
//
//	own  = α·k + g·(x-k) + p·(β·x + γ·f + c·y)
//	busy = g·max(s,r)  + p·(β·max(s,r)  + γ·f + c·y)   over a network, with both directions at once
//	busy = g·(s+r)/2   + p·(β·(s+r)/2   + γ·f + c·y)   in shared memory, where cores move the bytes
//
// where messages of ranks on one host count by the constants of Model.Near, apart from the others, and
// with φ added to β if it talks to several peers in one step. A round alone takes first, and
// one rank's lane for span: the largest own of a few ranks, if all are always taken; for
// sparse algorithms (trees, chains, doubling), whose ranks wait for what others must get
// first, the same rules are played through for all ranks, message by message. J rounds with equal
// pieces, W of them in flight, take
//
//	first + (J-1)·(α + max(busy, span/W))
//
// α because some wait in each round stays uncovered, which is what short pieces were measured to
// cost. The choice is the algorithm and J with the least time whose longest piece is within
// Model.Piece and Model.MaxMessage, then the fewest lanes that give this time. J is 2^i or 3·2^i. So
// small messages take one round and one lane. Of equals, algorithms that sum in rank
// order go first, then those first in the catalog.
//
// Where processes outnumber the processors of a host they take turns: Model.Crowded has what that costs.
//
// # Promises
//
// A choice depends on the Model, the Shape, the count and the size of an element and on nothing
// else: not on the rank, the memory, or whether the call is in place. Ranks with equal Models
// choose the same on all processors (no product is fused with a sum). The cost of
// the choice is at most that of any algorithm not left out by rule, and never falls as
// count grows.
//
// # Limits
//
// One set of constants stands for all pairs of ranks that are near each other (Shape.Hosts, Model.Near), one for all others, and both for
// all lengths, so a fast host on a slow network
// counts as slow, and data that outgrows the caches as still in them. Ranks that share a
// bus or a switch do not slow each other, and waits for room are not seen. The order of the
// candidates is what to trust, not the microseconds.
//
// # Duties
//
// All ranks must use equal Models: each measures its own or takes Default, they exchange
// them, and all Combine them. A choice takes a core 0.2 ms for 16 ranks and 50 ms for 1024 on hosts of 8: a Tuner, shared by all ranks of
// a process, takes that once for each shape and then tens of µs.
//
//	m, err := tune.Default("shm")
//	...
//	choice, err := tune.Choose(m, shape, count, 4)
//	...
//	schedule, err := collective.Build(shape, rank, choice.Algorithm)
package tune
