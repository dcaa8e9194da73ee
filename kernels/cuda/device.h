// What all kernels stand on, on a GPU or in the emulator.
#pragma once

#ifdef __CUDA__
#include "ptx.h"
#else
#include "emulator/host.h"
#endif

// Threads of a lane take its work in turns.
DEVICE u64 lane_thread() { return (u64)block_index() * threads() + thread_index(); }
DEVICE u64 lane_threads() { return (u64)blocks() * threads(); }

// A spin counts turns and looks now and then whether the call is to end: the word is the host's, and so tells even where the driver is
// held up by somebody who waits for all kernels.
struct Spin {
	u64 abort;
	u32 turns;
	u64 waits; // where the host is told at each look that it goes on, or 0
};
DEVICE bool give_up(Spin &s) {
	turn();
	if (++s.turns % LOOK_TURNS != 0) return false;
	if (s.waits) store_relaxed(s.waits, s.turns);
	return s.abort && load_relaxed(s.abort) != 0;
}
