// The CUDA driver as gccl calls it. Every call but those of the loader sets the context it is given, makes one driver call (or
// one fixed sequence of them) and puts back the context that the thread had, if any, so that it may come from any thread. The types are
// the driver's own, by their sizes: no header of CUDA's is needed.
#ifndef GCCL_CU_SHIM_H
#define GCCL_CU_SHIM_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result; // CUresult
typedef uintptr_t cu_ctx, cu_module, cu_fn, cu_stream, cu_event, cu_graph, cu_node, cu_exec; // pointers, opaque here
typedef uint64_t cu_ptr;    // CUdeviceptr
typedef uint64_t cu_handle; // CUmemGenericAllocationHandle

// cu_missing is no CUresult: the driver is too old for the call.
#define cu_missing (-1)

// Loads the library and resolves its functions. Returns 0, or 1 with a text that says what is missing.
int cu_load(const char *library, char *why, size_t room);

cu_result cu_init(void);
cu_result cu_driver_version(int *version);
const char *cu_error_name(cu_result r);
const char *cu_error_string(cu_result r);

cu_result cu_device_count(int *n);
cu_result cu_device_name(int ordinal, char *name, int room);
cu_result cu_device_attribute(int ordinal, int attribute, int *value);
cu_result cu_device_uuid(int ordinal, unsigned char uuid[16]);
cu_result cu_can_access_peer(int ordinal, int peer, int *can);
cu_result cu_peer_attribute(int ordinal, int peer, int attribute, int *value);
cu_result cu_primary_retain(int ordinal, cu_ctx *ctx);
cu_result cu_primary_release(int ordinal);
cu_result cu_enable_peer(cu_ctx ctx, cu_ctx peer);
cu_result cu_mem_info(cu_ctx ctx, size_t *available, size_t *total);
cu_result cu_ctx_sync(cu_ctx ctx);

cu_result cu_module_load(cu_ctx ctx, const void *image, char *log, unsigned room, cu_module *m);
cu_result cu_module_unload(cu_ctx ctx, cu_module m);
cu_result cu_module_function(cu_ctx ctx, cu_module m, const char *name, cu_fn *f);
cu_result cu_function_attribute(cu_ctx ctx, cu_fn f, int attribute, int *value);
cu_result cu_occupancy(cu_ctx ctx, cu_fn f, int threads, int *blocks);

// Physical memory of a device, mapped and accessible there. size must be a multiple of the granularity.
typedef struct {
	cu_ptr ptr;
	cu_handle handle;
	size_t size;
} cu_block;
cu_result cu_granularity(cu_ctx ctx, int ordinal, int handles, int gdr, size_t *granularity);
cu_result cu_block_create(cu_ctx ctx, int ordinal, int handles, int gdr, size_t size, cu_block *b);
cu_result cu_block_free(cu_ctx ctx, const cu_block *b);
cu_result cu_block_access(cu_ctx ctx, const cu_block *b, int ordinal);
cu_result cu_block_export(cu_ctx ctx, const cu_block *b, int kind, void *handle);
cu_result cu_block_import_fd(cu_ctx ctx, int ordinal, int fd, size_t size, cu_block *b);
cu_result cu_block_import_fabric(cu_ctx ctx, int ordinal, const void *handle, size_t size, cu_block *b);
cu_result cu_dmabuf(cu_ctx ctx, cu_ptr p, size_t size, int *fd);
cu_result cu_flush_writes(cu_ctx ctx);
cu_result cu_pointer_attribute(cu_ctx ctx, int attribute, cu_ptr p, void *value);
cu_result cu_mem_alloc(cu_ctx ctx, size_t size, cu_ptr *p);
cu_result cu_mem_free(cu_ctx ctx, cu_ptr p);
cu_result cu_host_alloc(cu_ctx ctx, size_t size, void **host, cu_ptr *p);
cu_result cu_host_free(cu_ctx ctx, void *host);
cu_result cu_host_register(cu_ctx ctx, void *host, size_t size);
cu_result cu_host_unregister(cu_ctx ctx, void *host);
cu_result cu_copy(cu_ctx ctx, void *dst, const void *src, size_t size, cu_stream s);
cu_result cu_copy_rows(cu_ctx ctx, void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height, cu_stream s);
cu_result cu_set(cu_ctx ctx, cu_ptr dst, unsigned char value, size_t size, cu_stream s);

