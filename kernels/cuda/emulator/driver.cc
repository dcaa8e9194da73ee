// The CUDA driver's functions that gccl calls, on the emulated devices. What has no meaning here is accepted.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <unordered_map>

#include "gpu.h"

using namespace emulator;

static std::map<std::string, const emulator::Kernel *> &catalogue() {
	static std::map<std::string, const emulator::Kernel *> all;
	return all;
}
emulator::Kernel::Kernel(const char *n, void (*r)(const void *), u32 b, u32 t, u32 k) : name(n), run(r), bytes(b), threads(t), blocks(k) {
	catalogue()[n] = this;
}

static thread_local Device *current;
typedef std::unique_lock<std::mutex> Hold;

static Device *device_of(int ordinal) { return ordinal >= 0 && ordinal < (int)devices.size() ? devices[ordinal] : nullptr; }
static Stream *stream_of(Stream *s) { return s ? s : current ? current->main : nullptr; }

// Devices and contexts: a context is its device.

static Result init(unsigned) {
	if (const char *s = getenv("GCCL_EMULATOR_INIT")) return static_cast<Result>(atoi(s)); // a machine whose driver does not start
	start();
	return OK;
}
static Result driver_version(int *v) { return *v = version, OK; }
static const char *text_of(Result r) {
	switch (r) {
	case INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
	case OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
	case INVALID_DEVICE: return "CUDA_ERROR_INVALID_DEVICE";
	case INVALID_CONTEXT: return "CUDA_ERROR_INVALID_CONTEXT";
	case INVALID_HANDLE: return "CUDA_ERROR_INVALID_HANDLE";
	case NOT_FOUND: return "CUDA_ERROR_NOT_FOUND";
	case NOT_READY: return "CUDA_ERROR_NOT_READY";
	case PEER_ALREADY_ENABLED: return "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED";
	case COOPERATIVE_TOO_LARGE: return "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE";
	case NOT_SUPPORTED: return "CUDA_ERROR_NOT_SUPPORTED";
	case UNKNOWN: return "CUDA_ERROR_UNKNOWN";
	case CAPTURE_UNSUPPORTED: return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
	case CAPTURE_INVALIDATED: return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
	case CAPTURE_MERGE: return "CUDA_ERROR_STREAM_CAPTURE_MERGE";
	case CAPTURE_UNJOINED: return "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
	case CAPTURE_ISOLATION: return "CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
	}
	return nullptr;
}
static Result error_name(Result r, const char **s) { return (*s = text_of(r)) ? OK : INVALID_VALUE; }
static Result error_string(Result r, const char **s) { return (*s = text_of(r) ? "an emulated GPU says so" : nullptr) ? OK : INVALID_VALUE; }
static Result device_count(int *n) { return *n = (int)devices.size(), OK; }
static Result device_get(int *d, int ordinal) { return device_of(ordinal) ? (*d = ordinal, OK) : INVALID_DEVICE; }
static Result device_name(char *name, int room, int) { return snprintf(name, room, "emulated GPU"), OK; }
// Which call from now on fails, with a made-up error; 0: none. A test sets it by asking for attribute FAIL + n, which no driver has, and
// learns what is left of the last n.
static std::atomic<int> fail_at;
enum { FAIL = 1 << 20 };
static Result device_attribute(int *v, int attribute, int) {
	if (attribute >= FAIL) return *v = fail_at.exchange(attribute - FAIL), OK;
	static const std::map<int, int> known{{16, multiprocessors}, {75, 9}, {76, 0}, {103, 1}, {110, 1}, {118, 0}, {124, 1}, {128, 0}};
	auto i = known.find(attribute);
	if (i == known.end()) return INVALID_VALUE;
	return *v = i->second, OK;
}
static Result device_uuid(unsigned char *id, int d) { return memset(id, 0xe0 + d, 16), OK; }
static Result can_access_peer(int *can, int, int) { return *can = 1, OK; }
static Result p2p_attribute(int *v, int, int, int) { return *v = 1, OK; }
static Result primary_retain(Device **ctx, int d) { return *ctx = device_of(d), OK; }
static Result primary_release(int) { return OK; }
static Result ctx_get(Device **ctx) { return *ctx = current, OK; }
static Result ctx_set(Device *ctx) { return current = ctx, OK; }
static Result enable_peer(Device *peer, unsigned) {
	Hold h(lock);
	if (!current->peers.insert(peer).second) return PEER_ALREADY_ENABLED;
	for (auto &[at, r] : ranges)
		if (r.device == peer->ordinal && r.mapped) reach[(at - first_address) / granule] |= 0, set_reach(at, r.bytes, reach[(at - first_address) / granule] | 1 << current->ordinal);
	return OK;
}
static Result mem_info(size_t *available, size_t *total) {
	Hold h(lock);
	return *available = total_memory - current->used, *total = total_memory, OK;
}

