// Messages from GPU to GPU. Of each pair and direction there is a FIFO of LL128 groups in the receiver's memory, cut into lines: group g of every
// message goes by line g % MESSAGE_LINES. Either end has a warp at work on a line at a time, which follows no other, so a message needs no barrier;
// messages of one direction follow each other on each line, and directions know nothing of each other.
#pragma once

#include "ll128.h"

// The groups of a line that are stored or taken at once.
struct Pair {
	u64 at[2]; // of our two packs of each
	u32 count; // of the line's groups before
	bool second;
};

DEVICE u32 groups_of(u64 bytes) { // of no byte, too, for it is waited for
	const u64 packs = (bytes + 15) / 16;
	return packs == 0 ? 1 : (u32)((packs + GROUP_PACKS - 1) / GROUP_PACKS);
}
DEVICE u32 call_of(u64 what) { return (u32)what * 0x9e3779b1 ^ (u32)(what >> 32); }

DEVICE Pair pair_of(const Messages &a, u32 from, u32 to, u32 line, u32 count, bool second) {
	const u64 ring = a.area[to] + RINGS_AT + (u64)(from - (from > to)) * MESSAGE_RING + line * MESSAGE_DEPTH * GROUP_BYTES + (thread_index() & 31) * 16;
	return {{ring + count % MESSAGE_DEPTH * GROUP_BYTES, ring + (count + 1) % MESSAGE_DEPTH * GROUP_BYTES}, count, second};
}

// Stores a group, whose flags are its number, from 1 on.
DEVICE void put_numbered(u64 at, u32 flag, u32 call, bool two, Pack *v) {
	if (!two) {
		v[1] = Pack{{v[0].w[2], v[0].w[3], flag, flag ^ call}};
		v[0].w[2] = flag, v[0].w[3] = flag ^ call;
	}
	store_lines(at, v[0]);
	store_lines(at + 512, v[1]);
}

DEVICE bool came(const Pair &p, u32 call, bool two, int k, Pack (*v)[2]) {
	const u32 flag = p.count + 1 + k, end = flag ^ call;
	return two || (v[k][0].w[2] == flag && v[k][0].w[3] == end && v[k][1].w[2] == flag && v[k][1].w[3] == end);
}

// Takes a pair once it is there; false if the call is to end before.
DEVICE bool take_pair(const Pair &p, u32 call, bool two, Pack (*v)[2], Spin &spin) {
	ROLLED
	for (;;) {
		UNROLLED
		for (int k = 0; k < 2; k++) {
			load_lines(v[k][0], p.at[k], k == 0 || p.second);
			load_lines(v[k][1], p.at[k] + 512, k == 0 || p.second);
		}
		if (!any(!came(p, call, two, 0, v) || (p.second && !came(p, call, two, 1, v)))) break;
		if (any(give_up(spin))) return false;
	}
	UNROLLED
	for (int k = 0; k < 2; k++)
		if (!two) v[k][0].w[2] = v[k][1].w[0], v[k][0].w[3] = v[k][1].w[1];
	return true;
}

// Has the host see that a long message goes on, every few groups.
DEVICE void tell_moved(const Pair &p, u32 line, u32 count, u64 moved) {
	if (moved && ((count ^ p.count) & ~3u)) store_relaxed(moved, count ^ line << 16);
}

// One line of a message, of which so many groups have gone before. False if the call is to end before.
DEVICE bool send_line(const Messages &a, const Direction &d, const Message &m, u32 line, u32 &count, Spin &spin, u64 moved) {
	const u32 lane = thread_index() & 31;
	const bool two = (lane & 7) != 7;
	const u64 acked = a.area[a.me] + ACKED_AT + (d.site * MESSAGE_LINES + line) * 4, first = (two ? lane - lane / 8 : 56 + lane / 8) * 16;
	const u32 groups = groups_of(m.bytes), call = call_of(m.what);
	u32 taken = load_relaxed(acked);
	ROLLED
	for (u32 g = line; g < groups; g += 2 * MESSAGE_LINES) {
		const Pair p = pair_of(a, a.me, d.site, line, count, g + MESSAGE_LINES < groups);
		Pack v[2][2] = {};
		Share s{(u64)g * GROUP_PAYLOAD + first, two, m.at % 16 == 0, m.bytes};
		load_share<u8>(v[0], m.at, s);
		s.at += (u64)MESSAGE_LINES * GROUP_PAYLOAD;
		if (p.second) load_share<u8>(v[1], m.at, s);
		count += 1 + p.second;
		ROLLED
		while (any((s32)(count - taken) > MESSAGE_DEPTH)) {
			if (any(give_up(spin))) return false;
			taken = load_relaxed(acked);
		}
		put_numbered(p.at[0], p.count + 1, call, two, v[0]);
		if (p.second) put_numbered(p.at[1], p.count + 2, call, two, v[1]);
		tell_moved(p, line, count, moved);
	}
	return true;
}

