//go:build linux && cgo

#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define BATCH 32

// X-list of what is called by name: result, name, parameters. The second list is of what a library may lack.
#define REQUIRED(X) \
	X(void **, get_device_list, (int *)) \
	X(void, free_device_list, (void **)) \
	X(const char *, get_device_name, (void *)) \
	X(uint64_t, get_device_guid, (void *)) \
	X(struct gv_context *, open_device, (void *)) \
	X(int, close_device, (struct gv_context *)) \
	X(int, query_device, (struct gv_context *, struct gv_device_attr *)) \
	X(int, query_port, (struct gv_context *, uint8_t, struct gv_port_attr *)) \
	X(int, query_gid, (struct gv_context *, uint8_t, int, struct gv_gid *)) \
	X(int, query_pkey, (struct gv_context *, uint8_t, int, uint16_t *)) \
	X(void *, alloc_pd, (struct gv_context *)) \
	X(int, dealloc_pd, (void *)) \
	X(struct gv_mr *, reg_mr, (void *, void *, size_t, int)) \
	X(int, dereg_mr, (struct gv_mr *)) \
	X(struct gv_channel *, create_comp_channel, (struct gv_context *)) \
	X(int, destroy_comp_channel, (struct gv_channel *)) \
	X(struct gv_cq *, create_cq, (struct gv_context *, int, void *, struct gv_channel *, int)) \
	X(int, resize_cq, (struct gv_cq *, int)) \
	X(int, destroy_cq, (struct gv_cq *)) \
	X(int, get_cq_event, (struct gv_channel *, struct gv_cq **, void **)) \
	X(void, ack_cq_events, (struct gv_cq *, unsigned)) \
	X(struct gv_srq *, create_srq, (void *, struct gv_srq_init *)) \
	X(int, destroy_srq, (struct gv_srq *)) \
	X(struct gv_qp *, create_qp, (void *, struct gv_qp_init *)) \
	X(int, modify_qp, (struct gv_qp *, struct gv_qp_attr *, int)) \
	X(int, query_qp, (struct gv_qp *, struct gv_qp_attr *, int, struct gv_qp_init *)) \
	X(int, destroy_qp, (struct gv_qp *)) \
	X(void *, create_ah, (void *, struct gv_ah_attr *)) \
	X(int, destroy_ah, (void *)) \
	X(int, get_async_event, (struct gv_context *, struct gv_event *)) \
	X(void, ack_async_event, (struct gv_event *)) \
	X(const char *, wc_status_str, (uint32_t)) \
	X(const char *, event_type_str, (uint32_t))
#define OPTIONAL(X) \
	X(struct gv_mr *, reg_mr_iova2, (void *, void *, size_t, uint64_t, unsigned)) \
	X(struct gv_mr *, reg_dmabuf_mr, (void *, uint64_t, size_t, uint64_t, int, int))

#define POINTER(result, name, parameters) static result (*f_##name) parameters;
REQUIRED(POINTER)
OPTIONAL(POINTER)
static long (*f_query_gid_table)(struct gv_context *, struct gv_gid_entry *, size_t, uint32_t, size_t);

static char why[512];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		const char *e = dlerror();
		snprintf(why, sizeof why, "%s", e ? e : "libibverbs.so.1: dlopen failed");
		return;
	}
#define MUST(result, name, parameters) \
	f_##name = (result (*) parameters)dlsym(lib, "ibv_" #name); \
	if (!f_##name && !why[0]) snprintf(why, sizeof why, "libibverbs.so.1 has no ibv_" #name);
	REQUIRED(MUST)
#define MAY(result, name, parameters) f_##name = (result (*) parameters)dlsym(lib, "ibv_" #name);
	OPTIONAL(MAY)
	f_query_gid_table = (long (*)(struct gv_context *, struct gv_gid_entry *, size_t, uint32_t, size_t))dlsym(lib, "_ibv_query_gid_table");
}

const char *gv_load(void) {
	pthread_once(&once, load);
	return why;
}

// failed turns "NULL and errno" or "-1 and errno" or an errno into an errno that is never 0.
static int failed(int r) {
	if (r == 0) return 0;
	if (r > 0) return r;
	return errno ? errno : EIO;
}

