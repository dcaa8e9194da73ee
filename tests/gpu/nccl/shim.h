// NCCL as the benchmark beside it calls it: all ranks of one process in one call of C, for its groups belong to a thread.
#ifndef GCCL_NCCL_SHIM_H
#define GCCL_NCCL_SHIM_H

#include <stddef.h>
#include <stdint.h>

enum { max_ranks = 16 };

// Opens the libraries. Returns 0, or 1 with a text that says what is missing.
int nccl_load(char *why, size_t room);
const char *nccl_error(int r);
int nccl_version(int *v);
int nccl_init(uintptr_t *comms, int n, const int *devices);
int nccl_destroy(uintptr_t comm);
int nccl_alloc(int device, size_t bytes, uintptr_t *p);
int nccl_register(int n, const uintptr_t *comms, const uintptr_t *buffers, size_t bytes);
// One call of every rank, of count elements a block; kinds as in nccl.go.
int nccl_call(int kind, int n, const uintptr_t *comms, const uintptr_t *src, const uintptr_t *dst, size_t count, int type, const uintptr_t *streams);

#endif
