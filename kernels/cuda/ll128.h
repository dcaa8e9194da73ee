// Exchanges by LL128 lines: payload and flag arrive in one 128-byte line, so neither fence nor barrier is needed. That such a line,
// stored by 8 threads of one instruction, arrives whole over NVLink is no promise of PTX's; NCCL relies on it too.
#pragma once

#include "wire.h"

// A source without an operator: it is stored as it is.
struct Verbatim {
	static const bool scaled = false;
	template <class E> DEVICE E apply(E a, E b) { return a; }
};
template <class Op> struct IsVerbatim {
	static const bool value = false;
};
template <> struct IsVerbatim<Verbatim> {
	static const bool value = true;
};

// Bytes at … of a message, of which some may not be there, and of elements that may lie anywhere.
template <class T> DEVICE void load_some(Pack &v, u64 p, u64 left) {
	v = Pack{};
	ROLLED
	for (u32 k = 0; k < 16 / sizeof(T) && k * sizeof(T) < left; k++) {
		const u32 at = k * sizeof(T);
		u64 x = 0;
		if constexpr (sizeof(T) == 1) x = get<u8>(p + at);
		if constexpr (sizeof(T) == 2) x = get<u16>(p + at);
		if constexpr (sizeof(T) == 4) x = get<u32>(p + at);
		if constexpr (sizeof(T) == 8) x = get<u64>(p + at);
		const u64 y = x << 8 * (at & 7);
		v.w[0] |= at < 8 ? (u32)y : 0, v.w[1] |= at < 8 ? (u32)(y >> 32) : 0;
		v.w[2] |= at < 8 ? 0 : (u32)y, v.w[3] |= at < 8 ? 0 : (u32)(y >> 32);
	}
}
template <class T> DEVICE void store_some(u64 p, u64 left, const Pack &v) {
	ROLLED
	for (u32 k = 0; k < 16 / sizeof(T) && k * sizeof(T) < left; k++) {
		const u32 at = k * sizeof(T);
		const u64 half = at < 8 ? v.w[0] | (u64)v.w[1] << 32 : v.w[2] | (u64)v.w[3] << 32, x = half >> 8 * (at & 7);
		if constexpr (sizeof(T) == 1) set<u8>(p + at, (u8)x);
		if constexpr (sizeof(T) == 2) set<u16>(p + at, (u16)x);
		if constexpr (sizeof(T) == 4) set<u32>(p + at, (u32)x);
		if constexpr (sizeof(T) == 8) set<u64>(p + at, x);
	}
}

// What a thread has of a group: the packs at byte 16i and, unless it carries flags, at 16(i+28).
struct Share {
	u64 at;       // 16i
	bool two;     // not one of those that carry flags
	bool packed;  // Pass.packed
	u64 bytes;    // Pass.bytes
	METHOD u64 byte(int u) const { return at + u * 448; }
	METHOD bool here(int u) const { return (u == 0 || two) && byte(u) < bytes; }
	METHOD bool whole(int u) const { return packed && (u == 0 || two) && byte(u) + 16 <= bytes; }
};

template <class T> DEVICE void load_share(Pack *v, u64 p, const Share &s) {
	UNROLLED
	for (int u = 0; u < 2; u++) load(v[u], p + s.byte(u), s.whole(u));
	UNROLLED
	for (int u = 0; u < 2; u++)
		if (!s.whole(u) && s.here(u)) load_some<T>(v[u], p + s.byte(u), s.bytes - s.byte(u));
}
// One pack, at byte at.
template <class T> DEVICE void load_pack(Pack &v, u64 p, u64 at, const Share &s, bool wanted) {
	const bool whole = wanted && s.packed && at + 16 <= s.bytes;
	load(v, p + at, whole);
	if (!whole && wanted && at < s.bytes) load_some<T>(v, p + at, s.bytes - at);
}
template <class T> DEVICE void store_share(u64 p, const Share &s, const Pack *v) {
	UNROLLED
	for (int u = 0; u < 2; u++) {
		if (s.whole(u)) store(p + s.byte(u), v[u]);
		else if (s.here(u)) store_some<T>(p + s.byte(u), s.bytes - s.byte(u), v[u]);
	}
}

