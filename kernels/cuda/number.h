// Numbers and operators. A type T has a type E that it is computed in; every NaN that is written is the format's canonical one.
#pragma once

#include "device.h"

struct half {
	u16 bits;
};
struct bfloat16 {
	u16 bits;
};

template <class T> struct Number { // integers of 32 and 64 bits
	typedef T E;
	static const bool real = false;
	DEVICE E widen(T x) { return x; }
	DEVICE T narrow(E x) { return x; }
};
template <> struct Number<s8> {
	typedef s32 E;
	static const bool real = false;
	DEVICE E widen(s8 x) { return x; }
	DEVICE s8 narrow(E x) { return (s8)x; }
};
template <> struct Number<u8> {
	typedef u32 E;
	static const bool real = false;
	DEVICE E widen(u8 x) { return x; }
	DEVICE u8 narrow(E x) { return (u8)x; }
};
template <> struct Number<float> {
	typedef float E;
	static const bool real = true;
	DEVICE E widen(float x) { return x; }
	DEVICE float narrow(E x) { return x == x ? x : __builtin_bit_cast(float, 0x7fc00000u); }
};
template <> struct Number<double> {
	typedef double E;
	static const bool real = true;
	DEVICE E widen(double x) { return x; }
	DEVICE double narrow(E x) { return x == x ? x : __builtin_bit_cast(double, 0x7ff8000000000000ull); }
};
template <> struct Number<half> {
	typedef float E;
	static const bool real = true;
	DEVICE E widen(half x) {
		return half_to_float(x.bits);
	}
	DEVICE half narrow(E x) {
		half h{float_to_half(x)};
		if (x != x) h.bits = 0x7e00;
		return h;
	}
};
template <> struct Number<bfloat16> {
	typedef float E;
	static const bool real = true;
	DEVICE E widen(bfloat16 x) { return __builtin_bit_cast(float, (u32)x.bits << 16); }
	DEVICE bfloat16 narrow(E x) {
		bfloat16 h{float_to_bfloat16(x)};
		if (x != x) h.bits = 0x7fc0;
		return h;
	}
};

// The 8-bit formats, by conversions of compute capability 8.9, which saturate and make NaN canonical. float8.cu alone uses them.
struct e4m3 {
	u8 bits;
};
struct e5m2 {
	u8 bits;
};
#define FLOAT8(name) \
	template <> struct Number<name> { \
		typedef float E; \
		static const bool real = true; \
		DEVICE void widen_pair(u16 pair, E &low, E &high) { \
			const u32 h = name##s_to_halves(pair); \
			low = half_to_float((u16)h), high = half_to_float((u16)(h >> 16)); \
		} \
		DEVICE u16 narrow_pair(E low, E high) { \
			return floats_to_##name##s(low, high); \
		} \
		DEVICE E widen(name x) { \
			E low, high; \
			widen_pair(x.bits, low, high); \
			return low; \
		} \
		DEVICE name narrow(E x) { return name{(u8)narrow_pair(x, 0)}; } \
	};
FLOAT8(e4m3)
FLOAT8(e5m2)

template <class T> struct IsFloat8 { static const bool value = false; };
template <> struct IsFloat8<e4m3> { static const bool value = true; };
template <> struct IsFloat8<e5m2> { static const bool value = true; };

// An operator's E apply(E, E) combines two elements. Scaled: sources are multiplied before.
struct Sum {
	static const bool scaled = false;
	template <class E> DEVICE E apply(E a, E b) { return a + b; }
};
struct Avg : Sum { // of floating-point types
	static const bool scaled = true;
};
struct Prod {
	static const bool scaled = false;
	template <class E> DEVICE E apply(E a, E b) { return a * b; }
};
struct Min {
	static const bool scaled = false;
	template <class E> DEVICE E apply(E a, E b) { return b < a ? b : a; }
	DEVICE float apply(float a, float b) { return min_of(a, b); }
	DEVICE double apply(double a, double b) {
		if (a != a) return a;
		if (a == b) return __builtin_bit_cast(double, __builtin_bit_cast(u64, a) | __builtin_bit_cast(u64, b)); // -0 if one is
		return a < b ? a : b;
	}
};
struct Max {
	static const bool scaled = false;
	template <class E> DEVICE E apply(E a, E b) { return a < b ? b : a; }
	DEVICE float apply(float a, float b) { return max_of(a, b); }
	DEVICE double apply(double a, double b) {
		if (a != a) return a;
		if (a == b) return __builtin_bit_cast(double, __builtin_bit_cast(u64, a) & __builtin_bit_cast(u64, b)); // +0 if one is
		return a > b ? a : b;
	}
};

// Lane k of a pack of 4-byte words, and the inverse on a pack of zeros.
template <class T> DEVICE T lane(const u32 *w, int k) {
	if constexpr (sizeof(T) == 1) return __builtin_bit_cast(T, (u8)(w[k / 4] >> 8 * (k % 4)));
	if constexpr (sizeof(T) == 2) return __builtin_bit_cast(T, (u16)(w[k / 2] >> 16 * (k % 2)));
	if constexpr (sizeof(T) == 4) return __builtin_bit_cast(T, w[k]);
	if constexpr (sizeof(T) == 8) return __builtin_bit_cast(T, w[2 * k] | (u64)w[2 * k + 1] << 32);
}
template <class T> DEVICE void put_lane(u32 *w, int k, T x) {
	if constexpr (sizeof(T) == 1) w[k / 4] |= (u32)__builtin_bit_cast(u8, x) << 8 * (k % 4);
	if constexpr (sizeof(T) == 2) w[k / 2] |= (u32)__builtin_bit_cast(u16, x) << 16 * (k % 2);
	if constexpr (sizeof(T) == 4) w[k] = __builtin_bit_cast(u32, x);
	if constexpr (sizeof(T) == 8) {
		u64 b = __builtin_bit_cast(u64, x);
		w[2 * k] = (u32)b;
		w[2 * k + 1] = (u32)(b >> 32);
	}
}

// Lanes i and i+1 of a pack as E: of 8-bit formats by one conversion. And all N lanes to a pack of zeros.
template <class T> DEVICE void widen_two(const u32 *w, int i, typename Number<T>::E *e) {
	if constexpr (IsFloat8<T>::value) Number<T>::widen_pair((u16)(w[i / 4] >> 8 * (i % 4)), e[0], e[1]);
	else e[0] = Number<T>::widen(lane<T>(w, i)), e[1] = Number<T>::widen(lane<T>(w, i + 1));
}
template <class T, int N> DEVICE void narrow(u32 *w, const typename Number<T>::E *e) {
	UNROLLED
	for (int i = 0; i < N; i++) {
		if constexpr (!IsFloat8<T>::value) put_lane<T>(w, i, Number<T>::narrow(e[i]));
		else if (i % 2 == 0) w[i / 4] |= (u32)Number<T>::narrow_pair(e[i], e[i + 1]) << 8 * (i % 4);
	}
}
