// The twin of ptx.h for processors: kernels as plain functions, whose threads are fibers of the emulator.
#pragma once

#include <cstring>

#include "../args.h"

#define METHOD
#define DEVICE static inline
#define SHARED(Type, name) Type &name = *static_cast<Type *>(emulator::shared(sizeof(Type)))
#define KERNEL(name, Type, THREADS, BLOCKS, body) \
	static void name(const void *argument) { \
		const Type &args = *static_cast<const Type *>(argument); \
		body; \
	} \
	static const emulator::Kernel name##_kernel(#name, name, sizeof(Type), THREADS, BLOCKS);

#define ROLLED
#define UNROLLED

namespace emulator {

// A kernel adds itself to those that modules are searched for.
struct Kernel {
	const char *name;
	void (*run)(const void *args);
	u32 bytes, threads, blocks; // of the argument; of a block at most; on a multiprocessor at least
	Kernel(const char *name, void (*run)(const void *), u32 bytes, u32 threads, u32 blocks);
};

// Where the thread that runs stands.
struct Place {
	u32 thread, threads, block, blocks, lane;
};
extern const Place *here;
extern bool among_processes; // memory was exported or imported

void *shared(u32 bytes);                      // the block's
void check(u64 p, u32 bytes);                 // ends the process unless the kernel's device reaches the memory
void meet(u32 barrier, u32 count, bool wait); // count 0: all threads of the block
bool any_in_block(bool x);
bool any_in_warp(bool x);
u32 shuffle(u32 x, u32 from);
void turn();
void stored(); // by a warp at once; others may look before it goes on
void wait_ahead();
void let_behind();

} // namespace emulator

struct Pack {
	u32 w[4];
};

DEVICE u32 thread_index() { return emulator::here->thread; }
DEVICE u32 threads() { return emulator::here->threads; }
DEVICE u32 lane_index() { return emulator::here->lane; }
DEVICE u32 block_index() { return emulator::here->block; }
DEVICE u32 blocks() { return emulator::here->blocks; }

DEVICE void wait_ahead() { emulator::wait_ahead(); }
DEVICE void let_behind() { emulator::let_behind(); }
DEVICE void sync_threads() { emulator::meet(0, 0, true); }
DEVICE bool any_in_block(bool x) { return emulator::any_in_block(x); }
template <int N> DEVICE void meet_of(u32 barrier) { emulator::meet(barrier, N, true); }
template <int N> DEVICE void pass_of(u32 barrier) { emulator::meet(barrier, N, false); }
DEVICE void sync_warp() { emulator::any_in_warp(false); }
DEVICE bool any(bool x) { return emulator::any_in_warp(x); }
DEVICE u32 shuffle(u32 x, u32 from) { return emulator::shuffle(x, from); }
DEVICE u32 anew(u32 x) { return x; }
DEVICE void turn() { emulator::turn(); }

// One operating-system thread runs all kernels of a process, so that every access is whole. Only the host looks on, and other processes
// where memory was exported or imported.
template <class T> DEVICE T get(u64 p) {
	emulator::check(p, sizeof(T));
	T v;
	memcpy(&v, reinterpret_cast<const void *>(p), sizeof v);
	return v;
}
template <class T> DEVICE void set(u64 p, T v) {
	emulator::check(p, sizeof(T));
	memcpy(reinterpret_cast<void *>(p), &v, sizeof v);
}
// A GPU faults where a pack is not aligned.
template <class T> DEVICE T get_aligned(u64 p) {
	if (p % sizeof(T) != 0) emulator::check(p, 0);
	return get<T>(p);
}
template <class T> DEVICE void set_aligned(u64 p, T v) {
	if (p % sizeof(T) != 0) emulator::check(p, 0);
	set<T>(p, v);
}
DEVICE void load(Pack &v, u64 p, bool wanted) {
	if (wanted) v = get_aligned<Pack>(p);
}
DEVICE void load(Pack &v, u64 p) { v = get_aligned<Pack>(p); }
DEVICE void store(u64 p, const Pack &v) { set_aligned(p, v); }
enum { LOOK_TURNS = 16 };
// A line is whole among processes, too: what stands at its end, in the last of 8 threads, is stored last and loaded first.
DEVICE void load_lines(Pack &v, u64 p, bool wanted) {
	const bool last = emulator::here->thread % 8 == 7;
	if (!emulator::among_processes || !wanted) return load(v, p, wanted);
	if (last) {
		emulator::check(p, 16);
		const u64 end = __atomic_load_n(reinterpret_cast<const u64 *>(p + 8), __ATOMIC_ACQUIRE);
		load(v, p);
		v.w[2] = (u32)end, v.w[3] = (u32)(end >> 32);
	}
	emulator::any_in_warp(false);
	if (!last) load(v, p);
}
DEVICE void store_lines(u64 p, const Pack &v) {
	if (!emulator::among_processes) {
		store(p, v);
	} else {
		const bool last = emulator::here->thread % 8 == 7;
		if (!last) store(p, v);
		emulator::any_in_warp(false);
		if (last) {
			set_aligned(p, (u64)v.w[0] | (u64)v.w[1] << 32);
			__atomic_store_n(reinterpret_cast<u64 *>(p + 8), v.w[2] | (u64)v.w[3] << 32, __ATOMIC_RELEASE);
		}
	}
	emulator::stored();
}
DEVICE u32 load_relaxed(u64 p) {
	emulator::check(p, 4);
	return __atomic_load_n(reinterpret_cast<const u32 *>(p), __ATOMIC_ACQUIRE);
}
DEVICE void store_relaxed(u64 p, u32 x) {
	emulator::check(p, 4);
	__atomic_store_n(reinterpret_cast<u32 *>(p), x, __ATOMIC_RELEASE);
}
DEVICE u32 add_one(u64 p) {
	emulator::check(p, 4);
	return __atomic_fetch_add(reinterpret_cast<u32 *>(p), 1, __ATOMIC_ACQ_REL);
}
DEVICE u32 load_acquire(u64 p) { return load_relaxed(p); }
DEVICE void store_release(u64 p, u32 x) { store_relaxed(p, x); }