// The lines of a group in a row: the thread's two are 512 bytes apart.
DEVICE u64 lines_of(const LL128 &a, u64 row, u32 epoch, u64 group) {
	return (row & ~(u64)(MAX_SITES - 1)) + (epoch & 1) * a.half + group * GROUP_BYTES + (thread_index() & 31) * 16;
}
DEVICE void put_group(const LL128 &a, u64 row, u32 e, u64 group, bool two, const Pack *v) {
	Pack l[2] = {v[0], v[1]};
	if (!two) {
		const u32 call = e ^ (u32)a.call;
		l[0] = Pack{{v[0].w[0], v[0].w[1], e, call}};
		l[1] = Pack{{v[0].w[2], v[0].w[3], e, call}};
	}
	const u64 p = lines_of(a, row, e, group);
	store_lines(p, l[0]);
	store_lines(p + 512, l[1]);
}

// Operands in registers: the first sets acc, each other is folded onto it. Inputs are multiplied by the factor before, if the operator
// scales, and rounded; what others have sent is so already.
template <class T, class Op, int N> DEVICE void fold_operand(typename Number<T>::E *acc, const u32 *w, bool first) {
	UNROLLED
	for (int i = 0; i < N; i++) {
		const typename Number<T>::E e = Number<T>::widen(lane<T>(w, i));
		acc[i] = first ? e : Op::apply(acc[i], e);
	}
}
template <class T, class Op, int N> DEVICE void fold_input(typename Number<T>::E *acc, const u32 *w, bool first, u64 factor) {
	typedef typename Number<T>::E E;
	UNROLLED
	for (int i = 0; i < N; i++) {
		E e = Number<T>::widen(lane<T>(w, i));
		if constexpr (Op::scaled && sizeof(E) == 8) e = Number<T>::widen(Number<T>::narrow(e * __builtin_bit_cast(E, factor)));
		if constexpr (Op::scaled && sizeof(E) == 4) e = Number<T>::widen(Number<T>::narrow(e * __builtin_bit_cast(E, (u32)factor)));
		acc[i] = first ? e : Op::apply(acc[i], e);
	}
}
template <class T, int N> DEVICE void round_to(u32 *w, const typename Number<T>::E *acc) { // w is zero
	UNROLLED
	for (int i = 0; i < N; i++) put_lane<T>(w, i, Number<T>::narrow(acc[i]));
}

// Whether two operands are added as pairs of 16-bit numbers. Their sum rounded once is what the one rounded to float and then to 16 bits
// is, for a float has more than twice the digits.
template <class T, class Op> struct Pairs {
	static const bool add = false;
};
template <> struct Pairs<bfloat16, Sum> {
	static const bool add = true;
};
template <> struct Pairs<half, Sum> {
	static const bool add = true;
};
template <> struct Pairs<bfloat16, Avg> {
	static const bool add = true;
};
template <> struct Pairs<half, Avg> {
	static const bool add = true;
};
template <class T> DEVICE u32 canonical(u32 x) { // of a pair, in which NaN is 0x7fff
	const u32 nan = __is_same(T, half) ? 0x7e00 : 0x7fc0;
	x = (x & 0xffff) == 0x7fff ? (x & 0xffff0000) | nan : x;
	return x >> 16 == 0x7fff ? (x & 0xffff) | nan << 16 : x;
}
template <class T> DEVICE u32 add_pair(u32 a, u32 b) {
	if constexpr (__is_same(T, bfloat16)) return canonical<T>(add_bfloat16s(a, b));
	else return canonical<T>(add_halves(a, b));
}

