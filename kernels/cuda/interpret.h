// The interpreters: for every type and operator a kernel whose instrs move memory, and two for bytes: one that copies, and one that
// exchanges and divides. Apart, each has the registers it needs. A launch holds lanes, each a number of blocks that run one program together.
#pragma once

#include "move.h"

// The program of this block's lane, instr by instr. They are copied first: the compiler cannot know that stores don't change them.
#define PROGRAM(a, in) \
	const u32 lane = lane_index(); \
	ROLLED \
	for (u32 i = a.start[lane]; i < a.start[lane + 1]; i++) \
		if (const Instr in = a.instr[i]; true)

template <class T, class Op> DEVICE void run_moves(const Args &a) {
	PROGRAM(a, in) move<T, Op>(a, in);
}

DEVICE void run_copies(const Args &a) {
	PROGRAM(a, in) copy(a, in);
}

DEVICE void run_swaps(const Args &a) {
	PROGRAM(a, in) {
		if (in.code == EXCHANGE) exchange(a, in);
		else divide(a, in);
	}
}

#define INTERPRET(op, type, T, Op) KERNEL(gccl_move_##op##_##type, Args, 256, 3, (run_moves<T, Op>(args)))
