// The interpreters that every GPU from compute capability 8.0 on can run.
#include "interpret.h"
#include "trip.h"

// Signed and unsigned integers have the same sums and products.
#define FLOATS(op, Op) \
	INTERPRET(op, half, half, Op) INTERPRET(op, bfloat16, bfloat16, Op) INTERPRET(op, float, float, Op) INTERPRET(op, double, double, Op)
#define UNSIGNED(op, Op) INTERPRET(op, uint8, u8, Op) INTERPRET(op, uint32, u32, Op) INTERPRET(op, uint64, u64, Op)
#define SIGNED_(op, Op) INTERPRET(op, int8, s8, Op) INTERPRET(op, int32, s32, Op) INTERPRET(op, int64, s64, Op)

KERNEL(gccl_move_bytes, Args, 256, 8, run_copies(args))
KERNEL(gccl_swap_bytes, Args, 256, 3, run_swaps(args))
KERNEL(gccl_trip_bytes, Trip, TRIP_THREADS, 1, trip(args))
FLOATS(sum, Sum) UNSIGNED(sum, Sum)
FLOATS(avg, Avg)
FLOATS(prod, Prod) UNSIGNED(prod, Prod)
FLOATS(min, Min) UNSIGNED(min, Min) SIGNED_(min, Min)
FLOATS(max, Max) UNSIGNED(max, Max) SIGNED_(max, Max)
