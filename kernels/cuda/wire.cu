// The kernels for traffic between GPUs. They wait for each other's launches: which run at once is the host's affair.
#include "messages.h"
#include "push.h"

// Blocks of a push and of an exchange have a multiprocessor's registers, so that much is in flight; copies leave room beside them.
#define BOTH(op, type, T, Op) \
	KERNEL(gccl_ll128_##op##_##type, LL128, WIRE_THREADS, 1, (exchange_lines<T, Op>(args))) \
	KERNEL(gccl_push_##op##_##type, Push, PUSH_THREADS, 1, (push<T, Op>(args)))

#define FLOATS(op, Op) BOTH(op, half, half, Op) BOTH(op, bfloat16, bfloat16, Op) BOTH(op, float, float, Op) BOTH(op, double, double, Op)
#define UNSIGNED(op, Op) BOTH(op, uint8, u8, Op) BOTH(op, uint32, u32, Op) BOTH(op, uint64, u64, Op)
#define SIGNED_(op, Op) BOTH(op, int8, s8, Op) BOTH(op, int32, s32, Op) BOTH(op, int64, s64, Op)

KERNEL(gccl_ll128_bytes, LL128, WIRE_THREADS, 1, (exchange_lines<u8, Verbatim>(args)))
KERNEL(gccl_bulk_bytes, Bulk, WIRE_THREADS, 2, bulk(args))
KERNEL(gccl_messages_bytes, Messages, WIRE_THREADS, 1, messages(args))
FLOATS(sum, Sum) UNSIGNED(sum, Sum)
FLOATS(avg, Avg)
FLOATS(prod, Prod) UNSIGNED(prod, Prod)
FLOATS(min, Min) UNSIGNED(min, Min) SIGNED_(min, Min)
FLOATS(max, Max) UNSIGNED(max, Max) SIGNED_(max, Max)
