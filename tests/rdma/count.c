// count.c: an auditor of the dynamic linker (LD_AUDIT, rtld-audit(7)) that counts what a process asks of its RDMA devices, whether it is
// linked with libibverbs or opens it by name. Posts and polls are calls by pointers of the device's context, which it replaces. The
// counts are in the file COUNTS.<pid>, where COUNTS is an environment variable, 64 bits each: calls that post to send queues, and requests
// so posted; the same of receive queues; polls that found something, and the completions that they found.
#define _GNU_SOURCE
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
	uint64_t post_sends, sends, post_receives, receives, polls, completions;
} *count;
static struct ibv_context *(*open_device)(struct ibv_device *);
static struct ibv_context_ops ops; // the device's own

#define ADD(what, n) __atomic_fetch_add(&count->what, n, __ATOMIC_RELAXED)

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
	ADD(post_sends, 1);
	for (struct ibv_send_wr *w = wr; w; w = w->next) ADD(sends, 1);
	return ops.post_send(qp, wr, bad);
}
static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
	ADD(post_receives, 1);
	for (struct ibv_recv_wr *w = wr; w; w = w->next) ADD(receives, 1);
	return ops.post_recv(qp, wr, bad);
}
static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc) {
	int n = ops.poll_cq(cq, most, wc);
	if (n > 0) ADD(polls, 1), ADD(completions, n);
	return n;
}

static struct ibv_context *counted(struct ibv_device *device) {
	struct ibv_context *c = open_device(device);
	if (!c) return c;
	if (!count) {
		char path[4096];
		snprintf(path, sizeof path, "%s.%d", getenv("COUNTS"), getpid());
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		count = fd < 0 || ftruncate(fd, sizeof *count) ? MAP_FAILED : mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (count == MAP_FAILED) {
			perror(path);
			exit(1);
		}
		close(fd);
	}
	ops = c->ops;
	c->ops.post_send = post_send, c->ops.post_recv = post_recv, c->ops.poll_cq = poll_cq;
	return c;
}

unsigned la_version(unsigned version) { return version; }
unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) { return LA_FLG_BINDTO | LA_FLG_BINDFROM; }
uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned index, uintptr_t *from, uintptr_t *to, unsigned *flags, const char *name) {
	if (strcmp(name, "ibv_open_device") != 0) return symbol->st_value;
	open_device = (struct ibv_context * (*)(struct ibv_device *)) symbol->st_value;
	return (uintptr_t)counted;
}
