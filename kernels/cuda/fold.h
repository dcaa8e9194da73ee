// Fold of elements in registers: source after source, then the result.
#pragma once

#include "number.h"

template <class T, class Op> struct Fold {
	typedef typename Number<T>::E E;
	u64 scaled; // Instr.scaled
	E factor;
	u32 factors; // where factors are among the pointers, one a source; 0: factor is for all
	bool fetch;  // they are addresses of elements

	DEVICE Fold of(const Args &a, const Instr &in) {
		Fold f{in.scaled, E{}, 0, false};
		if constexpr (Op::scaled) {
			f.factor = number(a.factor);
			if (in.flags & FACTORS) f.factors = (u32)in.first + in.nsrc + in.ndst;
			f.fetch = in.flags & FETCH;
		}
		return f;
	}
	DEVICE E number(u64 bits) {
		if constexpr (sizeof(E) == 8) return __builtin_bit_cast(E, bits);
		else return __builtin_bit_cast(E, (u32)bits);
	}

	// What source k is multiplied by.
	METHOD E factor_of(const Args &a, u32 k) const {
		if constexpr (Op::scaled)
			if (factors) {
				const u64 x = a.pointer[factors + k];
				return fetch ? Number<T>::widen(get<T>(x)) : number(x);
			}
		return factor;
	}
	// An element of source k. A product is rounded to the type before it is added.
	METHOD E value(E e, u32 k, E by) const {
		if constexpr (Op::scaled) {
			const E product = Number<T>::widen(Number<T>::narrow(e * by));
			e = scaled >> (k & 63) & 1 ? product : e;
		}
		return e;
	}

	// n elements of words w as source k: into acc if it is the first, else onto it.
	template <int N> METHOD void add(const Args &a, E *acc, const u32 *w, u32 k) const {
		const E by = factor_of(a, k);
		if constexpr (N == 1) {
			const E e = value(Number<T>::widen(lane<T>(w, 0)), k, by);
			acc[0] = k == 0 ? e : Op::apply(acc[0], e);
			return;
		}
		UNROLLED
		for (int i = 0; i + 1 < N; i += 2) {
			E e[2];
			widen_two<T>(w, i, e);
			UNROLLED
			for (int j = 0; j < 2; j++) {
				e[j] = value(e[j], k, by);
				acc[i + j] = k == 0 ? e[j] : Op::apply(acc[i + j], e[j]);
			}
		}
	}
	template <int N> METHOD void finish(u32 *w, const E *acc) const { narrow<T, N>(w, acc); }
};
