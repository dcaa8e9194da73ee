// What every peer's benchmark shares: a page of memory on which ranks meet before a timed call, the times, the figures, and the data.
// It is the way gccl's own benchmark measures: inputs are rewritten, the ranks meet, the call is timed on each, the slowest counts.
#pragma once
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SEATS = 64, MOST = 1 << 14 };

struct seat {
	uint64_t at;
	char pad[56];
};

struct page {
	struct seat seats[SEATS];
	int64_t times[SEATS][MOST];
};

static struct page *page;
static int rank, ranks, crowded;
static uint64_t meetings;

static void die(const char *what) {
	perror(what);
	exit(1);
}

// open_page maps the page, a file of zeros that is not there yet or that another rank has made.
static void open_page(const char *path) {
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, sizeof *page)) die(path);
	page = (struct page *)mmap(0, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED) die("mmap");
	close(fd);
	crowded = ranks > sysconf(_SC_NPROCESSORS_ONLN);
}

static inline void pause_cpu(void) {
#if defined __x86_64__
	__builtin_ia32_pause();
#elif defined __aarch64__
	__asm__ volatile("isb");
#endif
}

// meet returns when all ranks have called it as often.
static void meet(void) {
	__atomic_store_n(&page->seats[rank].at, ++meetings, __ATOMIC_RELEASE);
	for (int r = 0; r < ranks; r++)
		for (int polls = 0; __atomic_load_n(&page->seats[r].at, __ATOMIC_ACQUIRE) < meetings;)
			if (crowded || ++polls > 64) {
				sched_yield();
				polls = 0;
			} else
				pause_cpu();
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

// report prints a row: kind, bytes, median and 99th percentile in µs of the slowest rank's times, elements that were wrong, calls.
static void report(const char *kind, size_t bytes, int calls, long wrong) {
	static int64_t slowest[MOST];
	if (rank) return;
	for (int i = 0; i < calls; i++) {
		slowest[i] = 0;
		for (int r = 0; r < ranks; r++)
			if (page->times[r][i] > slowest[i]) slowest[i] = page->times[r][i];
	}
	qsort(slowest, calls, sizeof *slowest, ascending);
	printf("%s %zu %.3f %.3f %ld %d\n", kind, bytes, slowest[calls / 2] / 1e3, slowest[(calls * 99) / 100] / 1e3, wrong, calls);
	fflush(stdout);
}

// value is element i of what a rank gives. Sums of a few are exact.
static inline float value(int r, size_t i) { return (float)((i * 7 + r * 13 + 1) % 61); }

// kinds, with what a rank gives and gets, in elements, of a call whose larger buffer has n.
enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALLTOALL, SENDRECV, KINDS };
static const char *const kind_names[KINDS] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv"};

static size_t gives(enum kind k, size_t n) { return k == ALL_GATHER ? n / ranks : n; }
static size_t gets(enum kind k, size_t n) { return k == REDUCE_SCATTER ? n / ranks : n; }

// expected is element i of what this rank gets.
static float expected(enum kind k, size_t n, size_t i) {
	size_t block = n / ranks;
	float sum = 0;
	switch (k) {
	case ALL_REDUCE:
	case REDUCE_SCATTER:
		for (int r = 0; r < ranks; r++) sum += value(r, i + (k == ALL_REDUCE ? 0 : rank * block));
		return sum;
	case ALL_GATHER: return value(i / block, i % block);
	case BROADCAST: return value(0, i);
	case ALLTOALL: return value(i / block, rank * block + i % block);
	default: return value((rank + ranks - 1) % ranks, i);
	}
}

typedef void (*operation)(enum kind k, float *dst, float *src, size_t n);

// measure times calls of each size, after some that it does not time, and checks the first.
static void measure(enum kind k, operation call, int calls, int warm, int sizes, char **size) {
	if (calls < 1 || calls > MOST) calls = MOST;
	if (warm < 1) warm = 1;
	for (int s = 0; s < sizes; s++) {
		size_t n = strtoull(size[s], 0, 10) / sizeof(float);
		size_t in = gives(k, n), out = gets(k, n);
		float *src = (float *)malloc(in * sizeof *src), *dst = (float *)malloc(out * sizeof *dst), *pattern = (float *)malloc(in * sizeof *pattern);
		if (!src || !dst || !pattern) die("malloc");
		for (size_t i = 0; i < in; i++) pattern[i] = value(rank, i);
		memset(dst, 0xff, out * sizeof *dst);
		long wrong = 0;
		for (int i = -warm; i < calls; i++) {
			memcpy(k == BROADCAST && rank == 0 ? dst : src, pattern, in * sizeof *src); // a broadcast is in place
			if (i == -warm && k == BROADCAST && rank) memset(dst, 0xff, out * sizeof *dst);
			meet();
			int64_t began = now();
			call(k, dst, src, n);
			int64_t took = now() - began;
			if (i >= 0) page->times[rank][i] = took;
			if (i == -warm)
				for (size_t j = 0; j < out; j++) wrong += dst[j] != expected(k, n, j);
		}
		if (wrong) fprintf(stderr, "rank %d: %ld of %zu elements of %s are wrong\n", rank, wrong, out, kind_names[k]);
		meet();
		report(kind_names[k], n * sizeof(float), calls, wrong);
		meet();
		free(src), free(dst), free(pattern);
	}
}

static enum kind kind_of(const char *name) {
	for (int k = 0; k < KINDS; k++)
		if (!strcmp(name, kind_names[k])) return (enum kind)k;
	fprintf(stderr, "no kind %s\n", name);
	exit(2);
}