// Two operands, in their order.
template <class T, class Op> DEVICE void fold_two(Pack &out, const Pack &a, const Pack &b) {
	const int N = 16 / sizeof(T);
	if constexpr (Pairs<T, Op>::add) {
		UNROLLED
		for (int i = 0; i < 4; i++) out.w[i] = add_pair<T>(a.w[i], b.w[i]);
	} else {
		typename Number<T>::E acc[N];
		fold_operand<T, Op, N>(acc, a.w, true);
		fold_operand<T, Op, N>(acc, b.w, false);
		out = Pack{};
		round_to<T, N>(out.w, acc);
	}
}

// A warp whose exchange is ended goes on with epochs that are so much earlier, and so do all launches behind, which find DEAD_AT written: what they
// store no other site takes for lines of theirs, or for word, so nobody gets what was made of what has not come.
enum { ENDED_EARLY = 1 << 30 };

struct Waiting {
	Spin spin;
	bool over; // the call is to end: nobody is waited for any more; the same in a whole warp
};

DEVICE bool arrived(const LL128 &a, const Pack *v, u32 e, bool two) {
	const u32 call = e ^ (u32)a.call;
	return two || (v[0].w[2] == e && v[0].w[3] == call && v[1].w[2] == e && v[1].w[3] == call);
}

// What a warp knows of the exchange at hand. Lane k has the epoch of site k.
struct Warp {
	u32 epoch;
	bool told; // publish has been called
	METHOD u32 with(u64 row) const { return shuffle(epoch, (u32)row & (MAX_SITES - 1)); }
};

// Lets the launch behind this one begin when all blocks have come here, and wait until all have ended: its blocks may then stand beside
// ours, which have room already. Small launches do so early, others when nothing more is waited for.
DEVICE void let_behind(const LL128 &a, bool early) {
	if (early == (blocks() * threads() <= EARLY_THREADS)) let_behind();
}

// Writes the whole table of epochs, which all threads of the block have read, so that launches of any numbers of blocks may follow
// each other. It is done while lines are under way.
DEVICE void publish(const LL128 &a, Warp &w) {
	if (w.told) return;
	w.told = true;
	const u32 t = thread_index();
	Pack v;
	UNROLLED
	for (u32 k = 0; k < 4; k++) v.w[k] = w.with((t & 1) * 4 + k);
	sync_threads();
	let_behind(a, true);
	if (a.report && block_index() == 0 && t < MAX_SITES) store_relaxed(a.report + 4 * t, w.epoch);
	ROLLED
	for (u32 b = block_index() + blocks() * (t / 2); b < LL128_ROWS; b += blocks() * (threads() / 2)) store(a.mine + EPOCHS_AT + (b * MAX_SITES + (t & 1) * 4) * 4, v);
}

