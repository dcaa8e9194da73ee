// Pushes: stores to other sites' FIFOs, for stores beat loads when both directions of a link are busy. A site's piece is folded
// there, out of the FIFOs and its own inputs, and stored wherever it is wanted. No memory of a rank is written before something of
// that rank's call has arrived. Counters go on from call to call, so nothing is reset; a call ends with all FIFOs empty, so
// that the next may cut them otherwise.
#pragma once

#include "ll128.h"

DEVICE u64 word(u64 stage, u32 table, u32 site, u32 stripe) { return stage + table + (site * MAX_STRIPES + stripe) * 4; }
DEVICE bool before(u32 seen, u32 wanted) { return (s32)(seen - wanted) < 0; }

// Waits for a counter to come so far; false if the call is to end.
DEVICE bool reach(u64 p, u32 wanted, u64 abort) {
	Spin spin{abort, 0};
	while (before(load_relaxed(p), wanted))
		if (give_up(spin)) return false;
	return true;
}
DEVICE bool reach_acquire(u64 p, u32 wanted, u64 abort) {
	Spin spin{abort, 0};
	while (before(load_acquire(p), wanted))
		if (give_up(spin)) return false;
	return true;
}

// U packs of the inputs of S ranks, which are folded, step bytes apart.
template <class T, class Op, int S, int U> DEVICE void load_inputs(const Push &a, Pack *v, u64 at, u64 step) {
	UNROLLED
	for (int u = 0; u < U; u++) load(v[u], a.source[0] + at + u * step);
	if constexpr (S == 2) {
		Pack w[U];
		UNROLLED
		for (int u = 0; u < U; u++) load(w[u], a.source[1] + at + u * step);
		UNROLLED
		for (int u = 0; u < U; u++) fold_two<T, Op>(v[u], v[u], w[u]);
	}
}

// Bytes of inputs from done on, as long as every worker has U packs in flight; for U = 1 all.
template <class T, class Op, int S, int U> DEVICE void push_run(const Push &a, u64 at, u64 slot, u64 &done, u64 whole) {
	const u64 step = WIRE_THREADS * 16, end = U == 1 ? whole : whole - (whole - done) % (U * step);
	ROLLED
	for (u64 i = done + thread_index() * 16; i < end; i += U * step) {
		Pack v[U];
		load_inputs<T, Op, S, U>(a, v, at + i, step);
		UNROLLED
		for (int u = 0; u < U; u++) store(slot + i + u * step, v[u]);
	}
	done = end;
}
template <class T, class Op, int S> DEVICE void push_runs(const Push &a, u64 at, u64 slot, u64 whole) {
	u64 done = 0;
	push_run<T, Op, S, 4>(a, at, slot, done, whole);
	push_run<T, Op, S, 2>(a, at, slot, done, whole);
	push_run<T, Op, S, 1>(a, at, slot, done, whole);
}

// Bytes of inputs, from at on, of one rank or the fold of several, to a slot.
template <class T, class Op> DEVICE void push_chunk(const Push &a, u64 at, u64 bytes, u64 slot) {
	typedef typename Number<T>::E E;
	const int N = 16 / sizeof(T);
	const u64 step = WIRE_THREADS * 16, whole = bytes & ~15ull;
	if (a.nsrc == 1 && !Op::scaled) {
		push_runs<T, Op, 1>(a, at, slot, whole);
	} else if (a.nsrc == 2 && !Op::scaled) {
		push_runs<T, Op, 2>(a, at, slot, whole);
	} else {
		ROLLED
		for (u64 i = thread_index() * 16; i < whole; i += step) {
			E acc[N];
			Pack v[2], out{};
			ROLLED
			for (u32 k = 0; k < a.nsrc; k += 2) {
				load(v[0], a.source[k] + at + i);
				load(v[1], a.source[(k + 1) & 7] + at + i, k + 1 < a.nsrc);
				fold_input<T, Op, N>(acc, v[0].w, k == 0, a.factor);
				if (k + 1 < a.nsrc) fold_input<T, Op, N>(acc, v[1].w, false, a.factor);
			}
			round_to<T, N>(out.w, acc);
			store(slot + i, out);
		}
	}
	if (whole < bytes && thread_index() == 0) { // the end of a message that is not all packs
		E acc[N];
		Pack v, out{};
		ROLLED
		for (u32 k = 0; k < a.nsrc; k++) {
			load_some<T>(v, a.source[k] + at + whole, bytes - whole);
			fold_input<T, Op, N>(acc, v.w, k == 0, a.factor);
		}
		round_to<T, N>(out.w, acc);
		store(slot + whole, out);
	}
}

