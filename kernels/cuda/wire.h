// What the host hands to the kernels for traffic between GPUs that reach each other's memory: exchanges by LL128 lines, pushes through
// FIFOs, direct copies between barriers. wire.go mirrors it, and a test holds the two together. A site is a GPU with the ranks
// on it, a stage its memory for such traffic, which all sites map.
#pragma once

#include "number.h"

enum {
	MAX_SITES = 8,
	MAX_STRIPES = 64,   // of a FIFO
	LL128_WORDS = 497,
	LL128_ROWS = 128, // of blocks, in the table of epochs
	MAX_COPY_POINTERS = 256,
	MAX_COPIES = 96,
	WIRE_BLOCKS = 256,  // rows of the epoch table
	WIRE_THREADS = 512, // of a block at most; that move data in a push, so that what a thread moves has constant distances
	PUSH_THREADS = 544, // … and one warp more
	EARLY_THREADS = 8192, // of a launch that lets the one behind it begin early

	// The layout of a stage, in bytes. Words are of 4 bytes; where a table has a site, it is the other one.
	EPOCHS_AT = 0,                               // [WIRE_BLOCKS][MAX_SITES]: exchanges begun with a site, ours
	MET_AT = EPOCHS_AT + WIRE_BLOCKS * MAX_SITES * 4, // [WIRE_BLOCKS][MAX_SITES]: barriers that a block has met a site's in, ours
	START_AT = MET_AT + WIRE_BLOCKS * MAX_SITES * 4,  // [WIRE_BLOCKS][MAX_SITES]: of barriers before copies, theirs
	END_AT = START_AT + WIRE_BLOCKS * MAX_SITES * 4,  // [WIRE_BLOCKS][MAX_SITES]: of barriers after copies, theirs
	FULL_AT = END_AT + WIRE_BLOCKS * MAX_SITES * 4,   // [MAX_SITES][MAX_STRIPES]: chunks pushed to us, theirs
	CREDIT_AT = FULL_AT + MAX_SITES * MAX_STRIPES * 4, // [MAX_SITES][MAX_STRIPES]: of our chunks taken, theirs
	DONE_AT = CREDIT_AT + MAX_SITES * MAX_STRIPES * 4, // [MAX_SITES][MAX_STRIPES]: pushes after which our output is whole, theirs
	PUSHED_AT = DONE_AT + MAX_SITES * MAX_STRIPES * 4, // [MAX_SITES][MAX_STRIPES]: chunks that we pushed, ours
	TAKEN_AT = PUSHED_AT + MAX_SITES * MAX_STRIPES * 4, // [MAX_SITES][MAX_STRIPES]: chunks that we took, ours
	ENDED_AT = TAKEN_AT + MAX_SITES * MAX_STRIPES * 4, // [MAX_STRIPES]: pushes that we ended, ours
	ACK_AT = ENDED_AT + MAX_STRIPES * 4,              // [MAX_SITES]: the exchange that a site has begun, theirs
	DEAD_AT = ACK_AT + MAX_SITES * 4,                 // ENDED_EARLY once an exchange or a message of ours was ended
	REPORT_OVER = 64,                                 // of a report: exchanges begun are before it, those that our first warp is through with behind
	ROWS_AT = 64 << 10,                               // of lines, then of FIFO slots
};
static_assert((int)DEAD_AT + 4 <= ROWS_AT);

// An LL128 group is what a warp stores at once: 8 lines of 128 bytes, each with 8 bytes of flag at its end, which hold 60 packs.
enum { GROUP_BYTES = 1024, GROUP_PACKS = 60, GROUP_PAYLOAD = GROUP_PACKS * 16 };

// An exchange is a number of passes. In a pass own is the fold of the sources. It is stored in rows of other sites and in plain places;
// then rows are taken and folded in their order, with own where at says, and the result is stored in plain places and rows of other
// sites. A row is a multiple of 1024, with the number of the other site in its low bits.
//
// The words of a pass: its bytes; the counts nsrc, nput, nearly, ntake, nlate, nrelay, then at (own is folded before this row; 255: not at
// all) and packed (all plain pointers are multiples of 16), of 8 bits each from the lowest on; and pointers in the order of the
// counts. What a launch reads first comes first, for its arguments are in no cache.
struct LL128 {
	u64 factor; // as in Args
	u64 half;   // bytes from a row for even epochs to the one for odd ones
	u64 abort;  // address of a word that is not 0 once the call is to end at once, on the host
	u64 mine;   // our stage
	u8 me, npass;
	u8 part;  // the sites that exchange with us, a bit each
	u8 ack;   // those told that we have begun: they get no lines of ours
	u8 await; // those who tell us
	u8 unused[3];
	u64 call; // the lower half: what all sites call; lines of who calls something else never arrive
	u64 report; // where exchanges with each site are counted for the host, begun and over; 0: nowhere
	u64 word[LL128_WORDS];
	u64 stage[MAX_SITES];
};