void **gv_device_list(int *n) { errno = 0; return f_get_device_list(n); }
void gv_free_device_list(void **list) { f_free_device_list(list); }
const char *gv_device_name(void *device) { return f_get_device_name(device); }
uint64_t gv_device_guid(void *device) { return __builtin_bswap64(f_get_device_guid(device)); }
struct gv_context *gv_open(void *device) { errno = 0; return f_open_device(device); }
int gv_close(struct gv_context *c) { return failed(f_close_device(c)); }
int gv_query_device(struct gv_context *c, struct gv_device_attr *a) { memset(a, 0, sizeof *a); return failed(f_query_device(c, a)); }
int gv_query_port(struct gv_context *c, int port, struct gv_port_attr *a) { memset(a, 0, sizeof *a); return failed(f_query_port(c, port, a)); }
int gv_query_gid(struct gv_context *c, int port, int index, struct gv_gid *g) { return failed(f_query_gid(c, port, index, g)); }
int gv_query_pkey(struct gv_context *c, int port, int index, uint16_t *pkey) {
	int r = failed(f_query_pkey(c, port, index, pkey));
	*pkey = __builtin_bswap16(*pkey);
	return r;
}

long gv_query_gids(struct gv_context *c, struct gv_gid_entry *e, long most) {
	return f_query_gid_table ? f_query_gid_table(c, e, most, 0, sizeof *e) : -ENOSYS;
}

void *gv_alloc_pd(struct gv_context *c) { errno = 0; return f_alloc_pd(c); }
int gv_dealloc_pd(void *pd) { return failed(f_dealloc_pd(pd)); }

struct gv_mr *gv_reg(void *pd, uint64_t addr, uint64_t bytes, uint64_t iova, uint32_t access, int *err) {
	errno = 0;
	struct gv_mr *mr = NULL;
	// Optional flags and another iova came together with ibv_reg_mr_iova2.
	if (f_reg_mr_iova2) mr = f_reg_mr_iova2(pd, (void *)(uintptr_t)addr, bytes, iova, access);
	else if (iova != addr) errno = EOPNOTSUPP;
	else mr = f_reg_mr(pd, (void *)(uintptr_t)addr, bytes, access & 0xfffff);
	*err = mr ? 0 : failed(-1);
	return mr;
}

struct gv_mr *gv_reg_dmabuf(void *pd, uint64_t offset, uint64_t bytes, uint64_t iova, int fd, uint32_t access, int *err) {
	errno = 0;
	struct gv_mr *mr = NULL;
	if (f_reg_dmabuf_mr) mr = f_reg_dmabuf_mr(pd, offset, bytes, iova, fd, access);
	else errno = EOPNOTSUPP;
	*err = mr ? 0 : failed(-1);
	return mr;
}

int gv_dereg(struct gv_mr *mr) { return failed(f_dereg_mr(mr)); }

struct gv_channel *gv_create_channel(struct gv_context *c) { errno = 0; return f_create_comp_channel(c); }
int gv_destroy_channel(struct gv_channel *ch) { return failed(f_destroy_comp_channel(ch)); }
struct gv_cq *gv_create_cq(struct gv_context *c, int entries, struct gv_channel *ch, int vector) {
	errno = 0;
	return f_create_cq(c, entries, NULL, ch, vector);
}
int gv_resize_cq(struct gv_cq *cq, int entries) { return failed(f_resize_cq(cq, entries)); }
int gv_destroy_cq(struct gv_cq *cq) { return failed(f_destroy_cq(cq)); }

// extended returns what lies before a context of a library that is new enough to have a field so many bytes before it, or NULL.
static struct gv_extended *extended(struct gv_context *c, size_t before) {
	if (c->compat != (void *)(uintptr_t)-1) return NULL;
	struct gv_extended *x = (struct gv_extended *)((char *)c - offsetof(struct gv_extended, context));
	return x->size >= sizeof(struct gv_context) + before ? x : NULL;
}
#define FIELD(f) (offsetof(struct gv_extended, context) - offsetof(struct gv_extended, f))

