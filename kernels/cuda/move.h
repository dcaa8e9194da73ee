// MOVE, EXCHANGE and DIVIDE: memory in, memory out, nobody waited for. Threads take packs of 16 bytes in turn; elements before
// the first whole pack and after the last go singly, as all do where the pointers don't agree on where packs begin.
#pragma once

#include "fold.h"

struct Packs {
	u64 head, count; // elements before the packs; packs
};

// The bits in which the instr's pointers differ.
DEVICE u64 difference(const Args &a, const Instr &in) {
	const u64 first = a.pointer[in.first];
	u64 mixed = 0;
	ROLLED
	for (u32 k = 1; k < (u32)in.nsrc + in.ndst; k++) mixed |= a.pointer[in.first + k] ^ first;
	return mixed;
}

// size is an element's.
DEVICE Packs packs(const Args &a, const Instr &in, u32 size) {
	if (difference(a, in) & 15) return Packs{in.count, 0};
	u64 head = (u64)((16 - (a.pointer[in.first] & 15)) & 15) / size;
	if (head > in.count) head = in.count;
	return Packs{head, (in.count - head) * size / 16};
}

template <class T, class Op> DEVICE void move_elements(const Args &a, const Instr &in, const Fold<T, Op> &fold, Packs p, u32 block) {
	typedef typename Number<T>::E E;
	const u64 single = in.count - p.count * (16 / sizeof(T));
	ROLLED
	for (u64 j = (u64)block * threads() + thread_index(); j < single; j += (u64)a.blocks * threads()) {
		const u64 i = j < p.head ? j : in.count - single + j;
		E acc{};
		ROLLED
		for (u32 k = 0; k < in.nsrc; k++) {
			const E e = fold.value(get<T>(a.pointer[in.first + k] + i * sizeof(T)), k);
			acc = k == 0 ? e : Op::apply(acc, e);
		}
		const T x = Number<T>::narrow(acc);
		ROLLED
		for (u32 k = 0; k < in.ndst; k++) set<T>(a.pointer[in.first + in.nsrc + k] + i * sizeof(T), x);
	}
}

// 8 sources are loaded together. More are taken in further turns.
template <class T, class Op> DEVICE void move(const Args &a, const Instr &in, u32 block) {
	typedef typename Number<T>::E E;
	const int N = 16 / sizeof(T), W = 8;
	const Fold<T, Op> fold = Fold<T, Op>::of(a, in);
	const Packs p = packs(a, in, sizeof(T));
	const u64 stride = (u64)a.blocks * threads();
	ROLLED
	for (u64 i = (u64)block * threads() + thread_index(); i < p.count; i += stride) {
		const u64 at = p.head * sizeof(T) + i * 16;
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
				if (from + k < in.nsrc) fold.template add<N>(acc, v[k].w, from + k);
		}
		fold.template finish<N>(out.w, acc);
		ROLLED
		for (u32 k = 0; k < in.ndst; k++) store(a.pointer[in.first + in.nsrc + k] + at, out);
	}
	move_elements<T, Op>(a, in, fold, p, block);
}

// Copies by smaller units than packs, which the pointers agree on.
template <class G> DEVICE void copy_units(const Args &a, const Instr &in, u64 head, u64 count, u32 block) {
	const int U = 4;
	const u64 stride = (u64)a.blocks * threads();
	ROLLED
	for (u64 i = (u64)block * threads() + thread_index(); i < count; i += U * stride) {
		G v[U];
		UNROLLED
		for (int u = 0; u < U; u++)
			if (i + u * stride < count) v[u] = get<G>(a.pointer[in.first] + head + (i + u * stride) * sizeof(G));
		ROLLED
		for (u32 k = 0; k < in.ndst; k++)
			UNROLLED
			for (int u = 0; u < U; u++)
				if (i + u * stride < count) set<G>(a.pointer[in.first + 1 + k] + head + (i + u * stride) * sizeof(G), v[u]);
	}
}