DEVICE bool take_line(const Messages &a, const Direction &d, const Message &m, u32 line, u32 &count, Spin &spin, u64 moved) {
	const u32 lane = thread_index() & 31;
	const bool two = (lane & 7) != 7;
	const u64 acked = a.area[d.site] + ACKED_AT + (a.me * MESSAGE_LINES + line) * 4, first = (two ? lane - lane / 8 : 56 + lane / 8) * 16;
	const u32 groups = groups_of(m.bytes), call = call_of(m.what);
	ROLLED
	for (u32 g = line; g < groups; g += 2 * MESSAGE_LINES) {
		const Pair p = pair_of(a, d.site, a.me, line, count, g + MESSAGE_LINES < groups);
		Pack v[2][2];
		if (!take_pair(p, call, two, v, spin)) return false;
		count += 1 + p.second;
		// What was loaded was looked at, so the slots may be stored again. Of what is taken less than a half is not said.
		if (lane == 0 && ((count ^ p.count) & ~(MESSAGE_DEPTH / 2 - 1u))) store_relaxed(acked, count);
		Share s{(u64)g * GROUP_PAYLOAD + first, two, m.at % 16 == 0, m.bytes};
		store_share<u8>(m.at, s, v[0]);
		s.at += (u64)MESSAGE_LINES * GROUP_PAYLOAD;
		if (p.second) store_share<u8>(m.at, s, v[1]);
		tell_moved(p, line, count, moved);
	}
	return true;
}

// A direction's warps take its messages in order, and the lines of each in turns: so at both ends the lines stand in one order, whatever the
// numbers of warps, and whichever messages an end has in one launch.
DEVICE void messages(const Messages &a) {
	const u32 warp = ((u32)block_index() * threads() + thread_index()) / 32, lane = thread_index() & 31;
	wait_ahead();
	u32 k = 0;
	ROLLED
	while (k + 1 < a.directions && warp >= a.direction[k + 1].warp) k++;
	const Direction &d = a.direction[k];
	if (warp - d.warp >= d.warps) return;
	// What is read at first is read at once: whether a call ahead was ended, how many messages were before, and how many groups of the line.
	const u64 mine = a.area[a.me], number = mine + NUMBER_AT + (d.takes * MAX_SITES + d.site) * 4;
	const u64 counts = mine + (d.takes ? TAKEN_FROM_AT : SENT_AT) + d.site * MESSAGE_LINES * 4;
	u32 at = warp - d.warp;
	const u32 words = get<u32>(lane == 0 ? a.stage + DEAD_AT : lane == 1 ? number : counts + 4 * at), counted = shuffle(words, 1);
	u32 count = shuffle(words, 2);
	if (shuffle(words, 0)) return; // what stands behind may read what has not come
	const u64 report = a.report + (d.takes * MAX_SITES + d.site) * sizeof(Report);
	const bool tells = warp == d.warp && lane == 0; // there is a first line of all messages
	const u64 moved = tells ? report + MOVED_AT : 0;
	Spin spin{a.abort, 0, report + WAITS_AT};
	bool there = true;
	ROLLED
	for (u32 i = 0; i < d.messages && there; i++) {
		const Message &m = a.message[d.first + i];
		if (tells) {
			const u64 what = report + WHAT_AT + (counted + i) % MESSAGES_TOLD * 8;
			store_relaxed(what, (u32)m.what), store_relaxed(what + 4, (u32)(m.what >> 32));
			store_release(report, counted + i + 1); // after what it is
		}
		const u32 groups = groups_of(m.bytes), lines = groups < MESSAGE_LINES ? groups : MESSAGE_LINES;
		ROLLED
		for (u32 line = warp - d.warp; line < lines && there; line += d.warps) {
			if (line != at) at = line, count = get<u32>(counts + 4 * line);
			there = d.takes ? take_line(a, d, m, line, count, spin, moved) : send_line(a, d, m, line, count, spin, moved);
			sync_warp();
			if (lane == 0) set<u32>(counts + 4 * line, count);
			sync_warp();
		}
		if (tells && there) store_relaxed(report + OVER_AT, counted + i + 1);
	}
	if (!there && lane == 0) store_relaxed(a.stage + DEAD_AT, ENDED_EARLY);
	if (there && tells) set<u32>(number, counted + d.messages);
}
