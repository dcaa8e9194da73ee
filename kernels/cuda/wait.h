// BEGIN, BARRIER, PUT and TAKE: what waits for other lanes, in this launch or on other devices.
#pragma once

#include "move.h"

struct Lane {
	u32 epoch;
	Spin spin;
	bool over; // the call is to end: nobody is waited for any more
};

// Every launch writes all entries of the table, so that launches of any numbers of blocks may follow each other.
DEVICE void begin(const Args &a, const Instr &in, Lane &l) {
	const u64 table = a.pointer[in.first];
	l.epoch = get<u32>(table + 4 * block_index()) + 1;
	sync_threads();
	ROLLED
	for (u32 b = block_index() + thread_index() * blocks(); b < MAX_BLOCKS; b += threads() * blocks()) set<u32>(table + 4 * b, l.epoch);
}

// Blocks of equal number meet. One thread a peer; the others are ordered by the barriers of the block. A table has a row of a flag
// a rank for each block, of even epochs and of odd ones.
DEVICE void barrier(const Args &a, const Instr &in, Lane &l) {
	const u64 row = 4 * MAX_RANKS * ((u64)(l.epoch & 1) * MAX_BLOCKS + block_index());
	const u32 k = thread_index();
	sync_threads();
	if (k < in.nsrc && k != in.plain) {
		const u64 theirs = a.pointer[in.first + k] + row + 4 * in.plain, ours = a.pointer[in.first + in.plain] + row + 4 * k;
		if (in.flags & RELEASE) {
			store_release(theirs, l.epoch);
			while (!l.over && load_acquire(ours) != l.epoch) l.over = give_up(l.spin);
		} else {
			store_relaxed(theirs, l.epoch);
			while (!l.over && load_relaxed(ours) != l.epoch) l.over = give_up(l.spin);
		}
	}
	sync_threads();
}

// 8 bytes of payload from memory, of which n elements are there; and to memory.
template <class T> DEVICE u64 load_payload(u64 p, u64 n) {
	if (n >= 8 / sizeof(T) && (p & 7) == 0) return get<u64>(p);
	u64 x = 0;
	ROLLED
	for (u32 i = 0; i < 8 / sizeof(T) && i < n; i++) {
		if constexpr (sizeof(T) == 1) x |= (u64)get<u8>(p + i) << 8 * i;
		if constexpr (sizeof(T) == 2) x |= (u64)get<u16>(p + 2 * i) << 16 * i;
		if constexpr (sizeof(T) == 4) x |= (u64)get<u32>(p + 4 * i) << 32 * i;
		if constexpr (sizeof(T) == 8) x = get<u64>(p);
	}
	return x;
}
template <class T> DEVICE void store_payload(u64 p, u64 n, u64 x) {
	if (n >= 8 / sizeof(T) && (p & 7) == 0) {
		set<u64>(p, x);
		return;
	}
	ROLLED
	for (u32 i = 0; i < 8 / sizeof(T) && i < n; i++) {
		if constexpr (sizeof(T) == 1) set<u8>(p + i, (u8)(x >> 8 * i));
		if constexpr (sizeof(T) == 2) set<u16>(p + 2 * i, (u16)(x >> 16 * i));
		if constexpr (sizeof(T) == 4) set<u32>(p + 4 * i, (u32)(x >> 32 * i));
		if constexpr (sizeof(T) == 8) set<u64>(p, x);
	}
}

// An epoch's lines of a row; no line is written again before the epoch after the next, which no rank begins before all have
// taken this one's.
template <class T, class Op> DEVICE void put(const Args &a, const Instr &in, const Lane &l) {
	typedef typename Number<T>::E E;
	const u64 N = 8 / sizeof(T), lines = (in.count + N - 1) / N, parity = (l.epoch & 1) * a.half;
	const Fold<T, Op> fold = Fold<T, Op>::of(a, in);
	ROLLED
	for (u64 i = lane_thread(); i < lines; i += lane_threads()) {
		u64 x = load_payload<T>(a.pointer[in.first] + i * 8, in.count - i * N);
		if constexpr (Op::scaled) { // what travels is scaled
			u32 w[2] = {(u32)x, (u32)(x >> 32)}, out[2] = {0, 0};
			E acc[N];
			fold.template add<N>(a, acc, w, 0);
			fold.template finish<N>(out, acc);
			x = out[0] | (u64)out[1] << 32;
		}
		ROLLED
		for (u32 k = 0; k < in.ndst; k++) store_line(a.pointer[in.first + 1 + k] + parity + i * 16, line_of(x, l.epoch));
	}
}

template <class T, class Op> DEVICE void take(const Args &a, const Instr &in, Lane &l) {
	typedef typename Number<T>::E E;
	const int W = 8;
	const u64 N = 8 / sizeof(T), lines = (in.count + N - 1) / N, parity = (l.epoch & 1) * a.half;
	const Fold<T, Op> fold = Fold<T, Op>::of(a, in);
	ROLLED
	for (u64 i = lane_thread(); i < lines; i += lane_threads()) {
		const u64 mine = in.plain < in.nsrc ? load_payload<T>(a.pointer[in.first + in.plain] + i * 8, in.count - i * N) : 0;
		E acc[N];
		ROLLED
		for (u32 from = 0; from < in.nsrc; from += W) {
			const u32 first = anew(in.first) + from;
			Line v[W];
			UNROLLED
			for (u32 k = 0; k < W; k++) // all in flight at first
				if (from + k < in.nsrc && from + k != in.plain) v[k] = load_line(a.pointer[first + k] + parity + i * 16);
			UNROLLED
			for (u32 k = 0; k < W; k++) {
				if (from + k < in.nsrc) {
					ROLLED
					while (from + k != in.plain && !carries(v[k], l.epoch) && !l.over) {
						l.over = give_up(l.spin);
						v[k] = load_line(a.pointer[first + k] + parity + i * 16);
					}
					const u64 x = from + k == in.plain ? mine : payload(v[k]);
					u32 w[2] = {(u32)x, (u32)(x >> 32)};
					fold.template add<N>(a, acc, w, from + k);
				}
			}
		}
		u32 out[2] = {0, 0};
		fold.template finish<N>(out, acc);
		const u64 x = out[0] | (u64)out[1] << 32;
		ROLLED
		for (u32 k = 0; k < in.ndst; k++) store_payload<T>(a.pointer[in.first + in.nsrc + k] + i * 8, in.count - i * N, x);
	}
}