// Waits for a group of W rows, or as many as there are, and folds it.
template <class T, class Op, int W> DEVICE void take_group(const LL128 &a, u32 rows, u32 count, u32 at, u64 g, bool two, const Pack *own, Pack *out, Warp &w, Waiting &wait) {
	typedef typename Number<T>::E E;
	const int N = 16 / sizeof(T);
	E acc[2][N];
	u32 folded = 0;
	ROLLED
	for (u32 from = 0; from < count; from += W) {
		Pack v[W][2];
		u64 p[W];
		u32 epoch[W];
		UNROLLED
		for (int k = 0; k < W; k++) { // all in flight at first
			const u64 row = a.word[rows + from + k];
			epoch[k] = w.with(row);
			p[k] = lines_of(a, row, epoch[k], g);
			load_lines(v[k][0], p[k], W == 1 || from + k < count);
			load_lines(v[k][1], p[k] + 512, W == 1 || from + k < count);
		}
		UNROLLED
		for (int k = 0; k < W; k++) {
			if (W == 1 || from + k < count) {
				ROLLED
				while (any(!arrived(a, v[k], epoch[k], two)) && !wait.over) {
					if (any(give_up(wait.spin))) wait.over = true, w.epoch -= ENDED_EARLY;
					load_lines(v[k][0], p[k], true);
					load_lines(v[k][1], p[k] + 512, true);
				}
				if (!two) v[k][0].w[2] = v[k][1].w[0], v[k][0].w[3] = v[k][1].w[1];
				if constexpr (IsVerbatim<Op>::value) {
					out[0] = v[k][0], out[1] = v[k][1];
				} else if constexpr (W == 1) { // the only row: one pack after the other
					UNROLLED
					for (int u = 0; u < 2; u++) {
						const Pack first = at == 0 ? own[u] : v[k][u], second = at == 0 ? v[k][u] : own[u];
						if (at <= 1) fold_two<T, Op>(out[u], first, second);
						else out[u] = v[k][u];
					}
				} else {
					if (at == from + k) {
						fold_operand<T, Op, N>(acc[0], own[0].w, folded == 0);
						fold_operand<T, Op, N>(acc[1], own[1].w, folded++ == 0);
					}
					fold_operand<T, Op, N>(acc[0], v[k][0].w, folded == 0);
					fold_operand<T, Op, N>(acc[1], v[k][1].w, folded++ == 0);
				}
			}
		}
	}
	if constexpr (!IsVerbatim<Op>::value && W > 1) {
		if (at == count) {
			fold_operand<T, Op, N>(acc[0], own[0].w, folded == 0);
			fold_operand<T, Op, N>(acc[1], own[1].w, folded == 0);
		}
		out[0] = out[1] = Pack{};
		round_to<T, N>(out[0].w, acc[0]);
		round_to<T, N>(out[1].w, acc[1]);
	}
}

// A pass: a group's own is stored for others before the one before is taken. Returns where the next pass begins.
template <class T, class Op> DEVICE u32 pass(const LL128 &a, u32 begin, Warp &w, Waiting &wait) {
	typedef typename Number<T>::E E;
	const int N = 16 / sizeof(T);
	const u64 bytes = a.word[begin], counts = a.word[begin + 1];
	const u32 nsrc = counts & 255, nput = counts >> 8 & 255, nearly = counts >> 16 & 255, ntake = counts >> 24 & 255, nlate = counts >> 32 & 255,
		  nrelay = counts >> 40 & 255, at = counts >> 48 & 255;
	const u32 srcs = begin + 2, puts = srcs + nsrc, early = puts + nput, takes = early + nearly, late = takes + ntake, relays = late + nlate;
	const u32 lane = thread_index() & 31;
	const bool two = (lane & 7) != 7;
	const u32 mine = two ? lane - lane / 8 : 56 + lane / 8; // first pack in the group
	const u32 packs = (bytes + 15) / 16, groups = (packs + GROUP_PACKS - 1) / GROUP_PACKS, warps = lane_threads() / 32;
	Share s{0, two, counts >> 56 != 0, bytes}, last = s;
	Pack own[2] = {}, next[2] = {};
	u32 taken = ~0u; // the group to be taken
	ROLLED
	for (u32 g = lane_thread() / 32;; g += warps) {
		const bool more = g < groups;
		if (more) {
			s.at = ((u64)g * GROUP_PACKS + mine) * 16;
			if (nsrc == 1 && !Op::scaled) {
				load_share<T>(next, a.word[srcs], s);
			} else if constexpr (!IsVerbatim<Op>::value) {
				if constexpr (sizeof(T) <= 2) { // measured: these do better with few registers, the others with both packs in flight
					ROLLED
					for (u32 u = 0; u < 2 && nsrc > 0; u++) { // one pack after the other: few registers
						E acc[N];
						ROLLED
						for (u32 k = 0; k < nsrc; k++) {
							Pack v;
							load_pack<T>(v, a.word[srcs + k], s.at + u * 448, s, u == 0 || two);
							fold_input<T, Op, N>(acc, v.w, k == 0, a.factor);
						}
						Pack sum{};
						round_to<T, N>(sum.w, acc);
						next[0] = u == 0 ? sum : next[0];
						next[1] = u == 1 ? sum : next[1];
					}
				} else {
					E acc[2][N];
					ROLLED
					for (u32 k = 0; k < nsrc; k++) {
						Pack v[2];
						load_share<T>(v, a.word[srcs + k], s);
						fold_input<T, Op, N>(acc[0], v[0].w, k == 0, a.factor);
						fold_input<T, Op, N>(acc[1], v[1].w, k == 0, a.factor);
					}
					if (nsrc > 0) {
						next[0] = next[1] = Pack{};
						round_to<T, N>(next[0].w, acc[0]), round_to<T, N>(next[1].w, acc[1]);
					}
				}
			}
			ROLLED
			for (u32 k = 0; k < nput; k++) {
				const u64 row = a.word[puts + k];
				put_group(a, row, w.with(row), g, two, next);
			}
			ROLLED
			for (u32 k = 0; k < nearly; k++) store_share<T>(a.word[early + k], s, next);
		}
		publish(a, w);
		if (taken != ~0u && ntake > 0) {
			Pack out[2];
			if constexpr (IsVerbatim<Op>::value) take_group<T, Op, 1>(a, takes, 1, 255, taken, two, own, out, w, wait);
			else if (ntake == 1) take_group<T, Op, 1>(a, takes, 1, at, taken, two, own, out, w, wait);
			else take_group<T, Op, 2>(a, takes, ntake, at, taken, two, own, out, w, wait);
			ROLLED
			for (u32 k = 0; k < nlate; k++) store_share<T>(a.word[late + k], last, out);
			ROLLED
			for (u32 k = 0; k < nrelay; k++) {
				const u64 row = a.word[relays + k];
				put_group(a, row, w.with(row), taken, two, out);
			}
		}
		if (!more) break;
		taken = g, last = s;
		own[0] = next[0], own[1] = next[1];
	}
	return relays + nrelay;
}