// Own inputs as one operand, rounded as what others push.
template <class T, class Op> DEVICE void own_operand(const Push &a, Pack &out, u64 at, u64 left) {
	typedef typename Number<T>::E E;
	const int N = 16 / sizeof(T);
	if (a.nsrc == 1 && !Op::scaled && left >= 16) {
		load(out, a.source[0] + at);
		return;
	}
	E acc[N];
	Pack v;
	ROLLED
	for (u32 k = 0; k < a.nsrc; k++) {
		if (left >= 16) load(v, a.source[k] + at);
		else load_some<T>(v, a.source[k] + at, left);
		fold_input<T, Op, N>(acc, v.w, k == 0, a.factor);
	}
	out = Pack{};
	round_to<T, N>(out.w, acc);
}

// The operands of two sites, ours of S ranks, from done on, as long as every worker has U packs of each in flight.
template <class T, class Op, int S, int U> DEVICE void fold_run(const Push &a, u64 at, u64 slot, u64 out_at, u64 &done, u64 whole) {
	const u64 step = WIRE_THREADS * 16, end = whole - (whole - done) % (U * step);
	ROLLED
	for (u64 i = done + thread_index() * 16; i < end; i += U * step) {
		Pack v[U], w[U];
		UNROLLED
		for (int u = 0; u < U; u++) load(w[u], slot + i + u * step);
		load_inputs<T, Op, S, U>(a, v, at + i, step);
		UNROLLED
		for (int u = 0; u < U; u++) {
			if (a.me == 0) fold_two<T, Op>(v[u], v[u], w[u]);
			else fold_two<T, Op>(v[u], w[u], v[u]);
		}
		ROLLED
		for (u32 k = 0; k < a.ndst; k++) {
			const u64 d = a.dst[k] + out_at + i;
			UNROLLED
			for (int u = 0; u < U; u++) store(d + u * step, v[u]);
		}
	}
	done = end;
}

// Folds a chunk: operands in the order of sites, slot[s] being what s pushed.
template <class T, class Op> DEVICE void fold_chunk(const Push &a, u64 at, u64 bytes, const u64 *slot) {
	typedef typename Number<T>::E E;
	const int N = 16 / sizeof(T);
	const u64 step = WIRE_THREADS * 16, whole = bytes & ~15ull, out_at = at - a.at[a.me];
	u64 done = 0;
	if (a.sites == 2 && a.nsrc == 1 && !Op::scaled) {
		fold_run<T, Op, 1, 4>(a, at, slot[1 - a.me], out_at, done, whole);
		fold_run<T, Op, 1, 2>(a, at, slot[1 - a.me], out_at, done, whole);
	} else if (a.sites == 2 && a.nsrc == 2 && !Op::scaled) {
		fold_run<T, Op, 2, 4>(a, at, slot[1 - a.me], out_at, done, whole);
		fold_run<T, Op, 2, 2>(a, at, slot[1 - a.me], out_at, done, whole);
	}
	ROLLED
	for (u64 i = done + thread_index() * 16; i < bytes; i += step) {
		E acc[N];
		Pack v, out{};
		ROLLED
		for (u32 s = 0; s < a.sites; s++) {
			if (s == a.me) own_operand<T, Op>(a, v, at + i, bytes - i);
			else load(v, slot[s] + i);
			fold_operand<T, Op, N>(acc, v.w, s == 0);
		}
		round_to<T, N>(out.w, acc);
		ROLLED
		for (u32 k = 0; k < a.ndst; k++) {
			if (bytes - i >= 16) store(a.dst[k] + out_at + i, out);
			else store_some<T>(a.dst[k] + out_at + i, bytes - i, out);
		}
	}
}

