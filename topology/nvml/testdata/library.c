// A library with NVML's functions and two GPUs, for tests. OLD leaves out what old ones lack, BROKEN what none lacks.
#include <string.h>

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };
struct fabric { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; };

static int gpus[2] = {0, 1}, parts[7] = {10, 11, 12, 13, 14, 15, 16};

int nvmlInit_v2(void) {
#ifdef REFUSED
	return 9;
#endif
	return 0;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int r) { return r == 9 ? "Driver Not Loaded" : r == 15 ? "GPU is lost" : "Other"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
#ifdef LOST
	if (i == 1) return 15;
#endif
	*h = &gpus[i];
	return 0;
}
#ifndef BROKEN
int nvmlDeviceGetPciInfo_v3(void *h, struct pci *p) {
	strcpy(p->bus_id, *(int *)h ? "00000000:A3:00.0" : "00000000:13:00.0");
	return 0;
}
#endif
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) {
	int i = *(int *)h;
	strcpy(s, i < 10 ? "GPU-0000" : "MIG-0000");
	s[4] += i % 10;
	return 0;
}
int nvmlDeviceGetName(void *h, char *s, unsigned n) { strcpy(s, "NVIDIA Test"); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, struct memory *m) { m->total = 80ull << 30; m->free = m->used = 1; return 0; }
#ifndef OLD
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *next) { *now = *(int *)h; *next = 0; return 0; }
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *n) { *n = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned i, void **part) {
	if (i != 1 && i != 4) return 6; // there is none
	*part = &parts[i];
	return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *h, unsigned l, int *kind) { *kind = 2; return 0; }
int nvmlDeviceGetGpuFabricInfoV(void *h, struct fabric *f) {
	if (f->version != (sizeof *f | 2 << 24)) return 25;
	f->cluster[0] = 0xab;
	f->clique = 7;
	f->state = 3;
	f->status = *(int *)h ? 9 : 0;
	f->health = 0x1234;
	return 0;
}
#endif
int nvmlDeviceGetNvLinkState(void *h, unsigned l, int *active) { *active = l != 5; return l < 18 ? 0 : 2; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned l, struct pci *p) {
	strcpy(p->bus_id, l % 2 ? "00000000:05:00.0" : "00000000:06:00.0");
	return 0;
}
int nvmlDeviceGetP2PStatus(void *a, void *b, int index, int *status) { *status = index == 1 && *(int *)a ? 2 : 0; return 0; }