// Every site's piece is pushed to it, folded there, and stored wherever it is wanted.
struct Push {
	u64 factor, abort;
	u64 stage[MAX_SITES];
	u64 at[MAX_SITES], bytes[MAX_SITES]; // where each site's piece is in the sources, and how long
	u64 share;                           // bytes of slots for each site that pushes
	u32 stripes, chunk, depth;
	u8 me, sites, nsrc, ndst;
	u8 whole; // others store in our memory: we wait for their end
	u8 unused[3];
	u32 unused2;
	u64 fifo;      // bytes from a stage to its slots
	u64 source[8]; // inputs of the ranks here, from their beginning
	u64 dst[MAX_SITES * 8]; // where our piece goes
};

// Blocks first … first+blocks-1 of the launch do a copy.
struct Copy {
	u64 bytes;
	u16 pointer; // the source, then the destinations
	u8 ndst, unused;
	u16 first, blocks;
};

struct Bulk {
	u64 abort;
	u64 stage[MAX_SITES];
	u8 me, sites, part, unused;
	u16 ncopies, unused2;
	Copy copy[MAX_COPIES];
	u64 pointer[MAX_COPY_POINTERS];
};

enum {
	MAX_MESSAGES = 158,
	MESSAGE_LINES = 256, // of a direction's FIFO: a warp for each where a launch has two directions
	MESSAGE_DEPTH = 16,  // groups of a line: a power of 2. Measured: 8 move long messages at two thirds of the speed, 32 at four fifths
	MESSAGE_RING = MESSAGE_LINES * MESSAGE_DEPTH * GROUP_BYTES,
	MESSAGES_TOLD = 32,  // more than a sender can be ahead of who takes: MESSAGE_DEPTH, for all have a group of the first line

	// The layout of a site's memory for messages, in bytes. Words are of 4 bytes; where a table has a site, it is the other one.
	SENT_AT = 0,                                              // [MAX_SITES][MESSAGE_LINES]: groups stored for it, ours
	TAKEN_FROM_AT = SENT_AT + MAX_SITES * MESSAGE_LINES * 4,  // [MAX_SITES][MESSAGE_LINES]: groups taken that it stored, ours
	ACKED_AT = TAKEN_FROM_AT + MAX_SITES * MESSAGE_LINES * 4, // [MAX_SITES][MESSAGE_LINES]: groups of ours that it has taken, theirs
	NUMBER_AT = ACKED_AT + MAX_SITES * MESSAGE_LINES * 4,     // [2][MAX_SITES]: messages to it, and from it, that are over, ours
	RINGS_AT = 64 << 10,                                      // of all others, in their order

	// A report on a direction, for the host: messages begun, and over, as its first warp is; something else now and then while one goes on, and while
	// any warp waits; and what the last ones are.
	OVER_AT = 4,
	MOVED_AT = 8,
	WAITS_AT = 12,
	WHAT_AT = 16,
};
static_assert(NUMBER_AT + 2 * (int)MAX_SITES * 4 <= RINGS_AT);
struct Report {
	u32 begun, over, moved, waits;
	u64 what[MESSAGES_TOLD];
};

// A message, of what both ends agree on.
struct Message {
	u64 at, bytes, what;
};
// All messages to a site or from it, which so many warps take in turns, from a warp of the launch on.
struct Direction {
	u8 site, takes;
	u16 first, messages, warp, warps;
	u16 unused;
};
struct Messages {
	u64 abort; // as in LL128
	u64 report; // Reports, [2][MAX_SITES]: to a site, and from it
	u64 stage;  // ours: what is ended here, and what is ended there, ends what is behind in both
	u8 me, directions;
	u8 unused[6];
	u64 area[MAX_SITES];
	Direction direction[2 * MAX_SITES];
	Message message[MAX_MESSAGES];
};

AT(LL128, mine, 24);
AT(LL128, me, 32);
AT(LL128, call, 40);
AT(LL128, report, 48);
AT(LL128, word, 56);
AT(LL128, stage, 4032);
AT(Push, at, 80);
AT(Push, share, 208);
AT(Push, stripes, 216);
AT(Push, me, 228);
AT(Push, fifo, 240);
AT(Push, dst, 312);
AT(Bulk, me, 72);
AT(Bulk, copy, 80);
AT(Bulk, pointer, 80 + 16 * MAX_COPIES);
AT(Messages, me, 24);
AT(Messages, area, 32);
AT(Messages, direction, 96);
AT(Messages, message, 288);
static_assert(sizeof(Direction) == 12 && sizeof(Message) == 24 && sizeof(Messages) <= 4096);
static_assert(sizeof(Copy) == 16 && sizeof(LL128) <= 4096 && sizeof(Push) <= 4096 && sizeof(Bulk) <= 4096);