DEVICE void copy_packs(const Args &a, const Instr &in, u64 head, u64 count, u32 block) {
	const int U = 4;
	const u64 s = a.pointer[in.first] + head, stride = (u64)a.blocks * threads();
	ROLLED
	for (u64 i = (u64)block * threads() + thread_index(); i < count; i += U * stride) {
		Pack v[U];
		UNROLLED
		for (int u = 0; u < U; u++) load(v[u], s + (i + u * stride) * 16, i + u * stride < count);
		ROLLED
		for (u32 k = 0; k < in.ndst; k++) {
			const u64 d = a.pointer[in.first + 1 + k] + head;
			UNROLLED
			for (int u = 0; u < U; u++)
				if (i + u * stride < count) store(d + (i + u * stride) * 16, v[u]);
		}
	}
}

DEVICE void copy(const Args &a, const Instr &in, u32 block) {
	const u64 mixed = difference(a, in) & 15, unit = mixed == 0 ? 16 : mixed & (0 - mixed);
	u64 head = (0 - a.pointer[in.first]) & (unit - 1);
	if (head > in.count) head = in.count;
	const u64 n = (in.count - head) / unit, done = head + n * unit;
	switch (unit) {
	case 16: copy_packs(a, in, head, n, block); break;
	case 8: copy_units<u64>(a, in, head, n, block); break;
	case 4: copy_units<u32>(a, in, head, n, block); break;
	case 2: copy_units<u16>(a, in, head, n, block); break;
	default: copy_units<u8>(a, in, head, n, block); break;
	}
	ROLLED
	for (u64 i = (u64)block * threads() + thread_index(); i < head + in.count - done; i += (u64)a.blocks * threads()) {
		const u64 at = i < head ? i : done + i - head;
		const u8 x = get<u8>(a.pointer[in.first] + at);
		ROLLED
		for (u32 k = 0; k < in.ndst; k++) set<u8>(a.pointer[in.first + 1 + k] + at, x);
	}
}

DEVICE void exchange(const Args &a, const Instr &in, u32 block) {
	const int W = 8;
	const Packs p = packs(a, in, 1);
	const u64 stride = (u64)a.blocks * threads(), single = in.count - p.count * 16;
	ROLLED
	for (u64 i = (u64)block * threads() + thread_index(); i < p.count; i += stride) {
		const u64 at = p.head + i * 16;
		const u32 first = anew(in.first);
		Pack v[W];
		UNROLLED
		for (int k = 0; k < W; k++) load(v[k], a.pointer[first + k] + at, k < in.nsrc);
		UNROLLED
		for (int k = 0; k < W; k++)
			if (k < in.nsrc) store(a.pointer[first + in.nsrc + k] + at, v[k]);
	}
	ROLLED
	for (u64 j = (u64)block * threads() + thread_index(); j < single; j += stride) {
		const u64 at = j < p.head ? j : in.count - single + j;
		u64 v = 0; // a byte each
		ROLLED
		for (u32 k = 0; k < in.nsrc; k++) v |= (u64)get<u8>(a.pointer[in.first + k] + at) << 8 * k;
		ROLLED
		for (u32 k = 0; k < in.nsrc; k++) set<u8>(a.pointer[in.first + in.nsrc + k] + at, (u8)(v >> 8 * k));
	}
}

template <class T> DEVICE void divide_as(const Args &a, const Instr &in, u32 block) {
	ROLLED
	for (u64 i = (u64)block * threads() + thread_index(); i < in.count; i += (u64)a.blocks * threads()) {
		const T x = get<T>(a.pointer[in.first] + i * sizeof(T));
		T q;
		if constexpr ((T)-1 < (T)0) q = (T)((s64)x / (s64)a.factor);
		else q = (T)((u64)x / a.factor);
		set<T>(a.pointer[in.first + 1] + i * sizeof(T), q);
	}
}
DEVICE void divide(const Args &a, const Instr &in, u32 block) {
	switch (in.plain | (in.flags & SIGNED) << 7) {
	case 1: divide_as<u8>(a, in, block); break;
	case 4: divide_as<u32>(a, in, block); break;
	case 8: divide_as<u64>(a, in, block); break;
	case 256 + 1: divide_as<s8>(a, in, block); break;
	case 256 + 4: divide_as<s32>(a, in, block); break;
	case 256 + 8: divide_as<s64>(a, in, block); break;
	}
}
