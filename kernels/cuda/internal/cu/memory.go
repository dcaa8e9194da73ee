//go:build linux && cgo

package cu

/*
#include "shim.h"
*/
import "C"

import "unsafe"

// Granularity returns what the sizes of blocks are multiples of, in bytes. handles is a set of Handle bits, gdr asks for memory
// that network adapters can read and write.
func Granularity(ctx Context, ordinal, handles int, gdr bool) (int64, error) {
	var g C.size_t
	err := check("cuMemGetAllocationGranularity", C.cu_granularity(C.cu_ctx(ctx), C.int(ordinal), C.int(handles), flag(gdr), &g))
	return int64(g), err
}

// BlockCreate makes physical memory on a device and maps it for this device alone.
func BlockCreate(ctx Context, ordinal, handles int, gdr bool, bytes int64) (Block, error) {
	var b C.cu_block
	err := check("cuMemCreate", C.cu_block_create(C.cu_ctx(ctx), C.int(ordinal), C.int(handles), flag(gdr), C.size_t(bytes), &b))
	return Block{Ptr: pointer(&b.ptr), Bytes: bytes, handle: uint64(b.handle)}, err
}

// c returns the block as the shim knows it.
func (b *Block) c() C.cu_block {
	return C.cu_block{ptr: address(b.Ptr), handle: C.cu_handle(b.handle), size: C.size_t(b.Bytes)}
}

// BlockFree unmaps and frees it. Nothing may use it any more; the driver does not check.
func BlockFree(ctx Context, b Block) error {
	c := b.c()
	return check("cuMemUnmap", C.cu_block_free(C.cu_ctx(ctx), &c))
}

// BlockAccess maps it for another device too.
func BlockAccess(ctx Context, b Block, ordinal int) error {
	c := b.c()
	return check("cuMemSetAccess", C.cu_block_access(C.cu_ctx(ctx), &c, C.int(ordinal)))
}

// BlockExport returns a new file descriptor of it, which the caller closes. The memory must have been made with HandlePosix.
func BlockExport(ctx Context, b Block) (int, error) {
	c := b.c()
	fd := C.int(-1)
	err := check("cuMemExportToShareableHandle", C.cu_block_export(C.cu_ctx(ctx), &c, C.int(HandlePosix), unsafe.Pointer(&fd)))
	return int(fd), err
}

// BlockExportFabric returns a handle of it for processes on any host of the fabric. The memory must have been made with HandleFabric.
func BlockExportFabric(ctx Context, b Block) (handle [64]byte, err error) {
	c := b.c()
	err = check("cuMemExportToShareableHandle", C.cu_block_export(C.cu_ctx(ctx), &c, C.int(HandleFabric), unsafe.Pointer(&handle)))
	return handle, err
}

// BlockImport maps what BlockExport gave here or in another process for a device; fd stays the caller's. BlockFree undoes it.
func BlockImport(ctx Context, ordinal, fd int, bytes int64) (Block, error) {
	var b C.cu_block
	err := check("cuMemImportFromShareableHandle", C.cu_block_import_fd(C.cu_ctx(ctx), C.int(ordinal), C.int(fd), C.size_t(bytes), &b))
	return Block{Ptr: pointer(&b.ptr), Bytes: bytes, handle: uint64(b.handle)}, err
}

// BlockImportFabric is BlockImport of what BlockExportFabric gave.
func BlockImportFabric(ctx Context, ordinal int, handle [64]byte, bytes int64) (Block, error) {
	var b C.cu_block
	err := check("cuMemImportFromShareableHandle", C.cu_block_import_fabric(C.cu_ctx(ctx), C.int(ordinal), unsafe.Pointer(&handle), C.size_t(bytes), &b))
	return Block{Ptr: pointer(&b.ptr), Bytes: bytes, handle: uint64(b.handle)}, err
}

