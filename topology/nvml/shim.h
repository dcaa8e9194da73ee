// What gccl asks of libnvidia-ml.so.1. Results are NVML's own numbers, 0 for success.
#ifndef GCCL_NVML_SHIM_H
#define GCCL_NVML_SHIM_H

#include <stddef.h>

enum { NVML_MAX_LINKS = 64, NVML_MAX_PARTS = 16 };

struct nvml_link {
	char bus[32]; // of the other end, "" if it is hidden
	int kind;     // 0 GPU, 1 CPU, 2 switch, 255 unknown
};

struct nvml_gpu {
	void *handle;
	char bus[32], uuid[96], name[96];
	int major, minor;
	unsigned long long memory;
	int mig;
	int parts; // that MIG has made of it
	char part[NVML_MAX_PARTS][96];
	int links; // active
	struct nvml_link link[NVML_MAX_LINKS];
	int has_fabric;
	unsigned char cluster[16];
	int fabric_status;
	unsigned clique;
	int fabric_state;
};

// Opens the library and begins a session with it. On failure why says what is wrong.
int nvml_begin(const char *library, char *why, size_t room);
void nvml_end(void);
int nvml_count(unsigned *n);
int nvml_gpu(unsigned index, struct nvml_gpu *gpu);
// Read and write are the statuses of a reaching b's memory, -1 where not known.
void nvml_p2p(struct nvml_gpu *a, struct nvml_gpu *b, int *read, int *write);
const char *nvml_text(int result);

#endif