static bool idle(const Device *d) {
	return std::all_of(d->streams.begin(), d->streams.end(), [](Stream *s) { return s->idle(); });
}
static Result ctx_synchronize() {
	Hold h(lock);
	for (Stream *s : current->streams)
		if (s->capture) return CAPTURE_UNSUPPORTED;
	Device *d = current;
	wait(h, [d] { return idle(d); });
	return OK;
}

// Modules: the text says which kernels there are, and their twins are here.

static Result module_load(std::string **m, const void *image, unsigned, int *, void **) { return *m = new std::string(static_cast<const char *>(image)), OK; }
static Result module_unload(std::string *m) { return delete m, OK; }
static Result module_function(const emulator::Kernel **f, std::string *m, const char *name) {
	auto i = catalogue().find(name);
	if (i == catalogue().end() || m->find(".entry " + i->first + "(") == std::string::npos) return NOT_FOUND;
	return *f = i->second, OK;
}
static Result function_attribute(int *v, int attribute, const emulator::Kernel *) { return *v = attribute == 4 ? 64 : 0, OK; }
static Result occupancy(int *blocks, const emulator::Kernel *k, int threads, size_t) {
	Grid g{k, {}, 1, 1, (u32)threads, false, false};
	return *blocks = (int)(1 / share(nullptr, g) / multiprocessors + 0.5), OK;
}

// Memory. A handle is a file in memory.

struct Properties {
	int type, handles, where, id;
};
struct Access {
	int where, id, flags;
};
struct Memory {
	int fd, device;
	u64 bytes;
	int uses;
};
static std::map<u64, Memory *> mapped; // by address

