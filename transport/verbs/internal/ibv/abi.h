// The parts of libibverbs' binary interface that the binding uses, declared here so that it builds where no RDMA headers are
// installed. TestABI holds sizes and offsets against <infiniband/verbs.h>.
#ifndef GCCL_IBV_ABI_H
#define GCCL_IBV_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct gv_gid { uint64_t half[2]; };

struct gv_device_attr {
	char fw[64];
	uint64_t node_guid, image_guid, max_mr_size, page_sizes;
	uint32_t vendor, vendor_part, hw;
	int32_t max_qp, max_qp_wr;
	uint32_t caps;
	int32_t max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
	int32_t max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom;
	uint32_t atomic_cap;
	int32_t max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp;
	int32_t max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach;
	int32_t max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge;
	uint16_t max_pkeys;
	uint8_t ack_delay, ports;
};

struct gv_port_attr {
	uint32_t state, max_mtu, active_mtu;
	int32_t gids;
	uint32_t caps, max_msg, bad_pkeys, qkey_viols;
	uint16_t pkeys, lid, sm_lid;
	uint8_t lmc, max_vl, sm_sl, subnet_timeout, init_reply, width, speed, phys_state, link_layer, flags;
	uint16_t caps2;
};

struct gv_gid_entry {
	struct gv_gid gid;
	uint32_t index, port, type, netdev;
};

struct gv_qp_cap { uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_data; };

struct gv_qp_init {
	void *user;
	struct gv_cq *send_cq, *recv_cq;
	struct gv_srq *srq;
	struct gv_qp_cap cap;
	uint32_t type;
	int32_t signal_all;
};

struct gv_route {
	struct gv_gid gid;
	uint32_t flow;
	uint8_t index, hops, traffic;
};

struct gv_ah_attr {
	struct gv_route route;
	uint16_t lid;
	uint8_t sl, path_bits, rate, global, port;
};

struct gv_qp_attr {
	uint32_t state, current, mtu, migration, qkey, rq_psn, sq_psn, peer, access;
	struct gv_qp_cap cap;
	struct gv_ah_attr ah, alt_ah;
	uint16_t pkey, alt_pkey;
	uint8_t drain_notify, draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port, timeout, retry, rnr_retry, alt_port, alt_timeout;
	uint32_t rate;
};

struct gv_sge { uint64_t addr; uint32_t bytes, lkey; };

struct gv_send_wr {
	uint64_t id;
	struct gv_send_wr *next;
	struct gv_sge *list;
	int32_t entries;
	uint32_t opcode, flags, imm;
	union {
		struct { uint64_t addr; uint32_t rkey; } rdma;
		struct { uint64_t addr, add, swap; uint32_t rkey; } atomic;
		struct { struct gv_ah *ah; uint32_t qpn, qkey; } ud;
	} wr;
	uint32_t srqn;
	union {
		struct { void *window; uint32_t rkey; struct { void *region; uint64_t addr, length; uint32_t access; } info; } bind;
		struct { void *header; uint16_t bytes, mss; } tso;
	} other;
};

struct gv_recv_wr {
	uint64_t id;
	struct gv_recv_wr *next;
	struct gv_sge *list;
	int32_t entries;
};

struct gv_wc {
	uint64_t id;
	uint32_t status, opcode, vendor, bytes, imm, qpn, src_qpn, flags;
	uint16_t pkey, slid;
	uint8_t sl, path_bits;
};

struct gv_srq_init { void *user; uint32_t max_wr, max_sge, limit; };

struct gv_context;
struct gv_cq;
struct gv_qp;
struct gv_srq;

// The table of a provider's functions. Those that the library exports by name are only placeholders here.
struct gv_ops {
	void *before[11];
	int (*poll_cq)(struct gv_cq *, int, struct gv_wc *);
	int (*req_notify_cq)(struct gv_cq *, int);
	void *between[7];
	int (*post_srq_recv)(struct gv_srq *, struct gv_recv_wr *, struct gv_recv_wr **);
	void *middle[4];
	int (*post_send)(struct gv_qp *, struct gv_send_wr *, struct gv_send_wr **);
	int (*post_recv)(struct gv_qp *, struct gv_recv_wr *, struct gv_recv_wr **);
	void *after[5];
};

struct gv_context {
	void *device;
	struct gv_ops ops;
	int cmd_fd, async_fd, vectors;
	pthread_mutex_t mutex;
	void *compat;
};

// What newer libraries put before a context: the last fields of struct verbs_context. A context has them if its compat is all ones
// and size, which counts all of the struct, reaches as far as the field.
struct gv_extended {
	int (*modify_cq)(struct gv_cq *, void *);
	void *between[18];
	void *(*open_xrcd)(struct gv_context *, void *);
	int (*close_xrcd)(void *);
	uint64_t placeholder;
	size_t size;
	struct gv_context context;
};

struct gv_moderation {
	uint32_t mask;
	uint16_t count, period;
};

struct gv_xrcd_init {
	uint32_t mask;
	int fd, flags;
};

struct gv_channel { struct gv_context *context; int fd, refs; };

struct gv_mr {
	struct gv_context *context;
	void *pd, *addr;
	size_t bytes;
	uint32_t handle, lkey, rkey;
};

struct gv_cq {
	struct gv_context *context;
	struct gv_channel *channel;
	void *user;
	uint32_t handle;
	int entries;
};

struct gv_qp {
	struct gv_context *context;
	void *user, *pd;
	struct gv_cq *send_cq, *recv_cq;
	struct gv_srq *srq;
	uint32_t handle, number, state, type;
};

struct gv_srq { struct gv_context *context; };

struct gv_event {
	union { void *object; int port; } element;
	uint32_t type;
};

#endif
