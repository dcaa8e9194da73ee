// MOVE, EXCHANGE and DIVIDE: memory in, memory out, nobody waited for. Threads take packs of 16 bytes in turn; elements before
// the first whole pack and after the last go singly, as all do where the pointers don't agree on where packs begin. What a
// thread does before its first load counts as much as the loads: the host finds heads and units.
#pragma once

#include "fold.h"

enum { PACK_UNIT = 4 }; // logarithm of 16

// A range of elements of which some go in units and the others singly.
struct Range {
	u64 head, units, single;
	DEVICE Range of(const Instr &in, u32 size, u32 unit) { // both as logarithms
		const u64 units = (in.count - in.head) << size >> unit;
		return Range{in.head, units, in.count - (units << unit >> size)};
	}
	// Element j of those that go singly.
	METHOD u64 element(u64 j, u64 count) const { return j < head ? j : count - single + j; }
};

template <class T, class Op> DEVICE void move_elements(const Args &a, const Instr &in, const Fold<T, Op> &fold, Range range) {
	typedef typename Number<T>::E E;
	ROLLED
	for (u64 j = lane_thread(); j < range.single; j += lane_threads()) {
		const u64 i = range.element(j, in.count);
		E acc{};
		ROLLED
		for (u32 k = 0; k < in.nsrc; k++) {
			const E e = fold.value(Number<T>::widen(get<T>(a.pointer[in.first + k] + i * sizeof(T))), k, fold.factor_of(a, k));
			acc = k == 0 ? e : Op::apply(acc, e);
		}
		const T x = Number<T>::narrow(acc);
		ROLLED
		for (u32 k = 0; k < in.ndst; k++) set<T>(a.pointer[in.first + in.nsrc + k] + i * sizeof(T), x);
	}
}

// Sources are loaded 8 at a time; more are taken in further turns.
template <class T, class Op> DEVICE void move_packs(const Args &a, const Instr &in, const Fold<T, Op> &fold, Range range, u32 size) {
	typedef typename Number<T>::E E;
	const int N = 16 / sizeof(T), W = 8;
	ROLLED
	for (u64 i = lane_thread(); i < range.units; i += lane_threads()) {
		const u64 at = (range.head << size) + i * 16;
		E acc[N];
		Pack out{};
		ROLLED
		for (u32 from = 0; from < in.nsrc; from += W) {
			const u32 first = anew(in.first) + from;
			Pack v[W];
			UNROLLED
			for (int k = 0; k < W; k++) load(v[k], a.pointer[first + k] + at, from + k < in.nsrc);
			UNROLLED
			for (int k = 0; k < W; k++)
				if (from + k < in.nsrc) fold.template add<N>(a, acc, v[k].w, from + k);
		}
		fold.template finish<N>(out.w, acc);
		ROLLED
		for (u32 k = 0; k < in.ndst; k++) store(a.pointer[in.first + in.nsrc + k] + at, out);
	}
}

// Two sources, U packs of each in flight: what a thread does before its first load is much beside so few.
template <class T, class Op, int U> DEVICE void move_pairs(const Args &a, const Instr &in, const Fold<T, Op> &fold, Range range, u32 size) {
	typedef typename Number<T>::E E;
	const int N = 16 / sizeof(T);
	const u64 stride = lane_threads();
	ROLLED
	for (u64 i = lane_thread(); i < range.units; i += U * stride) {
		const u64 at = (range.head << size) + i * 16;
		Pack v[U][2];
		UNROLLED
		for (int u = 0; u < U; u++) {
			const bool inside = u == 0 || i + u * stride < range.units;
			load(v[u][0], a.pointer[in.first] + at + u * stride * 16, inside);
			load(v[u][1], a.pointer[in.first + 1] + at + u * stride * 16, inside);
		}
		UNROLLED
		for (int u = 0; u < U; u++) {
			if (u > 0 && i + u * stride >= range.units) break;
			E acc[N];
			Pack out{};
			fold.template add<N>(a, acc, v[u][0].w, 0);
			fold.template add<N>(a, acc, v[u][1].w, 1);
			fold.template finish<N>(out.w, acc);
			ROLLED
			for (u32 k = 0; k < in.ndst; k++) store(a.pointer[in.first + 2 + k] + at + u * stride * 16, out);
		}
	}
}

