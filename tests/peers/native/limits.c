// What the machine can do, by two processes on it: limits SIZE…
// Prints rows as the peers do: exchange (a line each way), copy (each copies the other's buffer), sum (each sums one half and stores it
// to both outputs, by ordinary and by non-temporal stores), socket (both ways at once over a loopback connection, spinning).
#define _GNU_SOURCE
#include "page.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#if defined __x86_64__
#include <immintrin.h>
#endif

static void *shared(size_t n) {
	void *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) die("mmap");
	memset(p, 1, n);
	return p;
}

struct line {
	uint64_t data, flag;
	char pad[112];
} __attribute__((aligned(128)));

static int calls_of(size_t n) { return n <= 4096 ? 2000 : n <= 1 << 18 ? 300 : n <= 1 << 22 ? 60 : 9; }

int main(int argc, char **argv) {
	size_t most = 4096;
	for (int i = 1; i < argc; i++)
		if (strtoull(argv[i], 0, 10) > most) most = strtoull(argv[i], 0, 10);
	float *in[2] = {shared(most), shared(most)}, *out[2] = {shared(most), shared(most)};
	struct line *lines = shared(4 * sizeof *lines); // two each way, in turn
	char name[64];
	snprintf(name, sizeof name, "/dev/shm/limits-%d", getpid());
	ranks = 2;

	int listener = socket(AF_INET, SOCK_STREAM, 0), fd;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof at;
	if (bind(listener, (void *)&at, length) || listen(listener, 1) || getsockname(listener, (void *)&at, &length)) die("socket");
	pid_t child = fork();
	rank = child == 0;
	open_page(name);
	cpu_set_t cpu;
	CPU_ZERO(&cpu);
	CPU_SET(rank, &cpu);
	sched_setaffinity(0, sizeof cpu, &cpu);
	if (rank) {
		fd = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(fd, (void *)&at, sizeof at)) die("connect");
	} else
		fd = accept(listener, 0, 0);
	int on = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	fcntl(fd, F_SETFL, O_NONBLOCK);

	int other = 1 - rank, calls = 2000;
	for (int i = -100; i < calls; i++) {
		uint64_t turn = i + 101, k = turn % 2;
		struct line *mine = lines + 2 * rank + k, *theirs = lines + 2 * other + k;
		meet();
		int64_t began = now();
		mine->data = turn * 3;
		__atomic_store_n(&mine->flag, turn, __ATOMIC_RELEASE);
		while (__atomic_load_n(&theirs->flag, __ATOMIC_ACQUIRE) != turn) pause_cpu();
		volatile uint64_t got = theirs->data;
		(void)got;
		if (i >= 0) page->times[rank][i] = now() - began;
	}
	meet();
	report("exchange", 8, calls, 0);
	meet();

	for (int s = 1; s < argc; s++) {
		size_t n = strtoull(argv[s], 0, 10), half = n / 2;
		calls = calls_of(n);
		for (int i = -3; i < calls; i++) {
			memset(in[rank], i + 4, n);
			meet();
			int64_t began = now();
			memcpy(out[rank], in[other], n);
			meet();
			if (i >= 0) page->times[rank][i] = now() - began;
		}
		meet();
		report("copy", n, calls, 0);
		meet();
		for (int streaming = 0; streaming < 2; streaming++) {
			for (int i = -3; i < calls; i++) {
				for (size_t j = 0; j < n / 4; j++) in[rank][j] = i + rank;
				meet();
				int64_t began = now();
				float *a = in[0] + rank * half / 4, *b = in[1] + rank * half / 4, *x = out[0] + rank * half / 4, *y = out[1] + rank * half / 4;
				size_t j = 0;
#if defined __AVX__
				for (; streaming && j + 8 <= half / 4; j += 8) {
					__m256 v = _mm256_add_ps(_mm256_loadu_ps(a + j), _mm256_loadu_ps(b + j));
					_mm256_stream_ps(x + j, v), _mm256_stream_ps(y + j, v);
				}
				if (streaming) _mm_sfence();
				for (; j + 8 <= half / 4; j += 8) {
					__m256 v = _mm256_add_ps(_mm256_loadu_ps(a + j), _mm256_loadu_ps(b + j));
					_mm256_storeu_ps(x + j, v), _mm256_storeu_ps(y + j, v);
				}
#endif
				for (; j < half / 4; j++) x[j] = y[j] = a[j] + b[j];
				meet();
				if (i >= 0) page->times[rank][i] = now() - began;
			}
			long wrong = 0;
			for (size_t j = 0; j < n / 4; j++) wrong += out[rank][j] != 2 * (calls - 1) + 1;
			meet();
			report(streaming ? "sum_streaming" : "sum", n, calls, wrong);
			meet();
		}
		for (int i = -3; i < calls; i++) {
			meet();
			int64_t began = now();
			for (size_t sent = 0, got = 0; sent < n || got < n;) {
				if (sent < n) {
					size_t piece = n - sent < 1 << 19 ? n - sent : 1 << 19;
					ssize_t k = write(fd, (char *)in[rank] + sent, piece);
					if (k > 0) sent += k;
					else if (errno != EAGAIN) die("write");
				}
				if (got < n) {
					ssize_t k = read(fd, (char *)out[rank] + got, n - got);
					if (k > 0) got += k;
					else if (k == 0 || errno != EAGAIN) die("read");
				}
			}
			if (i >= 0) page->times[rank][i] = now() - began;
		}
		meet();
		report("socket", n, calls, 0);
		meet();
	}
	unlink(name);
	if (!rank) wait(0);
	return 0;
}
