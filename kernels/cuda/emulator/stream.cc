// Streams, events and captures, and the worker that goes through them.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "gpu.h"

namespace emulator {

std::mutex lock;
std::condition_variable changed;
std::vector<Device *> devices;
int multiprocessors;
int version = 12080;
// The worker waits for it when the process ends, and its destructor would wait for the worker.
static std::condition_variable &wake = *new std::condition_variable;
static u64 news; // counts notify

static double now_ms() {
	return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void notify() {
	news++;
	wake.notify_all();
}

static void mark(const std::shared_ptr<Mark> &m) {
	m->done = true;
	m->ms = now_ms();
}

// Begins and ends nodes of a graph; true once all have ended.
static bool replay(Replay &r, bool &moved) {
	const auto &nodes = r.plan->nodes;
	bool all = true;
	for (size_t i = 0; i < nodes.size(); i++) {
		if (r.ended[i]) continue;
		const Op &op = nodes[i].op;
		if (!r.begun[i]) {
			if (!std::all_of(nodes[i].after.begin(), nodes[i].after.end(), [&](size_t k) { return r.ended[k]; })) {
				all = false;
				continue;
			}
			r.begun[i] = 1, moved = true;
			if (op.kind == Op::Kernel) r.launches[i] = std::make_shared<Launch>(Launch{op.device, op.grid, nullptr});
			if (op.kind == Op::Work) op.work();
		}
		if (op.kind != Op::Kernel || r.launches[i]->done()) {
			r.ended[i] = 1, moved = true;
			r.launches[i] = nullptr;
			i = (size_t)-1, all = true; // others may begin
			continue;
		}
		all = false;
	}
	return all;
}

bool Stream::advance() {
	bool moved = false;
	while (!queue.empty()) {
		Op &op = queue.front();
		switch (op.kind) {
		case Op::Kernel:
			if (!launch) launch = std::make_shared<Launch>(Launch{op.device, op.grid, nullptr}), moved = true;
			if (!behind && launch->lets_behind() && queue.size() > 1 && queue[1].kind == Op::Kernel && queue[1].grid.overlaps)
				behind = std::make_shared<Launch>(Launch{queue[1].device, queue[1].grid, launch}), moved = true;
			if (!launch->done()) return moved;
			launch = std::move(behind);
			behind = nullptr;
			break;
		case Op::Work: op.work(); break;
		case Op::Record: mark(op.mark); break;
		case Op::Wait:
			if (!op.mark->done) return moved;
			break;
		case Op::Until:
			if ((s32)(__atomic_load_n(op.word, __ATOMIC_ACQUIRE) - op.value) < 0) return moved;
			break;
		case Op::Graph:
			if (!replay_of) {
				const size_t n = op.plan->nodes.size();
				replay_of.reset(new Replay{op.plan, std::vector<std::shared_ptr<Launch>>(n), std::vector<char>(n), std::vector<char>(n)});
			}
			if (!replay(*replay_of, moved)) return moved;
			replay_of = nullptr;
			break;
		}
		queue.pop_front();
		moved = true;
		changed.notify_all();
	}
	return moved;
}

// Who holds it does the devices' work: the worker, or a thread of the host that waits for some, which saves two switches of threads.
static std::mutex driving;
static int idle; // turns in which nothing but waiting was done

// One turn of all streams and launches; false if there is nothing to do. Driving and the lock are held, the latter not while kernels run.
static bool turn_all(std::unique_lock<std::mutex> &held) {
	bool moved = false;
	std::vector<std::shared_ptr<Launch>> launches;
	std::vector<Stream *> streams;
	bool polls = false; // words that the host stores, of which nobody tells us
	for (Device *d : devices) {
		for (auto s = d->streams.begin(); s != d->streams.end();) {
			if ((*s)->destroyed && (*s)->idle()) {
				delete *s;
				s = d->streams.erase(s);
			} else streams.push_back(*s++);
		}
	}
	std::shuffle(streams.begin(), streams.end(), random_order);
	for (Stream *s : streams) {
		moved |= s->advance();
		polls |= !s->queue.empty() && s->queue.front().kind == Op::Until;
		if (s->launch) launches.push_back(s->launch);
		if (s->behind) launches.push_back(s->behind);
		if (s->replay_of)
			for (auto &l : s->replay_of->launches)
				if (l) launches.push_back(l);
	}
	const bool busy = moved || polls || !launches.empty();
	held.unlock();
	for (auto &l : launches) moved |= l->run();
	launches.clear();
	idle = moved ? 0 : idle + 1;
	if (!moved && idle > 100) std::this_thread::sleep_for(std::chrono::microseconds(std::min(idle, 2000))); // what runs waits for the host
	held.lock();
	return busy;
}

static void work() {
	for (;;) {
		std::unique_lock<std::mutex> driver(driving);
		std::unique_lock<std::mutex> held(lock);
		const u64 seen = news;
		if (turn_all(held)) continue;
		driver.unlock();
		wake.wait(held, [&] { return news != seen; });
	}
}

void wait(std::unique_lock<std::mutex> &held, const std::function<bool()> &done) {
	while (!done()) {
		std::unique_lock<std::mutex> driver(driving, std::try_to_lock);
		if (driver.owns_lock()) turn_all(held);
		else changed.wait_for(held, std::chrono::milliseconds(1));
	}
}

static int setting(const char *name, int usual, int least, int most) {
	const char *s = getenv(name);
	if (!s) return usual;
	const int n = atoi(s);
	if (n < least || n > most) fatal("%s=%s: want %d to %d", name, s, least, most);
	return n;
}

u64 next_id() {
	static u64 last;
	return ++last;
}

void start() {
	static std::once_flag once;
	std::call_once(once, [] {
		random_order.seed(setting("GCCL_EMULATOR_SEED", 1, 0, 1 << 30));
		multiprocessors = setting("GCCL_EMULATOR_MULTIPROCESSORS", 132, 1, 1024);
		const int n = setting("GCCL_EMULATOR_GPUS", 2, 1, 8);
		const u64 bytes = (u64)4 << 40; // never used again after a free, so that a stray pointer is found
		void *p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		void *bits = mmap(nullptr, bytes / granule, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED || bits == MAP_FAILED) fatal("no room for 4 TiB of addresses");
		first_address = reinterpret_cast<u64>(p), last_address = first_address + bytes;
		reach = static_cast<unsigned char *>(bits);
		for (int i = 0; i < n; i++) {
			Device *d = new Device{i};
			d->main = new Stream{d, next_id()};
			d->streams.insert(d->main);
			devices.push_back(d);
		}
		std::thread(work).detach();
	});
}

} // namespace emulator
