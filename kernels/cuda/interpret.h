// The interpreters: for every type and operator one kernel whose instrs move memory and one whose instrs pass lines, and such
// a pair for bytes, with a third that exchanges and divides: apart, each has the registers it needs. A launch holds lanes, each a number of blocks that run one program together. Which lanes there are, and whom
// they wait for, is the host's affair.
#pragma once

#include "wait.h"

// The program of this block's lane, instr by instr. They are copied first: the compiler cannot know that stores don't change them.
#define PROGRAM(a, l, in) \
	const u32 lane = lane_index(); \
	Lane l{0, {a.abort, 0}, false}; \
	ROLLED \
	for (u32 i = a.start[lane]; i < a.start[lane + 1]; i++) \
		if (const Instr in = a.instr[i]; in.code == BEGIN) begin(a, in, l); \
		else if (in.code == BARRIER) barrier(a, in, l); \
		else

template <class T, class Op> DEVICE void run_moves(const Args &a) {
	PROGRAM(a, l, in) move<T, Op>(a, in);
}

template <class T, class Op> DEVICE void run_lines(const Args &a) {
	PROGRAM(a, l, in) {
		if (in.code == PUT) put<T, Op>(a, in, l);
		else take<T, Op>(a, in, l);
	}
}

DEVICE void run_copies(const Args &a) {
	PROGRAM(a, l, in) copy(a, in);
}

DEVICE void run_swaps(const Args &a) {
	PROGRAM(a, l, in) {
		if (in.code == EXCHANGE) exchange(a, in);
		else divide(a, in);
	}
}

#define INTERPRET(op, type, T, Op) \
	KERNEL(gccl_move_##op##_##type, Args, 256, 3, (run_moves<T, Op>(args))) \
	KERNEL(gccl_line_##op##_##type, Args, 256, 3, (run_lines<T, Op>(args)))
