// MPI's collectives, timed: mpi KIND PAGE CALLS WARM SIZE…
#include "page.h"

#include <mpi.h>

static void call(enum kind k, float *dst, float *src, size_t n) {
	int block = n / ranks, all = n;
	switch (k) {
	case ALL_REDUCE: MPI_Allreduce(src, dst, all, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
	case ALL_GATHER: MPI_Allgather(src, block, MPI_FLOAT, dst, block, MPI_FLOAT, MPI_COMM_WORLD); break;
	case REDUCE_SCATTER: MPI_Reduce_scatter_block(src, dst, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
	case BROADCAST: MPI_Bcast(dst, all, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
	case ALLTOALL: MPI_Alltoall(src, block, MPI_FLOAT, dst, block, MPI_FLOAT, MPI_COMM_WORLD); break;
	default: MPI_Sendrecv(src, all, MPI_FLOAT, (rank + 1) % ranks, 0, dst, all, MPI_FLOAT, (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
}

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 6 || ranks > SEATS) return 2;
	open_page(argv[2]);
	measure(kind_of(argv[1]), call, atoi(argv[3]), atoi(argv[4]), argc - 5, argv + 5);
	MPI_Finalize();
	return 0;
}
