//go:build linux && cgo

#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// What the library offers: name as exported, and its arguments. All but the first NEEDED may be missing in an older one.
#define FUNCTIONS(F) \
	F(Init_v2, (void)) \
	F(Shutdown, (void)) \
	F(DeviceGetCount_v2, (unsigned *)) \
	F(DeviceGetHandleByIndex_v2, (unsigned, void **)) \
	F(DeviceGetPciInfo_v3, (void *, struct pci *)) \
	F(DeviceGetUUID, (void *, char *, unsigned)) \
	F(DeviceGetName, (void *, char *, unsigned)) \
	F(DeviceGetCudaComputeCapability, (void *, int *, int *)) \
	F(DeviceGetMemoryInfo, (void *, struct memory *)) \
	F(DeviceGetMigMode, (void *, unsigned *, unsigned *)) \
	F(DeviceGetMaxMigDeviceCount, (void *, unsigned *)) \
	F(DeviceGetMigDeviceHandleByIndex, (void *, unsigned, void **)) \
	F(DeviceGetNvLinkState, (void *, unsigned, int *)) \
	F(DeviceGetNvLinkRemotePciInfo_v2, (void *, unsigned, struct pci *)) \
	F(DeviceGetNvLinkRemoteDeviceType, (void *, unsigned, int *)) \
	F(DeviceGetGpuFabricInfo, (void *, struct fabric_v1 *)) \
	F(DeviceGetGpuFabricInfoV, (void *, struct fabric_v2 *)) \
	F(DeviceGetP2PStatus, (void *, void *, int, int *))

enum { NEEDED = 5 }; // of the functions above, without which nothing can be said

// nvmlPciInfo_t
struct pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char bus_id[32];
};

// nvmlMemory_t
struct memory {
	unsigned long long total, free, used;
};

// nvmlGpuFabricInfo_t
struct fabric_v1 {
	unsigned char cluster[16];
	int status;
	unsigned clique;
	unsigned char state;
};

// nvmlGpuFabricInfo_v2_t
struct fabric_v2 {
	unsigned version; // size | 2 << 24
	unsigned char cluster[16];
	int status;
	unsigned clique;
	unsigned char state;
	unsigned health;
};

_Static_assert(sizeof(struct pci) == 68 && sizeof(struct fabric_v1) == 28 && sizeof(struct fabric_v2) == 36, "NVML's ABI");

struct library {
#define DECLARE(name, arguments) int(*name) arguments;
	FUNCTIONS(DECLARE)
	const char *(*ErrorString)(int);
};

// The functions of the session that has begun; the caller lets only one be at a time.
static struct library nvml;

int nvml_begin(const char *library, char *why, size_t room) {
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		snprintf(why, room, "%s", dlerror());
		return 1;
	}
	int n = 0;
