// What the host hands to a kernel: a short program for every lane. args.go mirrors it, and a test holds the two together.
#pragma once

typedef signed char s8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int s32;
typedef unsigned u32;
typedef long long s64;
typedef unsigned long long u64;

enum {
	MAX_LANES = 64,
	MAX_INSTRS = 64,
	MAX_POINTERS = 294,
};

// Codes of instrs. Pointers of an instr are those of its sources, then those of its destinations.
enum {
	MOVE = 0,     // every destination = the fold of the sources, in their order
	EXCHANGE = 1, // destination k = source k, all of which are read before one is written; at most 8
	DIVIDE = 2,   // destination 0 = source 0 divided by the factor, integers, fractions dropped
};

// Flags of instrs.
enum {
	SIGNED = 1,  // of DIVIDE: two's complement; the size of an element is plain
	FACTORS = 2, // of MOVE: every source has a factor of its own, which come after the destinations' pointers
	FETCH = 4,   // of FACTORS: they are addresses of elements
};

// 24 bytes
struct Instr {
	u64 count;  // elements
	u64 scaled; // a bit for each source whose elements are multiplied by the factor
	u16 first;  // of the pointers
	u8 nsrc, ndst;
	u8 code;
	u8 flags;
	u8 plain; // of DIVIDE the size of an element; of MOVE and EXCHANGE the logarithm of the unit that all pointers agree on, 16 bytes at most
	u8 head;  // of MOVE and EXCHANGE: elements before the first whole unit
};

// A grid's row y is lane y. 4096 bytes, as much as every driver takes for a kernel's arguments.
struct Args {
	u64 factor; // bits of a float (also for the shorter types), a double, or a divisor
	u16 start[MAX_LANES + 1]; // lane l runs instrs start[l] … start[l+1]-1
	u16 unused[3];
	Instr instr[MAX_INSTRS];
	u64 pointer[MAX_POINTERS + 8]; // loads of 8 are predicated, but not the reading of their addresses
};

#define AT(type, field, offset) static_assert(__builtin_offsetof(type, field) == offset)
AT(Instr, count, 0);
AT(Instr, scaled, 8);
AT(Instr, first, 16);
AT(Instr, nsrc, 18);
AT(Instr, ndst, 19);
AT(Instr, code, 20);
AT(Instr, flags, 21);
AT(Instr, plain, 22);
AT(Instr, head, 23);
AT(Args, factor, 0);
AT(Args, start, 8);
AT(Args, instr, 144);
AT(Args, pointer, 1680);
static_assert(sizeof(Instr) == 24 && sizeof(Args) == 4096);