int gv_moderate(struct gv_cq *cq, uint16_t count, uint16_t period) {
	struct gv_extended *x = extended(cq->context, FIELD(modify_cq));
	if (!x || !x->modify_cq) return EOPNOTSUPP;
	struct gv_moderation m = {1, count, period};
	errno = 0;
	return failed(x->modify_cq(cq, &m));
}

void *gv_open_xrcd(struct gv_context *c) {
	struct gv_extended *x = extended(c, FIELD(open_xrcd));
	struct gv_xrcd_init init = {3, -1, O_CREAT};
	errno = 0;
	if (x && x->open_xrcd) return x->open_xrcd(c, &init);
	errno = EOPNOTSUPP;
	return NULL;
}

int gv_close_xrcd(struct gv_context *c, void *xrcd) {
	struct gv_extended *x = extended(c, FIELD(close_xrcd));
	return x && x->close_xrcd ? failed(x->close_xrcd(xrcd)) : EOPNOTSUPP;
}

int gv_probe_dc(void *device) {
	void *lib = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib) return EOPNOTSUPP;
	_Bool (*is)(void *) = (_Bool (*)(void *))dlsym(lib, "mlx5dv_is_supported");
	int r = is && is(device) ? 0 : EOPNOTSUPP;
	dlclose(lib);
	return r;
}

int gv_arm(struct gv_cq *cq, int solicited) { return failed(cq->context->ops.req_notify_cq(cq, solicited)); }

int gv_drain(struct gv_channel *ch, struct gv_cq *cq) {
	struct gv_cq *of;
	void *user;
	int n = 0;
	while (f_get_cq_event(ch, &of, &user) == 0) n++; // the descriptor does not block
	if (n) f_ack_cq_events(cq, n);
	return n;
}

int gv_poll(uintptr_t queue, gv_completion *out, int n) {
	struct gv_cq *cq = (struct gv_cq *)queue;
	struct gv_wc wc[BATCH];
	int got = cq->context->ops.poll_cq(cq, n < BATCH ? n : BATCH, wc);
	for (int i = 0; i < got; i++)
		out[i] = (gv_completion){wc[i].id, wc[i].status, wc[i].opcode, wc[i].vendor, wc[i].bytes,
			__builtin_bswap32(wc[i].imm), wc[i].qpn, wc[i].src_qpn, wc[i].flags};
	return got;
}

struct gv_srq *gv_create_srq(void *pd, uint32_t wrs, uint32_t sges) {
	struct gv_srq_init init = {NULL, wrs, sges, 0};
	errno = 0;
	return f_create_srq(pd, &init);
}
int gv_destroy_srq(struct gv_srq *srq) { return failed(f_destroy_srq(srq)); }

struct gv_qp *gv_create_qp(void *pd, struct gv_cq *send, struct gv_cq *recv, struct gv_srq *srq, uint32_t type, struct gv_qp_cap *cap) {
	struct gv_qp_init init = {NULL, send, recv, srq, *cap, type, 0};
	errno = 0;
	struct gv_qp *qp = f_create_qp(pd, &init);
	*cap = init.cap;
	return qp;
}
int gv_modify_qp(struct gv_qp *qp, struct gv_qp_attr *a, uint32_t mask) { errno = 0; return failed(f_modify_qp(qp, a, mask)); }
int gv_query_qp(struct gv_qp *qp, struct gv_qp_attr *a, uint32_t mask) {
	struct gv_qp_init init;
	errno = 0;
	return failed(f_query_qp(qp, a, mask, &init));
}
int gv_destroy_qp(struct gv_qp *qp) { return failed(f_destroy_qp(qp)); }