// A site numbered s has the others' slots in their order.
DEVICE u64 slot_of(const Push &a, u32 at_site, u32 from, u32 stripe, u32 number) {
	const u32 index = from < at_site ? from : from - 1;
	return a.stage[at_site] + a.fifo + index * a.share + (u64)(stripe * a.depth + number % a.depth) * a.chunk;
}

// In a block of a push 16 warps move data, and one more waits for flags and sets them, a chunk ahead and a chunk behind: a release
// takes longer than the gap between two chunks. They meet in numbered barriers: turn i's data may be moved (go), or has been (did).
enum { WORKERS = WIRE_THREADS };
DEVICE u32 go(u32 turn) { return 1 + (turn & 1); }
DEVICE u32 did(u32 turn) { return 3 + (turn & 1); }
DEVICE void meet(u32 barrier) { meet_of<WORKERS + 32>(barrier); }
DEVICE void pass_by(u32 barrier) { pass_of<WORKERS + 32>(barrier); }

struct Block { // shared
	u64 slot[2][MAX_SITES];
	u32 over;
};

template <class T, class Op> DEVICE void push_stripe(const Push &a, Block &block, u32 to, u32 stripe) {
	const u64 mine = a.stage[a.me], chunks = (a.bytes[to] + a.chunk - 1) / a.chunk;
	const u64 counter = word(mine, PUSHED_AT, to, stripe), credit = word(mine, CREDIT_AT, to, stripe), full = word(a.stage[to], FULL_AT, a.me, stripe);
	const u32 first = get<u32>(counter);
	if (thread_index() < WORKERS) {
		u32 turn = 0;
		ROLLED
		for (u64 c = stripe; c < chunks; c += a.stripes, turn++) {
			meet(go(turn));
			if (block.over) return;
			const u64 at = c * a.chunk, left = a.bytes[to] - at;
			push_chunk<T, Op>(a, a.at[to] + at, left < a.chunk ? left : a.chunk, slot_of(a, to, a.me, stripe, first + turn));
			pass_by(did(turn));
		}
		return;
	}
	const bool one = thread_index() == WORKERS;
	u32 turn = 0;
	ROLLED
	for (u64 c = stripe; c < chunks; c += a.stripes, turn++) {
		bool over = one && !reach(credit, first + turn + 1 - a.depth, a.abort);
		if (over) block.over = 1;
		sync_warp();
		over = any(over);
		pass_by(go(turn));
		if (over) return;
		if (turn > 0) {
			meet(did(turn - 1));
			if (one) store_release(full, first + turn);
			sync_warp();
		}
	}
	if (turn > 0) {
		meet(did(turn - 1));
		if (one) store_release(full, first + turn);
	}
	if (one) {
		set<u32>(counter, first + turn);
		reach(credit, first + turn, a.abort);
	}
}