// DMABuf returns a new file descriptor of whole pages of device memory, for other devices, which the caller closes.
func DMABuf(ctx Context, p unsafe.Pointer, bytes int64) (int, error) {
	fd := C.int(-1)
	err := check("cuMemGetHandleForAddressRange", C.cu_dmabuf(C.cu_ctx(ctx), address(p), C.size_t(bytes), &fd))
	return int(fd), err
}

// FlushWrites returns when kernels on the context's device see what network adapters wrote to its memory before.
func FlushWrites(ctx Context) error {
	return check("cuFlushGPUDirectRDMAWrites", C.cu_flush_writes(C.cu_ctx(ctx)))
}

// PointerAttribute returns an attribute of a device address that is a number.
func PointerAttribute(ctx Context, attribute int, p unsafe.Pointer) (uint64, error) {
	var v C.uint64_t
	err := check("cuPointerGetAttribute", C.cu_pointer_attribute(C.cu_ctx(ctx), C.int(attribute), address(p), unsafe.Pointer(&v)))
	return uint64(v), err
}

// MemAlloc is the driver's ordinary allocation, as cudaMalloc makes it.
func MemAlloc(ctx Context, bytes int64) (unsafe.Pointer, error) {
	var p C.cu_ptr
	err := check("cuMemAlloc", C.cu_mem_alloc(C.cu_ctx(ctx), C.size_t(bytes), &p))
	return pointer(&p), err
}

// MemFree frees what MemAlloc gave. It waits for all kernels on the device.
func MemFree(ctx Context, p unsafe.Pointer) error {
	return check("cuMemFree", C.cu_mem_free(C.cu_ctx(ctx), address(p)))
}

// HostAlloc returns pinned host memory that the device can use too: where it is for the host, and for kernels.
func HostAlloc(ctx Context, bytes int64) (host, device unsafe.Pointer, err error) {
	var h unsafe.Pointer
	var p C.cu_ptr
	err = check("cuMemHostAlloc", C.cu_host_alloc(C.cu_ctx(ctx), C.size_t(bytes), &h, &p))
	return h, pointer(&p), err
}

// HostFree frees what HostAlloc gave, by its host address.
func HostFree(ctx Context, host unsafe.Pointer) error {
	return check("cuMemFreeHost", C.cu_host_free(C.cu_ctx(ctx), host))
}

// HostRegister pins ordinary host memory in whole pages, so that copies from and to it are the device's own work.
func HostRegister(ctx Context, host unsafe.Pointer, bytes int64) error {
	return check("cuMemHostRegister", C.cu_host_register(C.cu_ctx(ctx), host, C.size_t(bytes)))
}

// HostUnregister ends it.
func HostUnregister(ctx Context, host unsafe.Pointer) error {
	return check("cuMemHostUnregister", C.cu_host_unregister(C.cu_ctx(ctx), host))
}

// CopyRows queues a copy of equal blocks of bytes, each of which begins a pitch behind the one before.
func CopyRows(ctx Context, dst unsafe.Pointer, dstPitch int64, src unsafe.Pointer, srcPitch, bytes int64, rows int, s Stream) error {
	return check("cuMemcpy2DAsync", C.cu_copy_rows(C.cu_ctx(ctx), dst, C.size_t(dstPitch), src, C.size_t(srcPitch), C.size_t(bytes), C.size_t(rows), C.cu_stream(s)))
}

// CopyAsync queues a copy between any two addresses that the driver knows, or of ordinary host memory, which must stay in place
// until the stream has come so far; from pageable memory the call itself may wait.
func CopyAsync(ctx Context, dst, src unsafe.Pointer, bytes int64, s Stream) error {
	return check("cuMemcpyAsync", C.cu_copy(C.cu_ctx(ctx), dst, src, C.size_t(bytes), C.cu_stream(s)))
}

// SetAsync queues the setting of bytes to a value.
func SetAsync(ctx Context, dst unsafe.Pointer, value byte, bytes int64, s Stream) error {
	return check("cuMemsetD8Async", C.cu_set(C.cu_ctx(ctx), address(dst), C.uchar(value), C.size_t(bytes), C.cu_stream(s)))
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