int gv_post_send(uintptr_t pair, const gv_send *in, int n, int *posted) {
	struct gv_qp *qp = (struct gv_qp *)pair;
	struct gv_send_wr wr[BATCH];
	struct gv_sge sge[BATCH][2];
	*posted = 0;
	while (n > 0) {
		int k = n < BATCH ? n : BATCH;
		for (int i = 0; i < k; i++) {
			sge[i][0] = (struct gv_sge){in[i].addr, in[i].bytes, in[i].lkey};
			sge[i][1] = (struct gv_sge){in[i].addr2, in[i].bytes2, in[i].lkey2};
			memset(&wr[i], 0, sizeof wr[i]);
			wr[i].id = in[i].id;
			wr[i].next = i + 1 < k ? &wr[i + 1] : NULL;
			wr[i].list = sge[i];
			wr[i].entries = (in[i].bytes > 0) + (in[i].bytes2 > 0);
			wr[i].opcode = in[i].opcode;
			wr[i].flags = in[i].flags;
			wr[i].imm = __builtin_bswap32(in[i].imm);
			switch (in[i].opcode) {
			case 2: case 3: // sends
				wr[i].wr.ud.ah = (struct gv_ah *)(uintptr_t)in[i].add;
				wr[i].wr.ud.qpn = in[i].qpn;
				wr[i].wr.ud.qkey = in[i].qkey;
				break;
			case 5: case 6: // atomics
				wr[i].wr.atomic.addr = in[i].remote;
				wr[i].wr.atomic.add = in[i].add;
				wr[i].wr.atomic.swap = in[i].swap;
				wr[i].wr.atomic.rkey = in[i].rkey;
				break;
			default:
				wr[i].wr.rdma.addr = in[i].remote;
				wr[i].wr.rdma.rkey = in[i].rkey;
			}
		}
		struct gv_send_wr *bad = NULL;
		errno = 0;
		int r = failed(qp->context->ops.post_send(qp, wr, &bad));
		if (r) {
			*posted += bad >= wr && bad < wr + k ? (int)(bad - wr) : 0;
			return r;
		}
		*posted += k;
		in += k;
		n -= k;
	}
	return 0;
}

static int recv_all(void *q, int (*post)(void *, struct gv_recv_wr *, struct gv_recv_wr **), const gv_recv *in, int n, int *posted) {
	struct gv_recv_wr wr[BATCH];
	struct gv_sge sge[BATCH];
	*posted = 0;
	while (n > 0) {
		int k = n < BATCH ? n : BATCH;
		for (int i = 0; i < k; i++) {
			sge[i] = (struct gv_sge){in[i].addr, in[i].bytes, in[i].lkey};
			wr[i] = (struct gv_recv_wr){in[i].id, i + 1 < k ? &wr[i + 1] : NULL, &sge[i], in[i].bytes > 0};
		}
		struct gv_recv_wr *bad = NULL;
		errno = 0;
		int r = failed(post(q, wr, &bad));
		if (r) {
			*posted += bad >= wr && bad < wr + k ? (int)(bad - wr) : 0;
			return r;
		}
		*posted += k;
		in += k;
		n -= k;
	}
	return 0;
}

static int to_qp(void *q, struct gv_recv_wr *wr, struct gv_recv_wr **bad) { return ((struct gv_qp *)q)->context->ops.post_recv(q, wr, bad); }
static int to_srq(void *q, struct gv_recv_wr *wr, struct gv_recv_wr **bad) { return ((struct gv_srq *)q)->context->ops.post_srq_recv(q, wr, bad); }

int gv_post_recv(uintptr_t qp, const gv_recv *in, int n, int *posted) { return recv_all((void *)qp, to_qp, in, n, posted); }
int gv_post_srq(struct gv_srq *srq, const gv_recv *in, int n, int *posted) { return recv_all(srq, to_srq, in, n, posted); }

void *gv_create_ah(void *pd, struct gv_ah_attr *a) { errno = 0; return f_create_ah(pd, a); }
int gv_destroy_ah(void *ah) { return failed(f_destroy_ah(ah)); }

int gv_async(struct gv_context *c, uint32_t *type, uint64_t *object) {
	struct gv_event e;
	memset(&e, 0, sizeof e);
	errno = 0;
	int r = failed(f_get_async_event(c, &e));
	if (r) return r;
	*type = e.type;
	*object = (uint64_t)(uintptr_t)e.element.object;
	f_ack_async_event(&e);
	return 0;
}

const char *gv_status(uint32_t status) { return f_wc_status_str(status); }
const char *gv_event_name(uint32_t type) { return f_event_type_str(type); }
