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

DEVICE Line line_of(u64 payload, u32 epoch) { return Line{(u32)payload | (u64)epoch << 32, payload >> 32 | (u64)epoch << 32}; }
DEVICE bool carries(const Line &l, u32 epoch) { return (u32)(l.a >> 32) == epoch && (u32)(l.b >> 32) == epoch; }
DEVICE u64 payload(const Line &l) { return (u32)l.a | l.b << 32; }

// A spin counts turns and looks every 16th time, which costs nothing, whether the call is to end.
struct Spin {
	u64 abort;
	u32 turns;
};
DEVICE bool give_up(Spin &s) {
	turn();
	return (++s.turns & 15) == 0 && s.abort && load_relaxed(s.abort) != 0;
}