// An exchange. Who stores lines of an epoch has got lines, or word, of the epoch before from the site they are for: so that site has
// taken those of the epoch before that one, whose memory it is.
template <class T, class Op> DEVICE void exchange_lines(const LL128 &a) {
	const u32 lane = thread_index() & 31;
	Warp w{0, false};
	wait_ahead();
	w.epoch = get<u32>(a.mine + (lane < MAX_SITES ? EPOCHS_AT + (block_index() * MAX_SITES + lane) * 4 : DEAD_AT)) + (a.part >> lane & 1);
	const u32 dead = shuffle(w.epoch, MAX_SITES);
	w.epoch -= dead, w.told = dead; // who is dead counts no more exchanges
	Waiting wait{{a.abort, 0}, false};
	const bool first = block_index() == 0 && thread_index() < MAX_SITES, teller = (a.ack | a.await) && first;
	if (teller && a.ack >> lane & 1) store_relaxed(a.stage[lane] + ACK_AT + 4 * a.me, w.epoch);
	u32 next = 0;
	ROLLED
	for (u32 i = 0; i < a.npass; i++) next = pass<T, Op>(a, next, w, wait);
	publish(a, w);
	let_behind(a, false);
	bool ended = false;
	if (teller && a.await >> lane & 1) {
		Spin spin{a.abort, 0};
		while ((s32)(load_relaxed(a.mine + ACK_AT + 4 * lane) - w.epoch) < 0 && !give_up(spin)) {}
		ended = (s32)(load_relaxed(a.mine + ACK_AT + 4 * lane) - w.epoch) < 0;
	}
	wait.over |= any(ended);
	if (a.report && first && !wait.over) store_relaxed(a.report + REPORT_OVER + 4 * lane, w.epoch);
	if (wait.over && lane == 0) store_relaxed(a.mine + DEAD_AT, ENDED_EARLY);
}
