//go:build linux && cgo

#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// What the driver offers: name, the CUDA version whose ABI is meant, whether gccl can do without, and its arguments.
#define FUNCTIONS(F) \
	F(Init, 2000, 1, (unsigned)) \
	F(DriverGetVersion, 2020, 1, (int *)) \
	F(GetErrorName, 6000, 1, (cu_result, const char **)) \
	F(GetErrorString, 6000, 1, (cu_result, const char **)) \
	F(DeviceGetCount, 2000, 1, (int *)) \
	F(DeviceGet, 2000, 1, (int *, int)) \
	F(DeviceGetName, 2000, 1, (char *, int, int)) \
	F(DeviceGetAttribute, 2000, 1, (int *, int, int)) \
	F(DeviceGetUuid, 11040, 1, (unsigned char *, int)) \
	F(DeviceCanAccessPeer, 4000, 1, (int *, int, int)) \
	F(DeviceGetP2PAttribute, 8000, 1, (int *, int, int, int)) \
	F(DevicePrimaryCtxRetain, 7000, 1, (cu_ctx *, int)) \
	F(DevicePrimaryCtxRelease, 11000, 1, (int)) \
	F(CtxGetCurrent, 4000, 1, (cu_ctx *)) \
	F(CtxSetCurrent, 4000, 1, (cu_ctx)) \
	F(CtxSynchronize, 2000, 1, (void)) \
	F(CtxEnablePeerAccess, 4000, 1, (cu_ctx, unsigned)) \
	F(MemGetInfo, 3020, 1, (size_t *, size_t *)) \
	F(ModuleLoadDataEx, 2010, 1, (cu_module *, const void *, unsigned, int *, void **)) \
	F(ModuleUnload, 2000, 1, (cu_module)) \
	F(ModuleGetFunction, 2000, 1, (cu_fn *, cu_module, const char *)) \
	F(FuncGetAttribute, 2020, 1, (int *, int, cu_fn)) \
	F(OccupancyMaxActiveBlocksPerMultiprocessor, 6050, 1, (int *, cu_fn, int, size_t)) \
	F(MemGetAllocationGranularity, 10020, 1, (size_t *, const struct properties *, int)) \
	F(MemAddressReserve, 10020, 1, (cu_ptr *, size_t, size_t, cu_ptr, unsigned long long)) \
	F(MemAddressFree, 10020, 1, (cu_ptr, size_t)) \
	F(MemCreate, 10020, 1, (cu_handle *, size_t, const struct properties *, unsigned long long)) \
	F(MemRelease, 10020, 1, (cu_handle)) \
	F(MemMap, 10020, 1, (cu_ptr, size_t, size_t, cu_handle, unsigned long long)) \
	F(MemUnmap, 10020, 1, (cu_ptr, size_t)) \
	F(MemSetAccess, 10020, 1, (cu_ptr, size_t, const struct access *, size_t)) \
	F(MemExportToShareableHandle, 10020, 1, (void *, cu_handle, int, unsigned long long)) \
	F(MemImportFromShareableHandle, 10020, 1, (cu_handle *, void *, int)) \
	F(MemGetHandleForAddressRange, 11070, 0, (void *, cu_ptr, size_t, int, unsigned long long)) \
	F(FlushGPUDirectRDMAWrites, 11030, 0, (int, int)) \
	F(PointerGetAttribute, 4000, 1, (void *, int, cu_ptr)) \
	F(MemAlloc, 3020, 1, (cu_ptr *, size_t)) \
	F(MemFree, 3020, 1, (cu_ptr)) \
	F(MemHostAlloc, 2020, 1, (void **, size_t, unsigned)) \
	F(MemHostGetDevicePointer, 3020, 1, (cu_ptr *, void *, unsigned)) \
	F(MemFreeHost, 2000, 1, (void *)) \
	F(MemHostRegister, 6050, 1, (void *, size_t, unsigned)) \
	F(MemHostUnregister, 4000, 1, (void *)) \
	F(MemcpyAsync, 4000, 1, (cu_ptr, cu_ptr, size_t, cu_stream)) \
	F(Memcpy2DAsync, 3020, 1, (const struct rows *, cu_stream)) \
	F(MemsetD8Async, 3020, 1, (cu_ptr, unsigned char, size_t, cu_stream)) \
	F(CtxGetStreamPriorityRange, 5050, 1, (int *, int *)) \
	F(StreamCreateWithPriority, 5050, 1, (cu_stream *, unsigned, int)) \
	F(StreamDestroy, 4000, 1, (cu_stream)) \
	F(StreamSynchronize, 2000, 1, (cu_stream)) \
	F(StreamQuery, 2000, 1, (cu_stream)) \
	F(StreamWaitEvent, 3020, 1, (cu_stream, cu_event, unsigned)) \
	F(StreamIsCapturing, 10000, 1, (cu_stream, int *)) \
	F(StreamGetId, 12000, 0, (cu_stream, unsigned long long *)) \
	F(StreamBeginCapture, 10010, 1, (cu_stream, int)) \
	F(StreamEndCapture, 10000, 1, (cu_stream, cu_graph *)) \
	F(StreamWriteValue32, 11070, 0, (cu_stream, cu_ptr, uint32_t, unsigned)) \
	F(StreamWaitValue32, 11070, 0, (cu_stream, cu_ptr, uint32_t, unsigned)) \
	F(ThreadExchangeStreamCaptureMode, 10010, 1, (int *)) \
	F(EventCreate, 2000, 1, (cu_event *, unsigned)) \
	F(EventDestroy, 4000, 1, (cu_event)) \
	F(EventRecord, 2000, 1, (cu_event, cu_stream)) \
	F(EventSynchronize, 2000, 1, (cu_event)) \
	F(EventQuery, 2000, 1, (cu_event)) \
	F(EventElapsedTime, 2000, 1, (float *, cu_event, cu_event)) \
	F(GraphInstantiateWithFlags, 11040, 1, (cu_exec *, cu_graph, unsigned long long)) \
	F(GraphDestroy, 10000, 1, (cu_graph)) \
	F(GraphGetNodes, 10000, 1, (cu_graph, cu_node *, size_t *)) \
	F(GraphUpload, 11010, 1, (cu_exec, cu_stream)) \
	F(GraphExecKernelNodeSetParams, 10010, 1, (cu_exec, cu_node, const struct node_params *)) \
	F(GraphLaunch, 10000, 1, (cu_exec, cu_stream)) \
	F(GraphExecDestroy, 10000, 1, (cu_exec)) \
	F(LaunchKernel, 4000, 1, (cu_fn, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cu_stream, void **, void **)) \
	F(LaunchKernelEx, 11080, 0, (const struct launch_config *, cu_fn, void **, void **)) \
	F(LaunchCooperativeKernel, 9000, 1, (cu_fn, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cu_stream, void **))