#define RESOLVE(name, arguments) \
	{ \
		void *p = dlsym(lib, "nvml" #name); \
		if (!p && n < NEEDED) { \
			snprintf(why, room, "%s has no nvml" #name ": a newer driver is needed", library); \
			dlclose(lib); \
			return 1; \
		} \
		memcpy(&nvml.name, &p, sizeof p); \
		n++; \
	}
	FUNCTIONS(RESOLVE)
	void *p = dlsym(lib, "nvmlErrorString");
	memcpy(&nvml.ErrorString, &p, sizeof p);
	int r = nvml.Init_v2();
	if (r != 0) {
		snprintf(why, room, "%s: nvmlInit_v2: %s", library, nvml_text(r));
		return 1;
	}
	return 0;
}

void nvml_end(void) { nvml.Shutdown(); }

int nvml_count(unsigned *n) { return nvml.DeviceGetCount_v2(n); }

const char *nvml_text(int result) {
	const char *s = nvml.ErrorString ? nvml.ErrorString(result) : NULL;
	return s ? s : "unknown error";
}

static void links(struct nvml_gpu *g) {
	if (!nvml.DeviceGetNvLinkState || !nvml.DeviceGetNvLinkRemotePciInfo_v2)
		return;
	for (unsigned l = 0; l < NVML_MAX_LINKS; l++) {
		int active = 0;
		if (nvml.DeviceGetNvLinkState(g->handle, l, &active) != 0 || !active)
			continue;
		struct nvml_link *to = &g->link[g->links];
		struct pci pci = {0};
		if (nvml.DeviceGetNvLinkRemotePciInfo_v2(g->handle, l, &pci) == 0)
			snprintf(to->bus, sizeof to->bus, "%.31s", pci.bus_id);
		to->kind = 255;
		if (nvml.DeviceGetNvLinkRemoteDeviceType && nvml.DeviceGetNvLinkRemoteDeviceType(g->handle, l, &to->kind) != 0)
			to->kind = 255;
		g->links++;
	}
}

static void parts(struct nvml_gpu *g) {
	unsigned most = 0;
	if (!nvml.DeviceGetUUID || !nvml.DeviceGetMaxMigDeviceCount || !nvml.DeviceGetMigDeviceHandleByIndex ||
	    nvml.DeviceGetMaxMigDeviceCount(g->handle, &most) != 0)
		return;
	for (unsigned i = 0; i < most && g->parts < NVML_MAX_PARTS; i++) {
		void *part; // there are as many as were made, with gaps
		if (nvml.DeviceGetMigDeviceHandleByIndex(g->handle, i, &part) == 0 &&
		    nvml.DeviceGetUUID(part, g->part[g->parts], sizeof g->part[0]) == 0)
			g->parts++;
	}
}

static void fabric(struct nvml_gpu *g) {
	struct fabric_v2 v2 = {.version = sizeof v2 | 2 << 24};
	struct fabric_v1 v1 = {0};
	if (nvml.DeviceGetGpuFabricInfoV && nvml.DeviceGetGpuFabricInfoV(g->handle, &v2) == 0) {
		memcpy(g->cluster, v2.cluster, sizeof g->cluster);
		g->fabric_status = v2.status, g->clique = v2.clique, g->fabric_state = v2.state, g->has_fabric = 1;
	} else if (nvml.DeviceGetGpuFabricInfo && nvml.DeviceGetGpuFabricInfo(g->handle, &v1) == 0) {
		memcpy(g->cluster, v1.cluster, sizeof g->cluster);
		g->fabric_status = v1.status, g->clique = v1.clique, g->fabric_state = v1.state, g->has_fabric = 1;
	}
}

int nvml_gpu(unsigned index, struct nvml_gpu *g) {
	memset(g, 0, sizeof *g);
	struct pci pci = {0};
	int r = nvml.DeviceGetHandleByIndex_v2(index, &g->handle);
	if (r == 0)
		r = nvml.DeviceGetPciInfo_v3(g->handle, &pci);
	if (r != 0)
		return r;
	snprintf(g->bus, sizeof g->bus, "%.31s", pci.bus_id);
	// What fails from here on stays empty or 0.
	if (nvml.DeviceGetUUID && nvml.DeviceGetUUID(g->handle, g->uuid, sizeof g->uuid) != 0)
		g->uuid[0] = 0;
	if (nvml.DeviceGetName && nvml.DeviceGetName(g->handle, g->name, sizeof g->name) != 0)
		g->name[0] = 0;
	if (nvml.DeviceGetCudaComputeCapability && nvml.DeviceGetCudaComputeCapability(g->handle, &g->major, &g->minor) != 0)
		g->major = g->minor = 0;
	struct memory m = {0};
	if (nvml.DeviceGetMemoryInfo && nvml.DeviceGetMemoryInfo(g->handle, &m) == 0)
		g->memory = m.total;
	unsigned now = 0, next = 0;
	if (nvml.DeviceGetMigMode && nvml.DeviceGetMigMode(g->handle, &now, &next) == 0)
		g->mig = now == 1;
	if (g->mig)
		parts(g);
	links(g);
	fabric(g);
	return 0;
}

void nvml_p2p(struct nvml_gpu *a, struct nvml_gpu *b, int *read, int *write) {
	*read = *write = -1;
	if (!nvml.DeviceGetP2PStatus)
		return;
	if (nvml.DeviceGetP2PStatus(a->handle, b->handle, 0, read) != 0)
		*read = -1;
	if (nvml.DeviceGetP2PStatus(a->handle, b->handle, 1, write) != 0)
		*write = -1;
}
