// What of the kernels is a GPU's alone: special registers, loads and stores by kind, barriers, conversions. emulator/host.h is its twin
// for processors.
#pragma once

#include "args.h"

#define METHOD __attribute__((device, always_inline))
#define DEVICE static METHOD inline
#define SHARED(Type, name) __attribute__((shared)) static Type name

// A kernel, by name and argument: at most THREADS threads in a block, and BLOCKS such on a multiprocessor, which bounds the registers.
#define KERNEL(name, Type, THREADS, BLOCKS, body) \
	extern "C" __attribute__((global)) void __attribute__((launch_bounds(THREADS, BLOCKS))) name(const Type args) { body; }

#define ROLLED _Pragma("clang loop unroll(disable)")
#define UNROLLED _Pragma("clang loop unroll(full)")

struct Pack { // 16 bytes
	u32 w[4];
};

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

// Barriers: of the block, also with whether any thread of it says so; of so many threads of it, by number, waiting or only passing by; of
// the warp.
DEVICE void sync_threads() { asm volatile("bar.sync 0;" ::: "memory"); }
DEVICE bool any_in_block(bool x) {
	u32 r;
	asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, 0, p; selp.u32 %0, 1, 0, q; }" : "=r"(r) : "r"((u32)x) : "memory");
	return r;
}
template <int N> DEVICE void meet_of(u32 barrier) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(N) : "memory"); }
template <int N> DEVICE void pass_of(u32 barrier) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(N) : "memory"); }
DEVICE void sync_warp() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// Whether any thread of the warp says so, and what thread number from of it has.
DEVICE bool any(bool x) {
	u32 r;
	asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.any.pred q, p, 0xffffffff; selp.u32 %0, 1, 0, q; }" : "=r"(r) : "r"((u32)x) : "memory");
	return r;
}
DEVICE u32 shuffle(u32 x, u32 from) {
	u32 e;
	asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(e) : "r"(x), "r"(from));
	return e;
}

// A value that the compiler must take anew in each turn of a loop, rather than hold what follows from it in registers.
DEVICE u32 anew(u32 x) {
	asm volatile("" : "+r"(x));
	return x;
}
// What a thread does in each turn of waiting.
DEVICE void turn() {}

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

// Of memory that others look at meanwhile.
enum { LOOK_TURNS = 4096 }; // of a spin, a millisecond or two: a look goes over PCIe, and holds up what its multiprocessor loads
DEVICE void load_lines(Pack &v, u64 p, bool wanted) {
	asm volatile("{ .reg .pred q; setp.ne.u32 q, %5, 0; @q ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
		     : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
		     : "l"(p), "r"((u32)wanted)
		     : "memory");
}
DEVICE void store_lines(u64 p, const Pack &v) {
	asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}
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

DEVICE u32 add_one(u64 p) { // returns what was there
	u32 x;
	asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(x) : "l"(p) : "memory");
	return x;
}

// Conversions, by their bits. Those to 8 bits saturate; pairs have the low one in the low half.
DEVICE float half_to_float(u16 x) {
	float f;
	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
	return f;
}
DEVICE u16 float_to_half(float x) {
	u16 h;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
	return h;
}
DEVICE u16 float_to_bfloat16(float x) {
	u16 h;
	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
	return h;
}
DEVICE u32 e4m3s_to_halves(u16 pair) {
	u32 h;
	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(pair));
	return h;
}
DEVICE u32 e5m2s_to_halves(u16 pair) {
	u32 h;
	asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(h) : "h"(pair));
	return h;
}
DEVICE u16 floats_to_e4m3s(float low, float high) {
	u16 pair;
	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
	return pair;
}
DEVICE u16 floats_to_e5m2s(float low, float high) {
	u16 pair;
	asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
	return pair;
}

// NaN if one is; -0 is less than +0.
DEVICE float min_of(float a, float b) {
	float x;
	asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
	return x;
}
DEVICE float max_of(float a, float b) {
	float x;
	asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
	return x;
}

// Sums of pairs, rounded once. NaN is 0x7fff.
DEVICE u32 add_halves(u32 a, u32 b) {
	u32 x;
	asm("add.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
	return x;
}
DEVICE u32 add_bfloat16s(u32 a, u32 b) {
	u32 x;
	asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(0x3f803f80u), "r"(b)); // a · 1 + b
	return x;
}
