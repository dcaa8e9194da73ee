// The emulated GPUs: memory, kernels as blocks of fibers, streams. One operating-system thread at a time does all their work.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "host.h"

namespace emulator {

typedef int Result; // CUresult
enum : Result {
	OK = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_FOUND = 500,
	NOT_READY = 600,
	PEER_ALREADY_ENABLED = 704,
	COOPERATIVE_TOO_LARGE = 720,
	NOT_SUPPORTED = 801,
	UNKNOWN = 999,
	CAPTURE_UNSUPPORTED = 900,
	CAPTURE_INVALIDATED = 901,
	CAPTURE_MERGE = 902,
	CAPTURE_UNJOINED = 904,
	CAPTURE_ISOLATION = 905,
};

// Seeded by GCCL_EMULATOR_SEED: in which order blocks and threads run.
extern std::mt19937_64 random_order;
void fatal(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

// A launch that has begun. The worker's alone.
struct Launch;
struct Block;

struct Grid {
	const Kernel *kernel;
	std::vector<char> args;
	u32 columns, rows, threads;
	bool cooperative, overlaps;
};

struct Device;

// A launch is a grid on a device, from its first block to its last.
struct Launch {
	Device *device;
	Grid grid;
	std::shared_ptr<Launch> ahead; // that it may overlap with; null: it has ended
	u32 next = 0;                  // block to be started
	u32 ended = 0, freed = 0;      // blocks; those that let the launch behind begin, or have ended
	std::vector<Block *> running;
	u32 total() const { return grid.columns * grid.rows; }
	bool done() const { return ended == total(); }
	bool lets_behind() const { return freed == total(); }
	// Runs what can run; false if nothing but waiting was done.
	bool run();
	~Launch();
};

// What part of a device a block takes.
double share(const Device *d, const Grid &g);

// An event's last recording.
struct Mark {
	bool done = false;
	double ms = 0;
};

// Work of a stream, or a node of a graph.
struct Op {
	enum { Kernel, Work, Graph, Record, Wait, Until } kind;
	Grid grid;                       // Kernel
	std::function<void()> work;      // Work: done at once
	std::shared_ptr<Mark> mark;      // Record, Wait
	std::shared_ptr<struct Plan> plan; // Graph
	const u32 *word = nullptr;         // Until: it is at least
	u32 value = 0;                     // … this
	Device *device = nullptr;
};

// A captured graph.
struct Plan {
	struct Node {
		Op op;
		std::set<size_t> after;
	};
	std::vector<Node> nodes;
};

// A graph's launch that has begun.
struct Replay {
	std::shared_ptr<Plan> plan;
	std::vector<std::shared_ptr<Launch>> launches;
	std::vector<char> begun, ended;
};

// A capture that some streams take part in.
struct Capture {
	std::shared_ptr<Plan> plan = std::make_shared<Plan>();
	struct Stream *origin;
	bool broken = false;
};

struct Stream {
	Device *device;
	u64 id = 0; // that no other one has
	std::deque<Op> queue;
	std::shared_ptr<Launch> launch, behind; // of the first op, and of the second if it overlaps
	std::unique_ptr<Replay> replay_of;   // the first op, a graph
	std::shared_ptr<Capture> capture;
	std::set<size_t> last; // nodes that the next one comes after
	bool destroyed = false;
	bool idle() const { return queue.empty(); }
	bool advance(); // begins and ends what it can; the lock is held
};

struct Event {
	Device *device;
	std::shared_ptr<Mark> mark;
	std::shared_ptr<Capture> capture; // recorded in it, after these nodes
	std::set<size_t> nodes;
};

struct Device {
	int ordinal;
	size_t used = 0;        // bytes of memory
	double taken = 0;       // by running blocks
	std::set<Device *> peers;
	Stream *main;           // the default stream
	std::set<Stream *> streams;
};

extern int multiprocessors; // of each device
extern int version;         // of CUDA that the driver is for: it has no functions of later ones
const size_t total_memory = (size_t)8 << 30;

// The lock is held around everything but the running of kernels.
extern std::mutex lock;
extern std::condition_variable changed; // something ended
extern std::vector<Device *> devices;
void start();  // the devices and the worker, once
u64 next_id(); // of a stream
void notify(); // the worker: there is more to do
void wait(std::unique_lock<std::mutex> &held, const std::function<bool()> &done); // until it is done, which the lock is held for

// Memory. Kernels reach what lies between first and last alone, each granule by the devices in its bits.
const u64 granule = 64 << 10;
extern u64 first_address, last_address;
extern unsigned char *reach; // of each granule: a bit a device
struct Range {
	u64 at, bytes;
	int device; // -1: of the host
	bool mapped;
};
extern std::map<u64, Range> ranges; // by address
Range *range_of(u64 p);
u64 reserve(u64 bytes);
void set_reach(u64 at, u64 bytes, unsigned char bits);

} // namespace emulator
