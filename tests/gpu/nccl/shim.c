//go:build linux && cgo

#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *stream;
typedef void *communicator;

#define FUNCTIONS(F) \
	F(GetVersion, 1, (int *)) \
	F(CommInitAll, 1, (communicator *, int, const int *)) \
	F(CommDestroy, 1, (communicator)) \
	F(GroupStart, 1, (void)) \
	F(GroupEnd, 1, (void)) \
	F(AllReduce, 1, (const void *, void *, size_t, int, int, communicator, stream)) \
	F(AllGather, 1, (const void *, void *, size_t, int, communicator, stream)) \
	F(ReduceScatter, 1, (const void *, void *, size_t, int, int, communicator, stream)) \
	F(Broadcast, 1, (const void *, void *, size_t, int, int, communicator, stream)) \
	F(Send, 1, (const void *, size_t, int, int, communicator, stream)) \
	F(Recv, 1, (void *, size_t, int, int, communicator, stream)) \
	F(MemAlloc, 0, (void **, size_t)) \
	F(CommWindowRegister, 0, (communicator, void *, size_t, void **, int))

#define DECLARE(name, needed, arguments) int(*name) arguments;
static struct {
	FUNCTIONS(DECLARE)
} nccl;
static const char *(*error_string)(int);
static int (*retain)(void **, int), (*set_current)(void *);

int nccl_load(char *why, size_t room) {
	void *lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL), *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib || !driver) {
		snprintf(why, room, "%s", dlerror());
		return 1;
	}
#define RESOLVE(name, needed, arguments) \
	{ \
		void *p = dlsym(lib, "nccl" #name); \
		if (!p && needed) { \
			snprintf(why, room, "libnccl.so.2 has no nccl" #name); \
			return 1; \
		} \
		memcpy(&nccl.name, &p, sizeof p); \
	}
	FUNCTIONS(RESOLVE)
	*(void **)&error_string = dlsym(lib, "ncclGetErrorString");
	*(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
	*(void **)&set_current = dlsym(driver, "cuCtxSetCurrent");
	return 0;
}

const char *nccl_error(int r) { return r < 0 ? "this NCCL or driver has not got it" : error_string(r); }
int nccl_version(int *v) { return nccl.GetVersion(v); }
int nccl_init(uintptr_t *comms, int n, const int *devices) { return nccl.CommInitAll((communicator *)comms, n, devices); }
int nccl_destroy(uintptr_t comm) { return nccl.CommDestroy((communicator)comm); }

int nccl_alloc(int device, size_t bytes, uintptr_t *p) {
	void *ctx = NULL;
	if (!nccl.MemAlloc || retain(&ctx, device) != 0 || set_current(ctx) != 0) return -1;
	return nccl.MemAlloc((void **)p, bytes);
}

#define TRY(call) \
	{ \
		int r = (call); \
		if (r != 0 && first == 0) first = r; \
	}

int nccl_register(int n, const uintptr_t *comms, const uintptr_t *buffers, size_t bytes) {
	static void *windows[max_ranks]; // as long as the process lives
	int first = 0;
	if (!nccl.CommWindowRegister) return -1;
	TRY(nccl.GroupStart())
	for (int i = 0; i < n; i++) TRY(nccl.CommWindowRegister((communicator)comms[i], (void *)buffers[i], bytes, &windows[i], 1)) // 1: symmetric
	TRY(nccl.GroupEnd())
	return first;
}

static size_t size_of(int type) { return type == 9 ? 2 : 4; }

int nccl_call(int kind, int n, const uintptr_t *comms, const uintptr_t *src, const uintptr_t *dst, size_t count, int type, const uintptr_t *streams) {
	int first = 0;
	const size_t block = count * size_of(type);
	TRY(nccl.GroupStart())
	for (int i = 0; i < n; i++) {
		communicator c = (communicator)comms[i];
		const char *s = (const char *)src[i];
		char *d = (char *)dst[i];
		stream on = (stream)streams[i];
		switch (kind) {
		case 0: TRY(nccl.AllReduce(s, d, count, type, 0, c, on)) break;
		case 1: TRY(nccl.AllGather(s, d, count, type, c, on)) break;
		case 2: TRY(nccl.ReduceScatter(s, d, count, type, 0, c, on)) break;
		case 3:
			for (int k = 0; k < n; k++) {
				TRY(nccl.Send(s + (size_t)k * block, count, type, k, c, on))
				TRY(nccl.Recv(d + (size_t)k * block, count, type, k, c, on))
			}
			break;
		case 4: TRY(nccl.Broadcast(s, d, count, type, 0, c, on)) break;
		case 5:
			TRY(nccl.Send(s, count, type, (i + 1) % n, c, on))
			TRY(nccl.Recv(d, count, type, (i + n - 1) % n, c, on))
			break;
		}
	}
	TRY(nccl.GroupEnd())
	return first;
}
