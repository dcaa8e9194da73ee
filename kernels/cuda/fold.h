// Fold of elements in registers: source after source, then the result.
#pragma once

#include "number.h"

template <class T, class Op> struct Fold {
	typedef typename Number<T>::E E;
	u64 scaled; // Instr.scaled
	E factor;

	DEVICE Fold of(const Args &a, const Instr &in) {
		Fold f{in.scaled, E{}};
		if constexpr (Op::scaled && sizeof(E) == 8) f.factor = __builtin_bit_cast(E, a.factor);
		if constexpr (Op::scaled && sizeof(E) == 4) f.factor = __builtin_bit_cast(E, (u32)a.factor);
		return f;
	}

	// Source k's element. A product is rounded to the type before it is added.
	__attribute__((device, always_inline)) E value(T x, u32 k) const {
		E e = Number<T>::widen(x);
		if constexpr (Op::scaled) {
			const E product = Number<T>::widen(Number<T>::narrow(e * factor));
			e = scaled >> (k & 63) & 1 ? product : e;
		}
		return e;
	}

	// n elements of words w as source k: into acc if it is the first, else onto it.
	template <int N> __attribute__((device, always_inline)) void add(E *acc, const u32 *w, u32 k) const {
		UNROLLED
		for (int i = 0; i < N; i++) {
			const E e = value(lane<T>(w, i), k);
			acc[i] = k == 0 ? e : Op::apply(acc[i], e);
		}
	}
	template <int N> __attribute__((device, always_inline)) void finish(u32 *w, const E *acc) const {
		UNROLLED
		for (int i = 0; i < N; i++) put_lane<T>(w, i, Number<T>::narrow(acc[i]));
	}
};