DEVICE u32 bits_of(float x) { return __builtin_bit_cast(u32, x); }
DEVICE float half_to_float(u16 x) { return (float)__builtin_bit_cast(_Float16, x); }
DEVICE u16 float_to_half(float x) { return __builtin_bit_cast(u16, (_Float16)x); }
DEVICE u16 float_to_bfloat16(float x) { return x == x ? (u16)((bits_of(x) + 0x7fff + (bits_of(x) >> 16 & 1)) >> 16) : 0x7fff; }

// To 8 bits of which frac are fraction, to nearest even, and to the largest number where it is more; NaN as given.
DEVICE u8 narrow_float(float x, u32 frac, u32 bias, u8 largest, u8 nan) {
	if (x != x) return nan;
	const u8 sign = bits_of(x) >> 31 << 7;
	const float a = __builtin_fabsf(x);
	const s32 exponent = (s32)(bits_of(a) >> 23) - 127, least = 1 - (s32)bias;
	const s32 unit = (exponent < least ? least : exponent) - (s32)frac;                 // of the last place, as an exponent
	const double scaled = (double)a * __builtin_ldexp(1, -unit), whole = __builtin_rint(scaled); // the default rounding is to nearest even
	const double value = whole * __builtin_ldexp(1, unit);
	// The largest number's value, from its bits.
	const double most = __builtin_ldexp((double)((1u << frac) + (largest & ((1u << frac) - 1))), (s32)(largest >> frac) - (s32)bias - (s32)frac);
	if (value >= most) return sign | largest;
	if (exponent < least) return sign | (u8)whole; // it may have become the least normal one
	return sign | (u8)((exponent + (s32)bias) * (1 << frac) + (s32)whole - (1 << frac));
}
DEVICE float widen_float(u8 x, u32 frac, u32 bias) {
	const u32 e = (x & 127) >> frac, f = x & ((1u << frac) - 1);
	const double a = e == 0 ? __builtin_ldexp(f, 1 - (s32)bias - (s32)frac) : __builtin_ldexp((1u << frac) + f, (s32)e - (s32)bias - (s32)frac);
	return (float)(x & 128 ? -a : a);
}
DEVICE float widen_e4m3(u8 x) { return (x & 127) == 127 ? __builtin_nanf("") : widen_float(x, 3, 7); }
DEVICE float widen_e5m2(u8 x) {
	if ((x & 127) > 0x7c) return __builtin_nanf("");
	if ((x & 127) == 0x7c) return x & 128 ? -__builtin_inff() : __builtin_inff();
	return widen_float(x, 2, 15);
}
DEVICE u32 e4m3s_to_halves(u16 pair) { return float_to_half(widen_e4m3(pair & 255)) | (u32)float_to_half(widen_e4m3(pair >> 8)) << 16; }
DEVICE u32 e5m2s_to_halves(u16 pair) { return float_to_half(widen_e5m2(pair & 255)) | (u32)float_to_half(widen_e5m2(pair >> 8)) << 16; }
DEVICE u16 floats_to_e4m3s(float low, float high) { return narrow_float(low, 3, 7, 0x7e, 0x7f) | (u16)(narrow_float(high, 3, 7, 0x7e, 0x7f) << 8); }
DEVICE u16 floats_to_e5m2s(float low, float high) { return narrow_float(low, 2, 15, 0x7b, 0x7f) | (u16)(narrow_float(high, 2, 15, 0x7b, 0x7f) << 8); }

DEVICE float min_of(float a, float b) {
	if (a != a || b != b) return __builtin_nanf("");
	if (a == b) return __builtin_bit_cast(float, bits_of(a) | bits_of(b));
	return a < b ? a : b;
}
DEVICE float max_of(float a, float b) {
	if (a != a || b != b) return __builtin_nanf("");
	if (a == b) return __builtin_bit_cast(float, bits_of(a) & bits_of(b));
	return a > b ? a : b;
}

// A float's digits are more than twice those of 16 bits, so rounding its sum again rounds once.
DEVICE u32 add_halves(u32 a, u32 b) {
	u32 x = 0;
	for (int i = 0; i < 32; i += 16) {
		const float sum = half_to_float((u16)(a >> i)) + half_to_float((u16)(b >> i));
		x |= (u32)(sum == sum ? float_to_half(sum) : 0x7fff) << i;
	}
	return x;
}
DEVICE u32 add_bfloat16s(u32 a, u32 b) {
	u32 x = 0;
	for (int i = 0; i < 32; i += 16)
		x |= (u32)float_to_bfloat16(__builtin_bit_cast(float, a >> i << 16) + __builtin_bit_cast(float, b >> i << 16)) << i;
	return x;
}