template <class T, class Op> DEVICE void fold_stripe(const Push &a, Block &block, u32 stripe) {
	const u64 mine = a.stage[a.me], chunks = (a.bytes[a.me] + a.chunk - 1) / a.chunk;
	if (thread_index() < WORKERS) {
		u32 turn = 0;
		ROLLED
		for (u64 c = stripe; c < chunks; c += a.stripes, turn++) {
			meet(go(turn));
			if (block.over) return;
			const u64 at = c * a.chunk, left = a.bytes[a.me] - at;
			fold_chunk<T, Op>(a, a.at[a.me] + at, left < a.chunk ? left : a.chunk, block.slot[turn & 1]);
			pass_by(did(turn));
		}
		return;
	}
	const u32 k = thread_index() - WORKERS;
	const bool waits = k < a.sites && k != a.me;
	const u32 first = waits ? get<u32>(word(mine, TAKEN_AT, k, stripe)) : 0;
	u32 turn = 0;
	ROLLED
	for (u64 c = stripe; c < chunks; c += a.stripes, turn++) {
		bool over = false;
		if (waits) {
			over = !reach_acquire(word(mine, FULL_AT, k, stripe), first + turn + 1, a.abort);
			block.slot[turn & 1][k] = slot_of(a, a.me, k, stripe, first + turn);
			if (over) block.over = 1;
		}
		sync_warp();
		over = any(over);
		pass_by(go(turn));
		if (over) return;
		if (turn > 0) {
			meet(did(turn - 1));
			if (waits) store_relaxed(word(a.stage[k], CREDIT_AT, a.me, stripe), first + turn); // the slot's loads have returned
			sync_warp();
		}
	}
	if (turn > 0) {
		meet(did(turn - 1));
		if (waits) {
			store_relaxed(word(a.stage[k], CREDIT_AT, a.me, stripe), first + turn);
			set<u32>(word(mine, TAKEN_AT, k, stripe), first + turn);
		}
	}
	if (!a.whole) return;
	const u32 end = get<u32>(mine + ENDED_AT + 4 * stripe) + 1;
	sync_warp();
	if (waits) {
		store_release(word(a.stage[k], DONE_AT, a.me, stripe), end);
		reach_acquire(word(mine, DONE_AT, k, stripe), end, a.abort);
	}
	if (k == 0) set<u32>(mine + ENDED_AT + 4 * stripe, end);
}

template <class T, class Op> DEVICE void push(const Push &a) {
	SHARED(Block, block);
	if (thread_index() == 0) block.over = 0;
	sync_threads();
	const u32 role = block_index() / a.stripes, stripe = block_index() % a.stripes;
	if (role + 1 < a.sites) push_stripe<T, Op>(a, block, (a.me + 1 + role) % a.sites, stripe);
	else fold_stripe<T, Op>(a, block, stripe);
}

// Copies between a barrier of all sites that take part and another. Blocks of equal number meet.
DEVICE void bulk(const Bulk &a) {
	const u64 mine = a.stage[a.me], entry = block_index() * MAX_SITES * 4;
	const u32 k = thread_index();
	const bool meets = k < a.sites && a.part >> k & 1;
	u32 epoch = 0;
	bool over = false;
	if (meets) {
		epoch = get<u32>(mine + MET_AT + entry + 4 * k) + 1;
		store_relaxed(a.stage[k] + START_AT + entry + 4 * a.me, epoch);
		over = !reach(mine + START_AT + entry + 4 * k, epoch, a.abort);
	}
	if (any_in_block(over)) return;
	ROLLED
	for (u32 i = 0; i < a.ncopies; i++) {
		const Copy c = a.copy[i];
		if (block_index() < c.first || block_index() >= c.first + c.blocks) continue;
		const int U = 4;
		const u64 step = (u64)c.blocks * threads() * 16, whole = c.bytes & ~15ull, src = a.pointer[c.pointer];
		const u64 start = ((u64)(block_index() - c.first) * threads() + k) * 16;
		ROLLED
		for (u64 i = start; i < whole; i += U * step) {
			Pack v[U];
			UNROLLED
			for (int u = 0; u < U; u++) load(v[u], src + i + u * step, i + u * step < whole);
			ROLLED
			for (u32 d = 0; d < c.ndst; d++) {
				const u64 dst = a.pointer[c.pointer + 1 + d] + i;
				UNROLLED
				for (int u = 0; u < U; u++)
					if (i + u * step < whole) store(dst + u * step, v[u]);
			}
		}
		ROLLED
		for (u64 i = whole + start / 16; i < c.bytes; i += step / 16) {
			ROLLED
			for (u32 d = 0; d < c.ndst; d++) set<u8>(a.pointer[c.pointer + 1 + d] + i, get<u8>(src + i));
		}
	}
	sync_threads();
	if (meets) {
		store_release(a.stage[k] + END_AT + entry + 4 * a.me, epoch);
		reach_acquire(mine + END_AT + entry + 4 * k, epoch, a.abort);
		set<u32>(mine + MET_AT + entry + 4 * k, epoch);
	}
}
