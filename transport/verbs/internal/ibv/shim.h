// What Go calls: flat, pointer-free requests and completions in batches, and the library's functions by way of dlopen.
#ifndef GCCL_IBV_SHIM_H
#define GCCL_IBV_SHIM_H

#include "abi.h"

// One work request; ibv.Send in Go.
typedef struct {
	uint64_t id, addr;
	uint32_t bytes, lkey;
	uint64_t addr2;
	uint32_t bytes2, lkey2;
	uint64_t remote;
	uint32_t rkey, opcode, flags, imm;
	uint64_t add, swap; // atomics; for UD add is the address handle
	uint32_t qpn, qkey; // UD
} gv_send;

// One receive; ibv.Recv in Go. Without bytes it takes an immediate only.
typedef struct {
	uint64_t id, addr;
	uint32_t bytes, lkey;
} gv_recv;

// One completion; ibv.Completion in Go.
typedef struct {
	uint64_t id;
	uint32_t status, opcode, vendor, bytes, imm, qpn, src_qpn, flags;
} gv_completion;

// gv_load returns an empty string, or why the library cannot be used. The caller frees nothing.
const char *gv_load(void);

void **gv_device_list(int *n);
void gv_free_device_list(void **list);
const char *gv_device_name(void *device);
uint64_t gv_device_guid(void *device);
struct gv_context *gv_open(void *device);
int gv_close(struct gv_context *c);
int gv_query_device(struct gv_context *c, struct gv_device_attr *a);
int gv_query_port(struct gv_context *c, int port, struct gv_port_attr *a);
// gv_query_gids returns the number of entries, or -errno; -ENOSYS from a library before 1.11.
long gv_query_gids(struct gv_context *c, struct gv_gid_entry *e, long most);
int gv_query_gid(struct gv_context *c, int port, int index, struct gv_gid *g);
int gv_query_pkey(struct gv_context *c, int port, int index, uint16_t *pkey);

void *gv_alloc_pd(struct gv_context *c);
int gv_dealloc_pd(void *pd);
struct gv_mr *gv_reg(void *pd, uint64_t addr, uint64_t bytes, uint64_t iova, uint32_t access, int *err);
struct gv_mr *gv_reg_dmabuf(void *pd, uint64_t offset, uint64_t bytes, uint64_t iova, int fd, uint32_t access, int *err);
int gv_dereg(struct gv_mr *mr);

struct gv_channel *gv_create_channel(struct gv_context *c);
int gv_destroy_channel(struct gv_channel *ch);
struct gv_cq *gv_create_cq(struct gv_context *c, int entries, struct gv_channel *ch, int vector);
int gv_resize_cq(struct gv_cq *cq, int entries);
int gv_destroy_cq(struct gv_cq *cq);
// gv_moderate asks for a completion event only after so many completions or microseconds.
int gv_moderate(struct gv_cq *cq, uint16_t count, uint16_t period);
int gv_arm(struct gv_cq *cq, int solicited);
// gv_drain takes the channel's events, which must all be of cq, and returns how many.
int gv_drain(struct gv_channel *ch, struct gv_cq *cq);
// What is called for each message takes objects as numbers: cgo looks at every pointer that it passes.
int gv_poll(uintptr_t cq, gv_completion *out, int n);

struct gv_srq *gv_create_srq(void *pd, uint32_t wrs, uint32_t sges);
int gv_destroy_srq(struct gv_srq *srq);
int gv_post_srq(struct gv_srq *srq, const gv_recv *in, int n, int *posted);

struct gv_qp *gv_create_qp(void *pd, struct gv_cq *send, struct gv_cq *recv, struct gv_srq *srq, uint32_t type, struct gv_qp_cap *cap);
int gv_modify_qp(struct gv_qp *qp, struct gv_qp_attr *a, uint32_t mask);
int gv_query_qp(struct gv_qp *qp, struct gv_qp_attr *a, uint32_t mask);
int gv_destroy_qp(struct gv_qp *qp);
int gv_post_send(uintptr_t qp, const gv_send *in, int n, int *posted);
int gv_post_recv(uintptr_t qp, const gv_recv *in, int n, int *posted);

void *gv_open_xrcd(struct gv_context *c);
int gv_close_xrcd(struct gv_context *c, void *xrcd);
// gv_probe_dc returns 0 where Mellanox's library says that the device is one of its own, which have DC.
int gv_probe_dc(void *device);

void *gv_create_ah(void *pd, struct gv_ah_attr *a);
int gv_destroy_ah(void *ah);

// gv_async takes one asynchronous event: 0, or an errno (EAGAIN on a descriptor that does not block).
int gv_async(struct gv_context *c, uint32_t *type, uint64_t *object);
const char *gv_status(uint32_t status);
const char *gv_event_name(uint32_t type);

#endif