cu_result cu_stream_create(cu_ctx ctx, int high_priority, cu_stream *s);
cu_result cu_stream_destroy(cu_ctx ctx, cu_stream s);
cu_result cu_stream_sync(cu_ctx ctx, cu_stream s);
cu_result cu_stream_query(cu_ctx ctx, cu_stream s);
cu_result cu_stream_capturing(cu_ctx ctx, cu_stream s, int *status, uint64_t *id); // id: see cu_waits; 0 in a capture
cu_result cu_stream_write(cu_ctx ctx, cu_stream s, cu_ptr p, uint32_t value);
cu_result cu_stream_until(cu_ctx ctx, cu_stream s, cu_ptr p, uint32_t value);
cu_result cu_event_create(cu_ctx ctx, int timing, cu_event *e);
cu_result cu_event_destroy(cu_ctx ctx, cu_event e);
cu_result cu_event_record(cu_ctx ctx, cu_event e, cu_stream s);
cu_result cu_event_sync(cu_ctx ctx, cu_event e);
cu_result cu_event_query(cu_ctx ctx, cu_event e);
cu_result cu_event_elapsed(cu_ctx ctx, cu_event from, cu_event to, float *ms);
cu_result cu_stream_wait(cu_ctx ctx, cu_stream s, cu_event e);

cu_result cu_capture_begin(cu_ctx ctx, cu_stream s);
cu_result cu_capture_end(cu_ctx ctx, cu_stream s, cu_graph *g);
cu_result cu_graph_instantiate(cu_ctx ctx, cu_graph g, cu_exec *e);
cu_result cu_graph_destroy(cu_ctx ctx, cu_graph g);
cu_result cu_graph_launch(cu_ctx ctx, cu_exec e, cu_stream s);
cu_result cu_exec_destroy(cu_ctx ctx, cu_exec e);

// One kernel launch. Its one argument lies at args + i * stride, where i is its number, and is copied before the call returns.
typedef struct {
	cu_fn fn;
	unsigned columns, rows, threads;
	int cooperative;
	int overlaps; // it may begin before the kernel ahead of it has ended, for whose end it waits by itself
	cu_exec exec; // of cu_prepare, by which it is launched unless it is captured; 0: by itself
	cu_node node;
	int bind; // exec has to be told what it launches; 0 once it has been
} cu_launch;

// Launches kernels one after the other on a stream, after all that was queued before on n other streams, which wait for the last
// of them. before holds n events, after is one more; they may be used again at once. Streams equal to on are passed over.
cu_result cu_launch_joined(cu_ctx ctx, cu_launch *launches, int count, const void *args, size_t stride, cu_stream on, cu_stream const *others, int n, cu_event const *before, cu_event after);

// Makes n executable graphs of one kernel, each of which may be told to launch another of the same attributes, with all the memory that they
// will ever need. It may wait for all work of the GPU.
cu_result cu_prepare(cu_ctx ctx, const cu_launch *l, const void *args, int n, cu_graph *g, cu_node *node, cu_exec *execs);

// Events that a launch comes behind, which may be 0; where it is on stream number on, done is passed over. Numbers tell streams apart for the life
// of the process, as their handles do not, and 0 is no stream's.
typedef struct {
	cu_event done, also;
	uint64_t on;
} cu_waits;

// Launches one kernel so, or none, after these events, records done behind it, and says the number of the stream. In a capture it does none of that.
cu_result cu_launch_after(cu_ctx ctx, cu_launch *l, const void *args, cu_stream on, cu_stream const *others, int n, cu_event const *before, cu_event after, cu_waits const *w, cu_event done, int *captured, uint64_t *id);

#endif