template <class T, class Op> DEVICE void move(const Args &a, const Instr &in) {
	const Fold<T, Op> fold = Fold<T, Op>::of(a, in);
	const u32 size = sizeof(T) == 8 ? 3 : sizeof(T) == 4 ? 2 : sizeof(T) == 2 ? 1 : 0;
	const Range range = in.plain == PACK_UNIT ? Range::of(in, size, PACK_UNIT) : Range{in.count, 0, in.count};
	if (in.nsrc == 2) move_pairs<T, Op, 2>(a, in, fold, range, size);
	else move_packs<T, Op>(a, in, fold, range, size);
	move_elements<T, Op>(a, in, fold, range);
}

// Copies by units of G.
template <class G> DEVICE void copy_units(const Args &a, const Instr &in, Range range) {
	ROLLED
	for (u64 i = lane_thread(); i < range.units; i += lane_threads()) {
		const u64 at = range.head + i * sizeof(G);
		const G v = get<G>(a.pointer[in.first] + at);
		ROLLED
		for (u32 k = 0; k < in.ndst; k++) set<G>(a.pointer[in.first + 1 + k] + at, v);
	}
}

DEVICE void copy(const Args &a, const Instr &in) {
	const Range range = Range::of(in, 0, in.plain);
	switch (in.plain) {
	case PACK_UNIT: copy_units<Pack>(a, in, range); break;
	case 3: copy_units<u64>(a, in, range); break;
	case 2: copy_units<u32>(a, in, range); break;
	case 1: copy_units<u16>(a, in, range); break;
	default: copy_units<u8>(a, in, range); break;
	}
	ROLLED
	for (u64 j = lane_thread(); j < range.single; j += lane_threads()) {
		const u64 at = range.element(j, in.count);
		const u8 x = get<u8>(a.pointer[in.first] + at);
		ROLLED
		for (u32 k = 0; k < in.ndst; k++) set<u8>(a.pointer[in.first + 1 + k] + at, x);
	}
}

DEVICE void exchange(const Args &a, const Instr &in) {
	const int W = 8;
	const Range range = in.plain == PACK_UNIT ? Range::of(in, 0, PACK_UNIT) : Range{in.count, 0, in.count};
	ROLLED
	for (u64 i = lane_thread(); i < range.units; i += lane_threads()) {
		const u64 at = range.head + i * 16;
		const u32 first = anew(in.first);
		Pack v[W];
		UNROLLED
		for (int k = 0; k < W; k++) load(v[k], a.pointer[first + k] + at, k < in.nsrc);
		UNROLLED
		for (int k = 0; k < W; k++)
			if (k < in.nsrc) store(a.pointer[first + in.nsrc + k] + at, v[k]);
	}
	ROLLED
	for (u64 j = lane_thread(); j < range.single; j += lane_threads()) {
		const u64 at = range.element(j, in.count);
		u64 v = 0; // a byte each
		ROLLED
		for (u32 k = 0; k < in.nsrc; k++) v |= (u64)get<u8>(a.pointer[in.first + k] + at) << 8 * k;
		ROLLED
		for (u32 k = 0; k < in.nsrc; k++) set<u8>(a.pointer[in.first + in.nsrc + k] + at, (u8)(v >> 8 * k));
	}
}

template <class T> DEVICE void divide_as(const Args &a, const Instr &in) {
	ROLLED
	for (u64 i = lane_thread(); i < in.count; i += lane_threads()) {
		const T x = get<T>(a.pointer[in.first] + i * sizeof(T));
		T q;
		if constexpr ((T)-1 < (T)0) q = (T)((s64)x / (s64)a.factor);
		else q = (T)((u64)x / a.factor);
		set<T>(a.pointer[in.first + 1] + i * sizeof(T), q);
	}
}
DEVICE void divide(const Args &a, const Instr &in) {
	switch (in.plain + (in.flags & SIGNED ? 256 : 0)) {
	case 1: divide_as<u8>(a, in); break;
	case 4: divide_as<u32>(a, in); break;
	case 8: divide_as<u64>(a, in); break;
	case 256 + 1: divide_as<s8>(a, in); break;
	case 256 + 4: divide_as<s32>(a, in); break;
	case 256 + 8: divide_as<s64>(a, in); break;
	}
}
