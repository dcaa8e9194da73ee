// Memory of the emulated devices.
#include <sys/mman.h>

#include "gpu.h"

namespace emulator {

bool among_processes;
u64 first_address, last_address;
unsigned char *reach;
std::map<u64, Range> ranges;

Range *range_of(u64 p) {
	auto i = ranges.upper_bound(p);
	if (i == ranges.begin()) return nullptr;
	Range &r = (--i)->second;
	return p < r.at + r.bytes ? &r : nullptr;
}

// Addresses for so many bytes, with a granule behind them that nobody gets.
u64 reserve(u64 bytes) {
	static u64 used;
	const u64 align = (u64)2 << 20, whole = (bytes + align - 1) / align * align + align;
	if (used + whole > last_address - first_address) fatal("the addresses are used up");
	const u64 at = (first_address + used + align - 1) / align * align;
	used = at + whole - first_address;
	return at;
}

void set_reach(u64 at, u64 bytes, unsigned char bits) {
	for (u64 p = at; p < at + bytes; p += granule) reach[(p - first_address) / granule] = bits;
}

} // namespace emulator
