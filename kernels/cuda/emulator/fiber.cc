// Blocks of fibers: a GPU's thread is a fiber with a stack of its own, which gives way where it waits.
#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "gpu.h"

#ifndef __x86_64__
#error "the emulator switches fibers on x86-64 alone"
#endif

namespace emulator {

std::mt19937_64 random_order;
const Place *here;

void fatal(const char *format, ...) {
	va_list list;
	va_start(list, format);
	fprintf(stderr, "emulated GPU: ");
	vfprintf(stderr, format, list);
	fprintf(stderr, "\n");
	va_end(list);
	abort();
}

// Saves the registers that a call keeps and the stack in from, and goes on with to.
extern "C" void gccl_switch(void **from, void *to);
asm(R"(
.text
.globl gccl_switch
.type gccl_switch, @function
gccl_switch:
	pushq %rbp
	pushq %rbx
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rsp, (%rdi)
	movq %rsi, %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	popq %rbp
	ret
.size gccl_switch, .-gccl_switch
)");

const size_t stack_bytes = 32 << 10;
const u64 canary = 0x6363676c656d756c;

struct Fiber {
	Place place;
	void *stack = nullptr, *top = nullptr;
	Block *block;
	enum { Ready, Waiting, Turning, Done } state = Ready;
	bool result = false; // of a barrier
	u32 phase = 0;       // of the warp's exchanges
	u32 stores = 0;      // of lines
};

static std::vector<void *> spare; // stacks
static Fiber *running;
static void *worker_top;

static void *new_stack() {
	if (spare.empty()) {
		const size_t many = 256;
		char *p = static_cast<char *>(mmap(nullptr, many * stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
		if (p == MAP_FAILED) fatal("no memory for the stacks of threads");
		for (size_t i = 0; i < many; i++) spare.push_back(p + i * stack_bytes);
	}
	void *s = spare.back();
	spare.pop_back();
	*static_cast<u64 *>(s) = canary;
	return s;
}

struct Barrier {
	u32 arrived = 0;
	bool any = false;
	std::vector<Fiber *> waiting;
};

struct Warp {
	u32 arrived[2] = {}, value[2][32] = {};
	bool any[2] = {};
	std::vector<Fiber *> waiting;
};

struct Block {
	Launch *launch;
	std::vector<Fiber> fibers;
	std::vector<Fiber *> ready;
	std::vector<Warp> warps;
	Barrier barriers[16];
	u32 alive;
	bool freed = false;
	alignas(16) char memory[8192] = {}; // shared by the block

	Block(Launch *l, u32 index);
	bool run();
	void end(Fiber *f);
	void release(Barrier &b);
	void free_behind();
};

static void give_way(int state) {
	Fiber *f = running;
	f->state = static_cast<decltype(f->state)>(state);
	gccl_switch(&f->top, worker_top);
}

static void begin() {
	Fiber *f = running;
	const Grid &g = f->block->launch->grid;
	g.kernel->run(g.args.data());
	give_way(Fiber::Done);
}

Block::Block(Launch *l, u32 index) : launch(l), fibers(l->grid.threads), warps((l->grid.threads + 31) / 32), alive(l->grid.threads) {
	for (u32 t = 0; t < alive; t++) {
		Fiber &f = fibers[t];
		f.place = {t, alive, index % l->grid.columns, l->grid.columns, index / l->grid.columns};
		f.block = this;
		ready.push_back(&f);
	}
}

void Block::free_behind() {
	if (!freed) launch->freed++;
	freed = true;
}

void Block::release(Barrier &b) {
	for (Fiber *f : b.waiting) {
		f->result = b.any;
		f->state = Fiber::Ready;
		ready.push_back(f);
	}
	b = Barrier{};
}

void Block::end(Fiber *f) {
	if (*static_cast<u64 *>(f->stack) != canary) fatal("%s: the stack of a thread is full", launch->grid.kernel->name);
	spare.push_back(f->stack);
	f->stack = nullptr;
	alive--;
	Barrier &b = barriers[0]; // who has ended is not waited for
	if (alive > 0 && b.arrived == alive && !b.waiting.empty()) release(b);
}

// Runs threads until all wait or have ended; false if all that ran only turned in a loop of waiting.
bool Block::run() {
	bool moved = false;
	std::vector<Fiber *> turning;
	while (!ready.empty()) {
		std::vector<Fiber *> now;
		now.swap(ready);
		if (random_order() % 4 == 0) std::shuffle(now.begin(), now.end(), random_order);
		for (Fiber *f : now) {
			bool turned = f->state == Fiber::Turning;
			if (!f->stack) {
				f->stack = new_stack();
				void **top = reinterpret_cast<void **>(static_cast<char *>(f->stack) + stack_bytes);
				*--top = nullptr; // begin is entered as by a call
				*--top = reinterpret_cast<void *>(begin);
				for (int i = 0; i < 6; i++) *--top = nullptr;
				f->top = top;
			}
			f->state = Fiber::Ready;
			running = f, here = &f->place;
			gccl_switch(&worker_top, f->top);
			if (f->state == Fiber::Done) end(f);
			if (f->state == Fiber::Turning) turning.push_back(f);
			if (!turned || f->state != Fiber::Turning) moved = true;
		}
	}
	if (turning.empty() && alive > 0) fatal("%s: %u threads of a block wait for each other in barriers that others have left", launch->grid.kernel->name, alive);
	ready.swap(turning);
	return moved;
}

void *shared(u32 bytes) {
	if (bytes > sizeof running->block->memory) fatal("a block has no %u bytes of shared memory", bytes);
	return running->block->memory;
}

void turn() { give_way(Fiber::Turning); }

void meet(u32 barrier, u32 count, bool wait) {
	Fiber *f = running;
	Block *b = f->block;
	Barrier &r = b->barriers[barrier];
	r.arrived++;
	if (wait) r.waiting.push_back(f);
	if (r.arrived == (count ? count : b->alive)) b->release(r); // ourselves too
	if (wait) give_way(Fiber::Waiting);
}

bool any_in_block(bool x) {
	Fiber *f = running;
	f->block->barriers[0].any |= x;
	meet(0, 0, true);
	return f->result;
}

// All threads of a warp come to phase after phase; who reads one's values has come before anybody comes to the one after the next.
static Warp &exchange(u32 x, bool any, u32 &phase) {
	Fiber *f = running;
	Warp &w = f->block->warps[f->place.thread / 32];
	phase = f->phase++ & 1;
	if (w.arrived[phase] == 0) w.any[phase] = false;
	w.value[phase][f->place.thread % 32] = x;
	w.any[phase] |= any;
	w.waiting.push_back(f);
	if (++w.arrived[phase] == std::min<u32>(32, f->place.threads - f->place.thread / 32 * 32)) {
		w.arrived[phase] = 0;
		for (Fiber *o : w.waiting) f->block->ready.push_back(o);
		w.waiting.clear();
	}
	give_way(Fiber::Waiting);
	return w;
}
bool any_in_warp(bool x) {
	u32 phase;
	Warp &w = exchange(0, x, phase);
	return w.any[phase];
}
u32 shuffle(u32 x, u32 from) {
	u32 phase;
	Warp &w = exchange(x, false, phase);
	return w.value[phase][from & 31];
}

// All threads of a warp decide alike.
void stored() {
	Fiber *f = running;
	const u64 x = (reinterpret_cast<u64>(f->block) + f->place.thread / 32 * 977 + f->stores++ * 31) * 0x9e3779b97f4a7c15;
	if (x >> 60 != 0) return;
	any_in_warp(false);
	turn();
}

void wait_ahead() {
	Launch *l = running->block->launch;
	while (l->ahead && !l->ahead->done()) turn();
}
void let_behind() {
	running->block->free_behind(); // the first thread is enough: PTX speaks of blocks
}

void check(u64 p, u32 bytes) {
	const Launch *l = running->block->launch;
	if (bytes > 0 && p >= first_address && p + bytes <= last_address) {
		const unsigned char bit = 1 << l->device->ordinal;
		if (reach[(p - first_address) / granule] & reach[(p + bytes - 1 - first_address) / granule] & bit) return;
	}
	fatal("%s on device %d, block %u,%u, thread %u: %s address %#llx", l->grid.kernel->name, l->device->ordinal, here->block, here->lane, here->thread,
	      bytes ? "no access to" : "misaligned", p);
}

double share(const Device *, const Grid &g) {
	const u32 fit = std::max(1u, std::min(2048 / g.threads, g.kernel->blocks * g.kernel->threads / g.threads));
	return 1.0 / (fit * multiprocessors);
}

bool Launch::run() {
	bool moved = false;
	const double one = share(device, grid);
	const double room = 1 - device->taken + 1e-9;
	u32 start = grid.cooperative && next == 0 ? (one * total() <= room ? total() : 0) : std::min<u32>(total() - next, (u32)(room / one));
	for (; start > 0; start--, moved = true) {
		running.push_back(new Block(this, next++));
		device->taken += one;
		if (!grid.cooperative && running.back()->run() && running.back()->alive == 0) { // most end at once: their room is free again
			Block *b = running.back();
			running.pop_back();
			b->free_behind();
			delete b;
			device->taken -= one;
			ended++;
			if (next < total()) start++;
		}
		if (next == total()) break;
	}
	if (random_order() % 4 == 0) std::shuffle(running.begin(), running.end(), random_order);
	for (size_t i = 0; i < running.size();) {
		Block *b = running[i];
		if (random_order() % 8 == 0) { // late
			i++;
			moved = true;
			continue;
		}
		moved |= b->run();
		if (b->alive > 0) {
			i++;
			continue;
		}
		b->free_behind();
		delete b;
		device->taken -= one;
		ended++;
		running[i] = running.back();
		running.pop_back();
	}
	return moved;
}

Launch::~Launch() {
	if (!running.empty()) fatal("%s: a launch is forgotten while it runs", grid.kernel->name);
}

} // namespace emulator