static Result granularity(size_t *g, const Properties *, int) { return *g = 2 << 20, OK; }
static Result address_reserve(u64 *p, size_t bytes, size_t, u64, unsigned long long) {
	Hold h(lock);
	return *p = reserve(bytes), OK;
}
static Result address_free(u64, size_t) { return OK; }
static Result mem_create(Memory **m, size_t bytes, const Properties *p, unsigned long long) {
	Hold h(lock);
	Device *d = device_of(p->id);
	if (bytes % (2 << 20) != 0) return INVALID_VALUE;
	if (d->used + bytes > total_memory) return OUT_OF_MEMORY;
	d->used += bytes;
	*m = new Memory{memfd_create("emulated GPU", MFD_CLOEXEC), p->id, bytes, 1};
	if ((*m)->fd < 0 || ftruncate((*m)->fd, (off_t)bytes) != 0) fatal("no memory for %zu bytes", bytes);
	return OK;
}
static void drop(Memory *m) {
	if (--m->uses > 0) return;
	close(m->fd);
	if (m->device >= 0) devices[m->device]->used -= m->bytes;
	delete m;
}
static Result mem_release(Memory *m) {
	Hold h(lock);
	return drop(m), OK;
}
static Result mem_map(u64 p, size_t bytes, size_t, Memory *m, unsigned long long) {
	Hold h(lock);
	if (mmap(reinterpret_cast<void *>(p), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m->fd, 0) == MAP_FAILED) return OUT_OF_MEMORY;
	m->uses++;
	mapped[p] = m;
	ranges[p] = Range{p, bytes, m->device, false};
	return OK;
}
static void unmap(u64 p, size_t bytes) {
	set_reach(p, bytes, 0);
	mmap(reinterpret_cast<void *>(p), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	ranges.erase(p);
}
static Result mem_unmap(u64 p, size_t bytes) {
	Hold h(lock);
	unmap(p, bytes);
	drop(mapped[p]);
	mapped.erase(p);
	return OK;
}
static Result set_access(u64 p, size_t bytes, const Access *a, size_t n) {
	Hold h(lock);
	for (; n > 0; n--, a++) set_reach(p, bytes, reach[(p - first_address) / granule] | 1 << a->id);
	return OK;
}
static Result export_handle(void *out, Memory *m, int kind, unsigned long long) {
	if (kind != 1) return NOT_SUPPORTED;
	Hold h(lock);
	among_processes = true;
	return *static_cast<int *>(out) = dup(m->fd), OK;
}
static Result import_handle(Memory **m, void *handle, int kind) {
	if (kind != 1) return NOT_SUPPORTED;
	const int fd = dup((int)reinterpret_cast<intptr_t>(handle));
	if (fd < 0) return INVALID_VALUE;
	const off_t bytes = lseek(fd, 0, SEEK_END);
	Hold h(lock);
	among_processes = true;
	return *m = new Memory{fd, current->ordinal, 0, 1}, bytes > 0 ? OK : INVALID_VALUE;
}
static Result range_handle(int *out, u64 p, size_t bytes, int kind, unsigned long long) { // a file in memory, which is a DMA-BUF to no kernel
	Hold h(lock);
	const Range *r = range_of(p);
	if (!r || r->device < 0 || bytes == 0 || p % 4096 != 0 || bytes % 4096 != 0) return INVALID_VALUE;
	auto m = mapped.find(r->at);
	if (kind != 1 || m == mapped.end()) return NOT_SUPPORTED;
	if (bytes > r->at + r->bytes - p) return INVALID_VALUE;
	return *out = fcntl(m->second->fd, F_DUPFD_CLOEXEC, 0), OK;
}
static Result flush_writes(int target, int scope) { return target == 0 && scope == 100 ? OK : INVALID_VALUE; }
static Result pointer_attribute(void *out, int attribute, u64 p) {
	Hold h(lock);
	const Range *r = range_of(p);
	if (!r) return INVALID_VALUE;
	switch (attribute) {
	case 1: return *static_cast<Device **>(out) = device_of(r->device), OK;
	case 9: return *static_cast<int *>(out) = r->device, OK;
	case 11: return *static_cast<u64 *>(out) = r->at, OK;
	case 12: return *static_cast<size_t *>(out) = r->bytes, OK;
	case 15: return *static_cast<int *>(out) = 1, OK;
	}
	fatal("what is pointer attribute %d?", attribute);
}
static u64 allocate(size_t bytes, int device, unsigned char bits) {
	const u64 p = reserve(bytes);
	if (mmap(reinterpret_cast<void *>(p), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		fatal("no memory for %zu bytes", bytes);
	ranges[p] = Range{p, bytes, device, true};
	set_reach(p, bytes, bits);
	return p;
}
static Result mem_alloc(u64 *p, size_t bytes) {
	Hold h(lock);
	if (bytes == 0) return INVALID_VALUE;
	if (current->used + bytes > total_memory) return OUT_OF_MEMORY;
	current->used += bytes;
	unsigned char bits = 1 << current->ordinal;
	for (Device *d : devices)
		if (d->peers.count(current)) bits |= 1 << d->ordinal;
	return *p = allocate(bytes, current->ordinal, bits), OK;
}
static Result mem_free(u64 p) { // waits for all that is queued, as the driver does
	Hold h(lock);
	const Range *r = range_of(p);
	if (!r || r->at != p || r->device < 0) return INVALID_VALUE;
	Device *d = devices[r->device];
	wait(h, [d] { return idle(d); });
	d->used -= r->bytes;
	unmap(p, r->bytes);
	return OK;
}
static Result host_alloc(void **p, size_t bytes, unsigned) {
	Hold h(lock);
	return *p = reinterpret_cast<void *>(allocate(bytes, -1, 0xff)), OK;
}
static Result host_pointer(u64 *p, void *host, unsigned) { return *p = reinterpret_cast<u64>(host), OK; }
static Result host_free(void *p) {
	Hold h(lock);
	for (Device *d : devices) wait(h, [d] { return idle(d); });
	unmap(reinterpret_cast<u64>(p), range_of(reinterpret_cast<u64>(p))->bytes);
	return OK;
}

static Result host_register(void *p, size_t bytes, unsigned) {
	Hold h(lock);
	const u64 at = reinterpret_cast<u64>(p);
	auto next = ranges.upper_bound(at);
	if (bytes == 0 || at % 4096 != 0 || range_of(at) || (next != ranges.end() && next->first < at + bytes)) return INVALID_VALUE;
	ranges[at] = Range{at, bytes, -1, false};
	return OK;
}
static Result host_unregister(void *p) {
	Hold h(lock);
	const Range *r = range_of(reinterpret_cast<u64>(p));
	if (!r || r->at != reinterpret_cast<u64>(p) || r->device >= 0) return INVALID_VALUE;
	ranges.erase(r->at);
	return OK;
}

// Streams.

// Adds work to a stream, or a node to the graph that captures it.
static Result add(Stream *s, Op op) {
	if (!s || s->destroyed) return INVALID_HANDLE;
	op.device = s->device;
	if (s->capture) {
		if (s->capture->broken) return CAPTURE_INVALIDATED;
		Plan &plan = *s->capture->plan;
		plan.nodes.push_back({std::move(op), s->last});
		s->last = {plan.nodes.size() - 1};
		return OK;
	}
	s->queue.push_back(std::move(op));
	notify();
	return OK;
}
static Result work(Stream *s, std::function<void()> f) {
	Op op{Op::Work};
	op.work = std::move(f);
	return add(s, std::move(op));
}
static Result wait_idle(Hold &h, Stream *s) {
	if (!s) return INVALID_HANDLE;
	if (s->capture) return s->capture->broken = true, CAPTURE_UNSUPPORTED;
	wait(h, [s] { return s->idle(); });
	return OK;
}
static Result memcpy_async(u64 dst, u64 src, size_t bytes, Stream *on) {
	Hold h(lock);
	Stream *s = stream_of(on);
	void *d = reinterpret_cast<void *>(dst);
	if (range_of(src) || (s && s->capture)) {
		Result r = work(s, [=] { memcpy(d, reinterpret_cast<const void *>(src), bytes); });
		return r == OK && !s->capture && !range_of(dst) ? wait_idle(h, s) : r; // to the host's own memory it is done when the call returns
	}
	// From the host's own memory it is read before the call returns.
	auto copy = std::make_shared<std::vector<char>>(reinterpret_cast<const char *>(src), reinterpret_cast<const char *>(src) + bytes);
	return work(s, [=] { memcpy(d, copy->data(), copy->size()); });
}
struct Side {
	size_t x, y;
	int type;
	const void *host;
	u64 at;
	void *array;
	size_t pitch;
};
struct Rows {
	Side src, dst;
	size_t width, height;
};
static Result copy_rows(const Rows *p, Stream *on) {
	const Rows r = *p;
	if (r.src.type != 4 || r.dst.type != 4 || r.src.x || r.src.y || r.dst.x || r.dst.y) fatal("only copies of rows by address are emulated");
	Hold h(lock);
	if (r.width == 0 || r.height == 0 || r.src.pitch < r.width || r.dst.pitch < r.width || r.src.pitch > 0x7fffffff || r.dst.pitch > 0x7fffffff) return INVALID_VALUE;
	if (!range_of(r.src.at) || !range_of(r.dst.at)) fatal("only copies of rows between memory that the driver knows are emulated");
	return work(stream_of(on), [=] {
		for (size_t y = 0; y < r.height; y++)
			memcpy(reinterpret_cast<void *>(r.dst.at + y * r.dst.pitch), reinterpret_cast<const void *>(r.src.at + y * r.src.pitch), r.width);
	});
}
static Result memset_async(u64 dst, unsigned char value, size_t bytes, Stream *on) {
	Hold h(lock);
	return work(stream_of(on), [=] { memset(reinterpret_cast<void *>(dst), value, bytes); });
}
static Result priorities(int *least, int *greatest) { return *least = 0, *greatest = -5, OK; }
static std::vector<Stream *> spare; // handles of streams that were destroyed, of which the next ones get the last
static Result stream_create(Stream **s, unsigned, int) {
	Hold h(lock);
	if (spare.empty()) *s = new Stream;
	else *s = spare.back(), spare.pop_back();
	**s = Stream{current, next_id()};
	current->streams.insert(*s);
	return OK;
}
static Result stream_destroy(Stream *s) { // its work goes on without the handle
	Hold h(lock);
	if (s->destroyed) return INVALID_HANDLE;
	s->destroyed = true;
	Stream *rest = new Stream(std::move(*s));
	rest->device->streams.erase(s), rest->device->streams.insert(rest);
	spare.push_back(s);
	notify();
	return OK;
}
static Result stream_id(Stream *on, unsigned long long *id) {
	Hold h(lock);
	Stream *s = stream_of(on);
	if (!s || s->destroyed) return INVALID_HANDLE;
	return *id = s->id, OK;
}
static Result stream_synchronize(Stream *on) {
	Hold h(lock);
	return wait_idle(h, stream_of(on));
}
static Result stream_query(Stream *on) {
	Hold h(lock);
	return stream_of(on)->idle() ? OK : NOT_READY;
}
static Result stream_wait(Stream *on, Event *e, unsigned) {
	Hold h(lock);
	Stream *s = stream_of(on);
	if (!s) return INVALID_HANDLE;
	if (e->capture) {
		if (s->capture && s->capture != e->capture) return s->capture->broken = e->capture->broken = true, CAPTURE_MERGE;
		if (!s->capture) {
			if (s == s->device->main) return CAPTURE_UNSUPPORTED;
			s->capture = e->capture, s->last.clear();
		}
		s->last.insert(e->nodes.begin(), e->nodes.end());
		return OK;
	}
	if (s->capture) return s->capture->broken = true, CAPTURE_ISOLATION;
	if (!e->mark) return OK;
	Op op{Op::Wait};
	op.mark = e->mark;
	return add(s, std::move(op));
}
static Result is_capturing(Stream *on, int *status) {
	Hold h(lock);
	Stream *s = stream_of(on);
	return *status = !s->capture ? 0 : s->capture->broken ? 2 : 1, OK;
}
static Result begin_capture(Stream *s, int) {
	Hold h(lock);
	if (!s || s->capture) return INVALID_VALUE;
	s->capture = std::make_shared<Capture>();
	s->capture->origin = s;
	s->last.clear();
	return OK;
}
static Result end_capture(Stream *s, std::shared_ptr<Plan> **g) {
	Hold h(lock);
	*g = nullptr;
	auto c = s->capture;
	if (!c || c->origin != s) return INVALID_VALUE;
	bool joined = true;
	std::set<size_t> seen = s->last; // what the stream has come behind
	std::vector<size_t> list(seen.begin(), seen.end());
	while (!list.empty()) {
		const size_t k = list.back();
		list.pop_back();
		for (size_t b : c->plan->nodes[k].after)
			if (seen.insert(b).second) list.push_back(b);
	}
	for (Device *d : devices)
		for (Stream *o : d->streams)
			if (o->capture == c) {
				for (size_t k : o->last) joined &= seen.count(k) > 0;
				o->capture = nullptr, o->last.clear();
			}
	if (c->broken) return CAPTURE_INVALIDATED;
	if (!joined) return CAPTURE_UNJOINED;
	*g = new std::shared_ptr<Plan>(c->plan);
	return OK;
}
static Result write_value(Stream *on, u64 p, u32 value, unsigned) {
	Hold h(lock);
	return work(stream_of(on), [=] { __atomic_store_n(reinterpret_cast<u32 *>(p), value, __ATOMIC_RELEASE); });
}
static Result wait_value(Stream *on, u64 p, u32 value, unsigned flags) {
	Hold h(lock);
	Stream *s = stream_of(on);
	if (flags != 0 || (s && s->capture)) fatal("a wait for a value in this way, or in a capture, is not emulated");
	Op op{Op::Until};
	op.word = reinterpret_cast<const u32 *>(p), op.value = value;
	return add(s, std::move(op));
}
static Result exchange_mode(int *mode) {
	static thread_local int mine;
	return std::swap(mine, *mode), OK;
}
static Result event_create(Event **e, unsigned) { return *e = new Event{current, nullptr, nullptr, {}}, OK; }
static Result event_destroy(Event *e) {
	Hold h(lock);
	return delete e, OK;
}
static Result event_record(Event *e, Stream *on) {
	Hold h(lock);
	Stream *s = stream_of(on);
	if (!s || s->device != e->device) return INVALID_HANDLE;
	e->mark = nullptr, e->capture = s->capture, e->nodes = s->last;
	if (s->capture) return s->capture->broken ? CAPTURE_INVALIDATED : OK;
	Op op{Op::Record};
	op.mark = e->mark = std::make_shared<Mark>();
	return add(s, std::move(op));
}
static Result event_query(Event *e) {
	Hold h(lock);
	if (e->capture) return INVALID_VALUE;
	return !e->mark || e->mark->done ? OK : NOT_READY;
}
static Result event_synchronize(Event *e) {
	Hold h(lock);
	if (e->capture) return INVALID_VALUE;
	auto m = e->mark;
	wait(h, [&] { return !m || m->done; });
	return OK;
}
static Result elapsed(float *ms, Event *from, Event *to) {
	Hold h(lock);
	if (!from->mark || !to->mark) return INVALID_HANDLE;
	if (!from->mark->done || !to->mark->done) return NOT_READY;
	return *ms = (float)(to->mark->ms - from->mark->ms), OK;
}
typedef std::shared_ptr<Plan> Exec;
static Result instantiate(Exec **e, Exec *g, unsigned long long) { return *e = new Exec(*g), OK; }
static Result graph_nodes(Exec *g, size_t *nodes, size_t *n) { // a node is one more than its number
	for (size_t i = 0; i < *n && i < (*g)->nodes.size(); i++) nodes[i] = i + 1;
	return *n = (*g)->nodes.size(), OK;
}
static Result graph_upload(Exec *, Stream *on) { return stream_of(on) ? OK : INVALID_HANDLE; }
static Result destroy_plan(Exec *g) { return delete g, OK; }
static Result graph_launch(Exec *e, Stream *on) {
	Hold h(lock);
	Stream *s = stream_of(on);
	if (s && s->capture) fatal("a graph's launch in a capture is not emulated");
	Op op{Op::Graph};
	op.plan = *e;
	return add(s, std::move(op));
}

struct NodeParams {
	const emulator::Kernel *kernel;
	unsigned grid[3], block[3], shared;
	void **args, **extra;
};
static Result graph_set(Exec *e, size_t node, const NodeParams *p) { // what was launched before goes on as it was
	Hold h(lock);
	if (node == 0 || node > (*e)->nodes.size() || (*e)->nodes[node - 1].op.kind != Op::Kernel || p->extra) return INVALID_VALUE;
	if (p->block[0] == 0 || p->block[0] > p->kernel->threads || p->grid[2] != 1) return INVALID_VALUE;
	auto plan = std::make_shared<Plan>(**e);
	Grid &g = plan->nodes[node - 1].op.grid;
	const char *args = static_cast<const char *>(p->args[0]);
	g = Grid{p->kernel, std::vector<char>(args, args + p->kernel->bytes), p->grid[0], p->grid[1], p->block[0], g.cooperative, g.overlaps};
	if (g.cooperative && share(current, g) * p->grid[0] * p->grid[1] > 1 + 1e-9) return COOPERATIVE_TOO_LARGE;
	return *e = plan, OK;
}

static Result enqueue(const emulator::Kernel *k, u32 columns, u32 rows, u32 depth, u32 threads, Stream *on, void **args, bool cooperative, bool overlaps) {
	Hold h(lock);
	Stream *s = stream_of(on);
	if (!s || s->device != current) return INVALID_HANDLE;
	if (columns == 0 || rows == 0 || depth != 1 || threads == 0 || threads > k->threads) return INVALID_VALUE;
	const char *p = static_cast<const char *>(args[0]);
	Op op{Op::Kernel};
	op.grid = Grid{k, std::vector<char>(p, p + k->bytes), columns, rows, threads, cooperative, overlaps};
	if (cooperative && share(current, op.grid) * columns * rows > 1 + 1e-9) return COOPERATIVE_TOO_LARGE;
	return add(s, std::move(op));
}
static Result launch(const emulator::Kernel *k, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned, unsigned, Stream *s, void **args, void **) {
	return enqueue(k, x, y, z, threads, s, args, false, false);
}
static Result launch_cooperative(const emulator::Kernel *k, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned, unsigned, Stream *s, void **args) {
	return enqueue(k, x, y, z, threads, s, args, true, false);
}
struct Attribute {
	int id, pad;
	union {
		char room[64];
		int value;
	};
};
struct Config {
	unsigned grid[3], block[3], shared;
	Stream *stream;
	Attribute *attributes;
	unsigned count;
};
static Result launch_ex(const Config *c, const emulator::Kernel *k, void **args, void **) {
	bool cooperative = false, overlaps = false;
	for (unsigned i = 0; i < c->count; i++) {
		if (c->attributes[i].id == 2) cooperative = c->attributes[i].value;
		if (c->attributes[i].id == 6) overlaps = c->attributes[i].value;
	}
	return enqueue(k, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->stream, args, cooperative, overlaps);
}

// Every function but those that give back or only look may fail.
template <auto F> struct Failing;
template <class... A, Result (*F)(A...)> struct Failing<F> {
	static Result call(A... a) {
		int n = fail_at;
		while (n > 0 && !fail_at.compare_exchange_weak(n, n - 1)) {}
		return n == 1 ? UNKNOWN : F(a...);
	}
};
#define SAFE(name, function) {"cu" #name, reinterpret_cast<void *>(function)}
#define ENTRY(name, function) SAFE(name, (Failing<function>::call))
extern "C" __attribute__((visibility("default"))) Result cuGetProcAddress_v2(const char *name, void **out, int since, u64, int *) {
	static const std::unordered_map<std::string, void *> all{
		ENTRY(Init, init), SAFE(DriverGetVersion, driver_version), SAFE(GetErrorName, error_name), SAFE(GetErrorString, error_string),
		ENTRY(DeviceGetCount, device_count), SAFE(DeviceGet, device_get), SAFE(DeviceGetName, device_name), SAFE(DeviceGetAttribute, device_attribute),
		ENTRY(DeviceGetUuid, device_uuid), ENTRY(DeviceCanAccessPeer, can_access_peer), ENTRY(DeviceGetP2PAttribute, p2p_attribute),
		ENTRY(DevicePrimaryCtxRetain, primary_retain), SAFE(DevicePrimaryCtxRelease, primary_release), SAFE(CtxGetCurrent, ctx_get),
		SAFE(CtxSetCurrent, ctx_set), SAFE(CtxSynchronize, ctx_synchronize), ENTRY(CtxEnablePeerAccess, enable_peer), SAFE(MemGetInfo, mem_info),
		ENTRY(ModuleLoadDataEx, module_load), SAFE(ModuleUnload, module_unload), ENTRY(ModuleGetFunction, module_function),
		ENTRY(FuncGetAttribute, function_attribute), ENTRY(OccupancyMaxActiveBlocksPerMultiprocessor, occupancy),
		ENTRY(MemGetAllocationGranularity, granularity), ENTRY(MemAddressReserve, address_reserve), SAFE(MemAddressFree, address_free),
		ENTRY(MemCreate, mem_create), SAFE(MemRelease, mem_release), ENTRY(MemMap, mem_map), SAFE(MemUnmap, mem_unmap), ENTRY(MemSetAccess, set_access),
		ENTRY(MemExportToShareableHandle, export_handle), ENTRY(MemImportFromShareableHandle, import_handle), ENTRY(PointerGetAttribute, pointer_attribute),
		ENTRY(MemGetHandleForAddressRange, range_handle), ENTRY(FlushGPUDirectRDMAWrites, flush_writes),
		ENTRY(MemAlloc, mem_alloc), SAFE(MemFree, mem_free), ENTRY(MemHostAlloc, host_alloc), ENTRY(MemHostGetDevicePointer, host_pointer),
		SAFE(MemFreeHost, host_free), ENTRY(MemHostRegister, host_register), SAFE(MemHostUnregister, host_unregister), ENTRY(MemcpyAsync, memcpy_async), ENTRY(Memcpy2DAsync, copy_rows), ENTRY(MemsetD8Async, memset_async), ENTRY(CtxGetStreamPriorityRange, priorities),
		ENTRY(StreamCreateWithPriority, stream_create), SAFE(StreamDestroy, stream_destroy), SAFE(StreamGetId, stream_id), ENTRY(StreamSynchronize, stream_synchronize),
		ENTRY(StreamQuery, stream_query), ENTRY(StreamWaitEvent, stream_wait), ENTRY(StreamIsCapturing, is_capturing), ENTRY(StreamBeginCapture, begin_capture),
		SAFE(StreamEndCapture, end_capture), ENTRY(StreamWriteValue32, write_value), ENTRY(StreamWaitValue32, wait_value), SAFE(ThreadExchangeStreamCaptureMode, exchange_mode),
		ENTRY(EventCreate, event_create), SAFE(EventDestroy, event_destroy), ENTRY(EventRecord, event_record), ENTRY(EventSynchronize, event_synchronize),
		ENTRY(EventQuery, event_query), ENTRY(EventElapsedTime, elapsed), ENTRY(GraphInstantiateWithFlags, instantiate), SAFE(GraphDestroy, destroy_plan),
		ENTRY(GraphLaunch, graph_launch), ENTRY(GraphGetNodes, graph_nodes), ENTRY(GraphUpload, graph_upload),
		ENTRY(GraphExecKernelNodeSetParams, graph_set), SAFE(GraphExecDestroy, destroy_plan), ENTRY(LaunchKernel, launch), ENTRY(LaunchKernelEx, launch_ex),
		ENTRY(LaunchCooperativeKernel, launch_cooperative),
	};
	if (const char *s = getenv("GCCL_EMULATOR_DRIVER")) version = atoi(s);
	auto i = all.find(name);
	*out = i == all.end() || since > version ? nullptr : i->second;
	return *out ? OK : NOT_FOUND;
}