struct location {
	int type; // 1: a device
	int id;
};

// CUmemAllocationProp
struct properties {
	int type;    // 1: pinned
	int handles; // bits: 1 POSIX descriptor, 8 fabric
	struct location location;
	void *win32;
	struct {
		unsigned char compression, gdr;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};

// CUmemAccessDesc
struct access {
	struct location location;
	int flags; // 3: read and write
};

// CUlaunchAttribute, of an int
struct launch_attribute {
	int id; // 2: cooperative, 6: programmatic stream serialization
	char pad[4];
	union {
		char room[64];
		int value;
	};
};

// CUDA_KERNEL_NODE_PARAMS_v1
struct node_params {
	cu_fn fn;
	unsigned grid[3], block[3], shared;
	void **args, **extra;
};

// CUlaunchConfig
struct launch_config {
	unsigned grid[3], block[3], shared;
	cu_stream stream;
	struct launch_attribute *attributes;
	unsigned count;
};

// CUDA_MEMCPY2D
struct side {
	size_t x, y;
	int type; // 4: an address of any kind
	const void *host;
	cu_ptr at;
	uintptr_t array;
	size_t pitch;
};
struct rows {
	struct side src, dst;
	size_t width, height;
};

#define DECLARE(name, version, needed, arguments) cu_result(*name) arguments;
static struct {
	FUNCTIONS(DECLARE)
} cu;

typedef cu_result (*get_v1)(const char *, void **, int, uint64_t);
typedef cu_result (*get_v2)(const char *, void **, int, uint64_t, int *);

int cu_load(const char *library, char *why, size_t room) {
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		snprintf(why, room, "%s", dlerror());
		return 1;
	}
	get_v2 v2 = (get_v2)dlsym(lib, "cuGetProcAddress_v2"); // from CUDA 12.0 on
	get_v1 v1 = (get_v1)dlsym(lib, "cuGetProcAddress");    // from CUDA 11.3 on
	if (!v2 && !v1) {
		snprintf(why, room, "%s: no cuGetProcAddress: the driver is older than CUDA 11.3", library);
		return 1;
	}
#define RESOLVE(name, version, needed, arguments) \
	{ \
		void *p = NULL; \
		int status = 0; \
		cu_result r = v2 ? v2("cu" #name, &p, version, 0, &status) : v1("cu" #name, &p, version, 0); \
		if ((r != 0 || !p) && needed) { \
			snprintf(why, room, "%s: no cu" #name " of CUDA %d.%d (error %d): a newer driver is needed", library, version / 1000, version % 1000 / 10, r); \
			return 1; \
		} \
		memcpy(&cu.name, &p, sizeof p); \
	}
	FUNCTIONS(RESOLVE)
	return 0;
}

// The primary context of device 0. A thread that has no context may keep this one, which CUDA's runtime would give it anyway: two
// driver calls fewer for each of ours.
static _Atomic cu_ctx usual;

// One driver call in a context. The thread's own context comes back, whatever the call says.
#define IN(ctx, call) \
	{ \
		cu_ctx old = 0; \
		cu_result r = cu.CtxGetCurrent(&old); \
		if (r == 0 && old != ctx) r = cu.CtxSetCurrent(ctx); \
		if (r == 0) { \
			r = (call); \
			if (old != ctx && (old || ctx != usual)) cu.CtxSetCurrent(old); \
		} \
		return r; \
	}

// A call that a stream capture in global mode would forbid: it touches no stream.
#define RELAXED(ctx, call) \
	{ \
		int mode = 2; \
		cu_result x = cu.ThreadExchangeStreamCaptureMode(&mode); \
		if (x != 0) return x; \
		x = (call); \
		cu.ThreadExchangeStreamCaptureMode(&mode); \
		return x; \
	}

cu_result cu_init(void) { return cu.Init(0); }
cu_result cu_driver_version(int *version) { return cu.DriverGetVersion(version); }

const char *cu_error_name(cu_result r) {
	const char *s = NULL;
	return cu.GetErrorName && cu.GetErrorName(r, &s) == 0 ? s : NULL;
}

const char *cu_error_string(cu_result r) {
	const char *s = NULL;
	return cu.GetErrorString && cu.GetErrorString(r, &s) == 0 ? s : NULL;
}

cu_result cu_device_count(int *n) { return cu.DeviceGetCount(n); }

// A CUdevice is a number of its own; that it equals the ordinal is nowhere promised.
#define DEVICE(ordinal, d) \
	int d; \
	{ \
		cu_result r = cu.DeviceGet(&d, ordinal); \
		if (r != 0) return r; \
	}

cu_result cu_device_name(int ordinal, char *name, int room) {
	DEVICE(ordinal, d)
	return cu.DeviceGetName(name, room, d);
}
cu_result cu_device_attribute(int ordinal, int attribute, int *value) {
	DEVICE(ordinal, d)
	return cu.DeviceGetAttribute(value, attribute, d);
}
cu_result cu_device_uuid(int ordinal, unsigned char uuid[16]) {
	DEVICE(ordinal, d)
	return cu.DeviceGetUuid(uuid, d);
}
cu_result cu_can_access_peer(int ordinal, int peer, int *can) {
	DEVICE(ordinal, d)
	DEVICE(peer, p)
	return cu.DeviceCanAccessPeer(can, d, p);
}
cu_result cu_peer_attribute(int ordinal, int peer, int attribute, int *value) {
	DEVICE(ordinal, d)
	DEVICE(peer, p)
	return cu.DeviceGetP2PAttribute(value, attribute, d, p);
}
cu_result cu_primary_retain(int ordinal, cu_ctx *ctx) {
	DEVICE(ordinal, d)
	cu_result r = cu.DevicePrimaryCtxRetain(ctx, d);
	if (r == 0 && ordinal == 0) usual = *ctx;
	return r;
}
cu_result cu_primary_release(int ordinal) {
	DEVICE(ordinal, d)
	return cu.DevicePrimaryCtxRelease(d);
}
cu_result cu_enable_peer(cu_ctx ctx, cu_ctx peer) {
	IN(ctx, cu.CtxEnablePeerAccess(peer, 0))
}
cu_result cu_mem_info(cu_ctx ctx, size_t *available, size_t *total) { IN(ctx, cu.MemGetInfo(available, total)) }
cu_result cu_ctx_sync(cu_ctx ctx) { IN(ctx, cu.CtxSynchronize()) }

static cu_result module_load(cu_ctx ctx, const void *image, char *log, unsigned room, cu_module *m) {
	int options[] = {5, 6}; // error log: buffer, size
	void *values[] = {log, (void *)(uintptr_t)room};
	IN(ctx, cu.ModuleLoadDataEx(m, image, 2, options, values))
}
cu_result cu_module_load(cu_ctx ctx, const void *image, char *log, unsigned room, cu_module *m) {
	RELAXED(ctx, module_load(ctx, image, log, room, m))
}
cu_result cu_module_unload(cu_ctx ctx, cu_module m) { IN(ctx, cu.ModuleUnload(m)) }
cu_result cu_module_function(cu_ctx ctx, cu_module m, const char *name, cu_fn *f) { IN(ctx, cu.ModuleGetFunction(f, m, name)) }
cu_result cu_function_attribute(cu_ctx ctx, cu_fn f, int attribute, int *value) { IN(ctx, cu.FuncGetAttribute(value, attribute, f)) }
cu_result cu_occupancy(cu_ctx ctx, cu_fn f, int threads, int *blocks) {
	IN(ctx, cu.OccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, threads, 0))
}

static struct properties on_device(int device, int handles, int gdr) {
	struct properties p;
	memset(&p, 0, sizeof p);
	p.type = 1;
	p.handles = handles;
	p.location.type = 1;
	p.location.id = device;
	p.flags.gdr = (unsigned char)gdr;
	return p;
}

cu_result cu_granularity(cu_ctx ctx, int ordinal, int handles, int gdr, size_t *granularity) {
	DEVICE(ordinal, d)
	struct properties p = on_device(d, handles, gdr);
	IN(ctx, cu.MemGetAllocationGranularity(granularity, &p, 1)) // 1: recommended
}

static cu_result map_on(const cu_block *b, int device) {
	struct access a = {{1, device}, 3};
	return cu.MemSetAccess(b->ptr, b->size, &a, 1);
}

static cu_result map_new(int device, cu_block *b) {
	cu_result r = cu.MemAddressReserve(&b->ptr, b->size, 0, 0, 0);
	if (r == 0) {
		r = cu.MemMap(b->ptr, b->size, 0, b->handle, 0);
		if (r == 0) {
			r = map_on(b, device);
			if (r == 0) return 0;
			cu.MemUnmap(b->ptr, b->size);
		}
		cu.MemAddressFree(b->ptr, b->size);
	}
	cu.MemRelease(b->handle);
	return r;
}
static cu_result create(int device, int handles, int gdr, cu_block *b) {
	struct properties p = on_device(device, handles, gdr);
	cu_result r = cu.MemCreate(&b->handle, b->size, &p, 0);
	return r != 0 ? r : map_new(device, b);
}
static cu_result block_create(cu_ctx ctx, int device, int handles, int gdr, cu_block *b) { IN(ctx, create(device, handles, gdr, b)) }
cu_result cu_block_create(cu_ctx ctx, int ordinal, int handles, int gdr, size_t size, cu_block *b) {
	DEVICE(ordinal, d)
	memset(b, 0, sizeof *b);
	b->size = size;
	RELAXED(ctx, block_create(ctx, d, handles, gdr, b))
}

static cu_result discard(const cu_block *b) {
	cu_result r = cu.MemUnmap(b->ptr, b->size), x;
	if ((x = cu.MemAddressFree(b->ptr, b->size)) != 0 && r == 0) r = x;
	if ((x = cu.MemRelease(b->handle)) != 0 && r == 0) r = x;
	return r;
}
static cu_result block_free(cu_ctx ctx, const cu_block *b) { IN(ctx, discard(b)) }
cu_result cu_block_free(cu_ctx ctx, const cu_block *b) { RELAXED(ctx, block_free(ctx, b)) }

static cu_result block_access(cu_ctx ctx, const cu_block *b, int device) { IN(ctx, map_on(b, device)) }
cu_result cu_block_access(cu_ctx ctx, const cu_block *b, int ordinal) {
	DEVICE(ordinal, d)
	RELAXED(ctx, block_access(ctx, b, d))
}
cu_result cu_block_export(cu_ctx ctx, const cu_block *b, int kind, void *handle) { IN(ctx, cu.MemExportToShareableHandle(handle, b->handle, kind, 0)) }

static cu_result import(int device, int kind, void *handle, cu_block *b) {
	cu_result r = cu.MemImportFromShareableHandle(&b->handle, handle, kind);
	return r != 0 ? r : map_new(device, b);
}
static cu_result block_import(cu_ctx ctx, int device, int kind, void *handle, cu_block *b) { IN(ctx, import(device, kind, handle, b)) }
cu_result cu_block_import_fd(cu_ctx ctx, int ordinal, int fd, size_t size, cu_block *b) {
	DEVICE(ordinal, d)
	memset(b, 0, sizeof *b);
	b->size = size;
	RELAXED(ctx, block_import(ctx, d, 1, (void *)(uintptr_t)fd, b))
}
cu_result cu_block_import_fabric(cu_ctx ctx, int ordinal, const void *handle, size_t size, cu_block *b) {
	DEVICE(ordinal, d)
	memset(b, 0, sizeof *b);
	b->size = size;
	RELAXED(ctx, block_import(ctx, d, 8, (void *)handle, b))
}
static cu_result dmabuf(cu_ptr p, size_t size, int *fd) {
	return cu.MemGetHandleForAddressRange ? cu.MemGetHandleForAddressRange(fd, p, size, 1, 0) : cu_missing; // 1: a DMA-BUF's descriptor
}
cu_result cu_dmabuf(cu_ctx ctx, cu_ptr p, size_t size, int *fd) { IN(ctx, dmabuf(p, size, fd)) }
static cu_result flush_writes(void) {
	return cu.FlushGPUDirectRDMAWrites ? cu.FlushGPUDirectRDMAWrites(0, 100) : cu_missing; // of the context, for its device
}
cu_result cu_flush_writes(cu_ctx ctx) { IN(ctx, flush_writes()) }
cu_result cu_pointer_attribute(cu_ctx ctx, int attribute, cu_ptr p, void *value) { IN(ctx, cu.PointerGetAttribute(value, attribute, p)) }

static cu_result mem_alloc(cu_ctx ctx, size_t size, cu_ptr *p) { IN(ctx, cu.MemAlloc(p, size)) }
cu_result cu_mem_alloc(cu_ctx ctx, size_t size, cu_ptr *p) { RELAXED(ctx, mem_alloc(ctx, size, p)) }
static cu_result mem_free(cu_ctx ctx, cu_ptr p) { IN(ctx, cu.MemFree(p)) }
cu_result cu_mem_free(cu_ctx ctx, cu_ptr p) { RELAXED(ctx, mem_free(ctx, p)) }

static cu_result pinned(size_t size, void **host, cu_ptr *p) {
	cu_result r = cu.MemHostAlloc(host, size, 3); // portable, mapped
	if (r == 0 && (r = cu.MemHostGetDevicePointer(p, *host, 0)) != 0) cu.MemFreeHost(*host);
	return r;
}
static cu_result host_alloc(cu_ctx ctx, size_t size, void **host, cu_ptr *p) { IN(ctx, pinned(size, host, p)) }
cu_result cu_host_alloc(cu_ctx ctx, size_t size, void **host, cu_ptr *p) { RELAXED(ctx, host_alloc(ctx, size, host, p)) }
static cu_result host_free(cu_ctx ctx, void *host) { IN(ctx, cu.MemFreeHost(host)) }
cu_result cu_host_free(cu_ctx ctx, void *host) { RELAXED(ctx, host_free(ctx, host)) }

static cu_result host_register(cu_ctx ctx, void *p, size_t size) { IN(ctx, cu.MemHostRegister(p, size, 3)) } // portable, mapped
cu_result cu_host_register(cu_ctx ctx, void *p, size_t size) { RELAXED(ctx, host_register(ctx, p, size)) }
static cu_result host_unregister(cu_ctx ctx, void *p) { IN(ctx, cu.MemHostUnregister(p)) }
cu_result cu_host_unregister(cu_ctx ctx, void *p) { RELAXED(ctx, host_unregister(ctx, p)) }

cu_result cu_copy(cu_ctx ctx, void *dst, const void *src, size_t size, cu_stream s) {
	IN(ctx, cu.MemcpyAsync((uintptr_t)dst, (uintptr_t)src, size, s))
}
cu_result cu_copy_rows(cu_ctx ctx, void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height, cu_stream s) {
	struct rows copy;
	memset(&copy, 0, sizeof copy);
	copy.src.type = copy.dst.type = 4;
	copy.src.at = (uintptr_t)src, copy.src.pitch = src_pitch;
	copy.dst.at = (uintptr_t)dst, copy.dst.pitch = dst_pitch;
	copy.width = width, copy.height = height;
	IN(ctx, cu.Memcpy2DAsync(&copy, s))
}
cu_result cu_set(cu_ctx ctx, cu_ptr dst, unsigned char value, size_t size, cu_stream s) { IN(ctx, cu.MemsetD8Async(dst, value, size, s)) }

static cu_result stream_create(int high_priority, cu_stream *s) {
	int least = 0, greatest = 0;
	cu_result r = cu.CtxGetStreamPriorityRange(&least, &greatest);
	return r != 0 ? r : cu.StreamCreateWithPriority(s, 1, high_priority ? greatest : least); // 1: does not wait for the default stream
}
cu_result cu_stream_create(cu_ctx ctx, int high_priority, cu_stream *s) { IN(ctx, stream_create(high_priority, s)) }
cu_result cu_stream_destroy(cu_ctx ctx, cu_stream s) { IN(ctx, cu.StreamDestroy(s)) }
cu_result cu_stream_sync(cu_ctx ctx, cu_stream s) { IN(ctx, cu.StreamSynchronize(s)) }
cu_result cu_stream_query(cu_ctx ctx, cu_stream s) { IN(ctx, cu.StreamQuery(s)) }
// Where the driver does not say, it is a number that never comes again.
static uint64_t identity(cu_stream s) {
	static _Atomic uint64_t unknown;
	unsigned long long id = 0;
	return cu.StreamGetId && cu.StreamGetId(s, &id) == 0 ? id + 1 : ~unknown++;
}
static cu_result stream_capturing(cu_stream s, int *status, uint64_t *id) {
	cu_result r = cu.StreamIsCapturing(s, status);
	*id = r == 0 && !*status ? identity(s) : 0;
	return r;
}
cu_result cu_stream_capturing(cu_ctx ctx, cu_stream s, int *status, uint64_t *id) { IN(ctx, stream_capturing(s, status, id)) }
cu_result cu_stream_write(cu_ctx ctx, cu_stream s, cu_ptr p, uint32_t value) {
	if (!cu.StreamWriteValue32) return cu_missing;
	IN(ctx, cu.StreamWriteValue32(s, p, value, 0))
}
cu_result cu_stream_until(cu_ctx ctx, cu_stream s, cu_ptr p, uint32_t value) {
	if (!cu.StreamWaitValue32) return cu_missing;
	IN(ctx, cu.StreamWaitValue32(s, p, value, 0)) // 0: at least value, modulo 2^32
}
cu_result cu_event_create(cu_ctx ctx, int timing, cu_event *e) { IN(ctx, cu.EventCreate(e, timing ? 0 : 2)) } // 2: no timing
cu_result cu_event_destroy(cu_ctx ctx, cu_event e) { IN(ctx, cu.EventDestroy(e)) }
cu_result cu_event_record(cu_ctx ctx, cu_event e, cu_stream s) { IN(ctx, cu.EventRecord(e, s)) }
cu_result cu_event_sync(cu_ctx ctx, cu_event e) { IN(ctx, cu.EventSynchronize(e)) }
static cu_result event_query(cu_ctx ctx, cu_event e) { IN(ctx, cu.EventQuery(e)) }
cu_result cu_event_query(cu_ctx ctx, cu_event e) { RELAXED(ctx, event_query(ctx, e)) } // a watchdog's, while anybody captures
cu_result cu_event_elapsed(cu_ctx ctx, cu_event from, cu_event to, float *ms) { IN(ctx, cu.EventElapsedTime(ms, from, to)) }
cu_result cu_stream_wait(cu_ctx ctx, cu_stream s, cu_event e) { IN(ctx, cu.StreamWaitEvent(s, e, 0)) }

cu_result cu_capture_begin(cu_ctx ctx, cu_stream s) { IN(ctx, cu.StreamBeginCapture(s, 2)) } // 2: relaxed
cu_result cu_capture_end(cu_ctx ctx, cu_stream s, cu_graph *g) { IN(ctx, cu.StreamEndCapture(s, g)) }
cu_result cu_graph_instantiate(cu_ctx ctx, cu_graph g, cu_exec *e) { IN(ctx, cu.GraphInstantiateWithFlags(e, g, 0)) }
cu_result cu_graph_destroy(cu_ctx ctx, cu_graph g) { IN(ctx, cu.GraphDestroy(g)) }
cu_result cu_graph_launch(cu_ctx ctx, cu_exec e, cu_stream s) { IN(ctx, cu.GraphLaunch(e, s)) }
cu_result cu_exec_destroy(cu_ctx ctx, cu_exec e) { IN(ctx, cu.GraphExecDestroy(e)) }

static cu_result launch(const cu_launch *l, void *args, cu_stream on) {
	void *one[] = {args};
	if (l->overlaps && cu.LaunchKernelEx) {
		struct launch_attribute a[2] = {{.id = 6, .value = 1}, {.id = 2, .value = 1}};
		struct launch_config c = {{l->columns, l->rows, 1}, {l->threads, 1, 1}, 0, on, a, l->cooperative ? 2 : 1};
		return cu.LaunchKernelEx(&c, l->fn, one, NULL);
	}
	return l->cooperative ? cu.LaunchCooperativeKernel(l->fn, l->columns, l->rows, 1, l->threads, 1, 1, 0, on, one)
			      : cu.LaunchKernel(l->fn, l->columns, l->rows, 1, l->threads, 1, 1, 0, on, one, NULL);
}

// What an executable graph cannot be told is launched by itself.
static cu_result launch_by_graph(cu_launch *l, void *args, cu_stream on) {
	if (l->bind) {
		void *one[] = {args};
		const struct node_params p = {l->fn, {l->columns, l->rows, 1}, {l->threads, 1, 1}, 0, one, NULL};
		if (cu.GraphExecKernelNodeSetParams(l->exec, l->node, &p) != 0) return launch(l, args, on);
		l->bind = 0;
	}
	return cu.GraphLaunch(l->exec, on);
}

static cu_result prepare(const cu_launch *l, void *args, int n, cu_stream s, cu_graph *g, cu_node *node, cu_exec *execs) {
	size_t nodes = 1;
	cu_result r = cu.StreamBeginCapture(s, 2); // 2: relaxed
	if (r != 0) return r;
	r = launch(l, args, s);
	cu_result end = cu.StreamEndCapture(s, g);
	if (r == 0) r = end;
	if (r == 0) r = cu.GraphGetNodes(*g, node, &nodes);
	for (int i = 0; i < n && r == 0; i++) {
		r = cu.GraphInstantiateWithFlags(&execs[i], *g, 0);
		if (r == 0) r = cu.GraphUpload(execs[i], s);
	}
	if (r == 0) r = cu.StreamSynchronize(s);
	return r;
}
static cu_result prepare_on_stream(const cu_launch *l, void *args, int n, cu_graph *g, cu_node *node, cu_exec *execs) {
	cu_stream s = 0;
	cu_result r = stream_create(0, &s);
	if (r != 0) return r;
	r = prepare(l, args, n, s, g, node, execs);
	cu_result end = cu.StreamDestroy(s);
	return r != 0 ? r : end;
}
static cu_result prepare_in(cu_ctx ctx, const cu_launch *l, void *args, int n, cu_graph *g, cu_node *node, cu_exec *execs) {
	IN(ctx, prepare_on_stream(l, args, n, g, node, execs))
}
cu_result cu_prepare(cu_ctx ctx, const cu_launch *l, const void *args, int n, cu_graph *g, cu_node *node, cu_exec *execs) {
	RELAXED(ctx, prepare_in(ctx, l, (void *)args, n, g, node, execs))
}

static cu_result launch_joined(cu_launch *launches, int count, const void *args, size_t stride, cu_stream on, cu_stream const *others, int n, cu_event const *before, cu_event after) {
	cu_result r;
	int joined = 0, captured = 0, graphs = 0;
	for (int i = 0; i < n; i++) {
		if (others[i] == on) continue;
		joined = 1;
		if ((r = cu.EventRecord(before[i], others[i])) != 0) return r;
		if ((r = cu.StreamWaitEvent(on, before[i], 0)) != 0) return r;
	}
	for (int i = 0; i < count; i++) graphs |= launches[i].exec != 0;
	if (graphs && (r = cu.StreamIsCapturing(on, &captured)) != 0) return r;
	for (int i = 0; i < count; i++) {
		cu_launch *l = &launches[i];
		void *own = (char *)args + (size_t)i * stride;
		if ((r = l->exec && !captured ? launch_by_graph(l, own, on) : launch(l, own, on)) != 0) return r;
	}
	if (!joined) return 0;
	if ((r = cu.EventRecord(after, on)) != 0) return r;
	for (int i = 0; i < n; i++) {
		if (others[i] == on) continue;
		if ((r = cu.StreamWaitEvent(others[i], after, 0)) != 0) return r;
	}
	return 0;
}
cu_result cu_launch_joined(cu_ctx ctx, cu_launch *launches, int count, const void *args, size_t stride, cu_stream on, cu_stream const *others, int n, cu_event const *before, cu_event after) {
	IN(ctx, launch_joined(launches, count, args, stride, on, others, n, before, after))
}

static cu_result launch_after(cu_launch *l, const void *args, cu_stream on, cu_stream const *others, int n, cu_event const *before, cu_event after, cu_waits const *w, cu_event done, int *captured, uint64_t *id) {
	cu_result r = cu.StreamIsCapturing(on, captured);
	if (r == 0 && !*captured) {
		*id = identity(on);
		if (w->done && w->on != *id) r = cu.StreamWaitEvent(on, w->done, 0);
		if (r == 0 && w->also) r = cu.StreamWaitEvent(on, w->also, 0);
	}
	if (r == 0 && l) r = launch_joined(l, 1, args, 0, on, others, n, before, after);
	if (r == 0 && l && !*captured) r = cu.EventRecord(done, on);
	return r;
}
cu_result cu_launch_after(cu_ctx ctx, cu_launch *l, const void *args, cu_stream on, cu_stream const *others, int n, cu_event const *before, cu_event after, cu_waits const *w, cu_event done, int *captured, uint64_t *id) {
	IN(ctx, launch_after(l, args, on, others, n, before, after, w, done, captured, id))
}
