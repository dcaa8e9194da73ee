// A trip takes input to the host's memory, tells the host, waits for its word, and brings the result. trip.go mirrors what the host hands to
// it, and a test holds the two together.
#pragma once

#include "device.h"

enum {
	MAX_PARTS = 16,
	TRIP_THREADS = 512, // of its one block at most

	// Words of 4 bytes in the host's memory: those that the kernel stores, and on another line those that it looks at.
	TOLD_AT = 0,  // number of the last trip whose input is there
	ID_AT = 4,    // … and what the host is to do
	DONE_AT = 64, // number of the last trip whose result is there
	STOP_AT = 68, // not 0: there will be no more
};

// Rows of bytes, each of which begins a pitch behind the one before on the device, and at once on the host.
struct Part {
	u64 device, host, pitch;
	u32 bytes, rows;
	u32 out;  // from the host to the device, after its word
	u32 unit; // that all divides by, in bytes: 16, 8, 4, 2 or 1
};

struct Trip {
	u64 words, count; // of the host; of trips that have begun, and behind it of those that have ended, on the device
	u32 id, parts;
	Part part[MAX_PARTS];
};

static_assert(__builtin_offsetof(Part, bytes) == 24);
static_assert(sizeof(Part) == 40);
static_assert(__builtin_offsetof(Trip, part) == 24);

template <class T> DEVICE void carry(const Part &p) {
	const u32 each = p.bytes / sizeof(T), total = each * p.rows;
	for (u32 from = thread_index(); from < total; from += 4 * threads()) { // several loads in flight
		T v[4];
		UNROLLED for (u32 k = 0; k < 4; k++) {
			const u32 u = from + k * threads();
			if (u < total) v[k] = get<T>(p.out ? p.host + (u64)u * sizeof(T) : p.device + u / each * p.pitch + (u64)(u % each) * sizeof(T));
		}
		UNROLLED for (u32 k = 0; k < 4; k++) {
			const u32 u = from + k * threads();
			if (u < total) set<T>(p.out ? p.device + u / each * p.pitch + (u64)(u % each) * sizeof(T) : p.host + (u64)u * sizeof(T), v[k]);
		}
	}
}

DEVICE void carry_all(const Trip &t, u32 out) {
	ROLLED for (u32 i = 0; i < t.parts; i++) {
		const Part &p = t.part[i];
		if (p.out != out) continue;
		switch (p.unit) {
		case 16: carry<Pack>(p); break;
		case 8: carry<u64>(p); break;
		case 4: carry<u32>(p); break;
		case 2: carry<u16>(p); break;
		default: carry<u8>(p);
		}
	}
}

DEVICE void trip(const Trip &t) {
	SHARED(u32, number);
	if (thread_index() == 0) { // streams may bring several at a time
		number = add_one(t.count) + 1;
		while (load_acquire(t.count + 4) != number - 1 && load_relaxed(t.words + STOP_AT) == 0) turn();
	}
	sync_threads();
	carry_all(t, 0);
	sync_threads();
	if (thread_index() == 0) {
		store_relaxed(t.words + ID_AT, t.id);
		store_release(t.words + TOLD_AT, number);
		while ((s32)(load_acquire(t.words + DONE_AT) - number) < 0 && load_relaxed(t.words + STOP_AT) == 0) turn();
	}
	sync_threads();
	carry_all(t, 1);
	sync_threads();
	if (thread_index() == 0) store_release(t.count + 4, number);
}
