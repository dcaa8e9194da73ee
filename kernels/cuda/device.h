// The few things that CUDA's headers would give: special registers, loads and stores by kind, barriers.
#pragma once

#include "args.h"

#define DEVICE static __attribute__((device, always_inline)) inline
#define KERNEL extern "C" __attribute__((global))

DEVICE u32 thread_index() {
	u32 x;
	asm("mov.u32 %0, %%tid.x;" : "=r"(x));
	return x;
}
DEVICE u32 threads() {
	u32 x;
	asm("mov.u32 %0, %%ntid.x;" : "=r"(x));
	return x;
}
DEVICE u32 lane_index() { // a lane is a row of the grid
	u32 x;
	asm("mov.u32 %0, %%ctaid.y;" : "=r"(x));
	return x;
}
DEVICE u32 block_index() { // in the lane
	u32 x;
	asm("mov.u32 %0, %%ctaid.x;" : "=r"(x));
	return x;
}
DEVICE u32 blocks() { // of a lane
	u32 x;
	asm("mov.u32 %0, %%nctaid.x;" : "=r"(x));
	return x;
}
// Threads of a lane take its work in turns.
DEVICE u64 lane_thread() { return (u64)block_index() * threads() + thread_index(); }
DEVICE u64 lane_threads() { return (u64)blocks() * threads(); }
// Waits until the kernel ahead in the stream has ended; and lets the one behind begin, which is to wait so.
DEVICE void wait_ahead() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void let_behind() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

DEVICE void sync_threads() { asm volatile("bar.sync 0;" ::: "memory"); }

// A value that the compiler must take anew in each turn of a loop, rather than hold what follows from it in registers.
DEVICE u32 anew(u32 x) {
	asm volatile("" : "+r"(x));
	return x;
}

#define ROLLED _Pragma("clang loop unroll(disable)")
#define UNROLLED _Pragma("clang loop unroll(full)")

struct Pack { // 16 bytes
	u32 w[4];
};

// A predicated load: without a branch around each, several stay in flight.
DEVICE void load(Pack &v, u64 p, bool wanted) {
	asm volatile("{ .reg .pred q; setp.ne.u32 q, %5, 0; @q ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
		     : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
		     : "l"(p), "r"((u32)wanted)
		     : "memory");
}
DEVICE void load(Pack &v, u64 p) {
	asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p) : "memory");
}
DEVICE void store(u64 p, const Pack &v) {
	asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}

template <class T> DEVICE T get(u64 p) {
	if constexpr (sizeof(T) == 16) {
		T v;
		load(v, p, true);
		return v;
	} else return *(const T *)p;
}
template <class T> DEVICE void set(u64 p, T v) {
	if constexpr (sizeof(T) == 16) store(p, v);
	else *(T *)p = v;
}

// A line is 16 bytes: twice 4 bytes of payload with the epoch. Each half is stored and loaded at once, so that payload whose
// epoch is there is there too.
struct Line {
	u64 a, b;
};
DEVICE Line load_line(u64 p) {
	Line l;
	asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(l.a), "=l"(l.b) : "l"(p) : "memory");
	return l;
}
DEVICE void store_line(u64 p, u64 payload, u32 epoch) {
	u64 a = (u32)payload | (u64)epoch << 32, b = payload >> 32 | (u64)epoch << 32;
	asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(a), "l"(b) : "memory");
}
DEVICE bool carries(const Line &l, u32 epoch) { return (u32)(l.a >> 32) == epoch && (u32)(l.b >> 32) == epoch; }
DEVICE u64 payload(const Line &l) { return (u32)l.a | l.b << 32; }

DEVICE u32 load_relaxed(u64 p) {
	u32 x;
	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
	return x;
}
DEVICE void store_relaxed(u64 p, u32 x) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory"); }
DEVICE u32 load_acquire(u64 p) {
	u32 x;
	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
	return x;
}
DEVICE void store_release(u64 p, u32 x) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory"); }

// A spin counts turns and looks every 16th time, which costs nothing, whether the call is to end.
struct Spin {
	u64 abort;
	u32 turns;
};
DEVICE bool give_up(Spin &s) { return (++s.turns & 15) == 0 && s.abort && load_relaxed(s.abort) != 0; }
