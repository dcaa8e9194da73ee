// Gloo's collectives, timed: gloo RANK RANKS DIRECTORY ADDRESS KIND PAGE CALLS WARM SIZE…
// The ranks meet by files in the directory, and listen at the address. Gloo has no reduce_scatter of this form.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "page.h"

static std::shared_ptr<gloo::Context> context;

static void sum(void *a, const void *b, const void *c, size_t n) { gloo::sum<float>(a, b, c, n); }

static void call(enum kind k, float *dst, float *src, size_t n) {
	static uint64_t slot = 1000;
	size_t block = n / ranks;
	switch (k) {
	case ALL_REDUCE: {
		gloo::AllreduceOptions o(context);
		o.setInput(src, n);
		o.setOutput(dst, n);
		o.setReduceFunction(gloo::AllreduceOptions::Func(sum));
		gloo::allreduce(o);
		break;
	}
	case ALL_GATHER: {
		gloo::AllgatherOptions o(context);
		o.setInput(src, block);
		o.setOutput(dst, n);
		gloo::allgather(o);
		break;
	}
	case BROADCAST: {
		gloo::BroadcastOptions o(context);
		o.setRoot(0);
		o.setOutput(dst, n);
		gloo::broadcast(o);
		break;
	}
	case ALLTOALL: {
		gloo::AlltoallOptions o(context);
		o.setInput(src, n);
		o.setOutput(dst, n);
		gloo::alltoall(o);
		break;
	}
	case SENDRECV: {
		auto out = context->createUnboundBuffer(src, n * sizeof(float));
		auto in = context->createUnboundBuffer(dst, n * sizeof(float));
		slot++;
		in->recv((rank + ranks - 1) % ranks, slot);
		out->send((rank + 1) % ranks, slot);
		out->waitSend();
		in->waitRecv();
		break;
	}
	default: exit(3);
	}
}

int main(int argc, char **argv) {
	if (argc < 10) return 2;
	rank = atoi(argv[1]), ranks = atoi(argv[2]);
	auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(argv[4]));
	auto c = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
	gloo::rendezvous::FileStore store(argv[3]);
	c->connectFullMesh(store, device);
	context = c;
	open_page(argv[6]);
	measure(kind_of(argv[5]), call, atoi(argv[7]), atoi(argv[8]), argc - 9, argv + 9);
	return 0;
}
