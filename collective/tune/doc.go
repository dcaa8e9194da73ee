// Package tune chooses how a collective is done: by which algorithm of the catalog, in
// rounds of how many elements, on how many lanes. It is pure: no clock, no I/O, no state.
// Whoever measures and exchanges the constants is the caller.
//
// # Model
//
// Time is estimated from a schedule's own counts and a handful of constants, a Model. With
// a piece of p bytes, and α, g, β, φ, γ and c the Model's Latency, Gap, Byte, Fanout, Fold
// and Copy, a rank that has steps with messages, x = the sum over them of the larger of
// sends and receives, f pieces read by folds and k copied, takes for a round
//
//	own  = α·steps + g·(x - steps) + p·(β·x + γ·f + c·k)
//	busy = g·x + p·(β·x + γ·f + c·k)           where memory is shared: one core does it all
//	busy = g·x + p·max(β·x, γ·f + c·k)         elsewhere: the wire works beside the core
//
// where β grows by φ if the rank talks to several peers in one step. Sparse schedules
// (trees, chains), where ranks wait for messages that others must get first, are played
// through for all ranks: first is when the last rank is done, span the longest that one
// rank is taken from its first message to its end. In the others every rank is always
// taken: first = span = the largest own of a few ranks. A message cut in J rounds of equal
// pieces, W of them in flight, then takes
//
//	first + (J-1)·max(busy, span/W)
//
// The choice is the algorithm and the J with the least time, among those whose longest
// piece is within Model.Piece and Model.MaxMessage; then the fewest lanes that give it. All J of the form 2^i and 3·2^i
// are tried. Small messages therefore run in one round on one lane.
//
// # Promises
//
// A choice depends on the Model, the Shape, the count and the size of an element, and on nothing
// else: not on the rank, the memory, or whether the call is in place. Ranks that hold equal
// Models choose the same, on all processors (no product is fused with a sum). The cost of
// what is chosen is at most that of any other candidate but those left out by rule, and grows with count or stays.
//
// # Limits
//
// One constant stands for all pairs of ranks, so a fast host on a slow network counts as slow.
// Ranks that share a memory bus or a switch are not slowed by each other,
// waits for room are not seen, constants do not depend on
// whether data is in a cache, and the last round counts as a full one. The order of
// candidates is what to trust, not the microseconds.
//
// # Duties
//
// All ranks must use equal Models: measure or take Default on each, exchange them, and
// Combine them in rank order everywhere. A choice takes tens of microseconds, and more with many ranks: cache it.
//
//	shm, err := tune.Default("shm")
//	...
//	choice, err := tune.Choose(shm, collective.Shape{Kind: collective.AllReduce, Ranks: 8}, count, 4)
//	schedule, err := collective.Build(shape, rank, choice.Algorithm)
package tune
