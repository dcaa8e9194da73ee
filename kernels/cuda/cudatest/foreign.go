package cudatest

import (
	"errors"
	"unsafe"

	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// Foreign is memory as CUDA's runtime allocates it, not by Alloc. free frees it, as a user's cudaFree does, which waits for all kernels.
func Foreign(d *cuda.Device, bytes int64) (p unsafe.Pointer, free func() error, err error) {
	ordinal := d.Info().Ordinal
	ctx, err := cu.PrimaryRetain(ordinal)
	if err != nil {
		return nil, nil, err
	}
	if p, err = cu.MemAlloc(ctx, bytes); err != nil {
		return nil, nil, errors.Join(err, cu.PrimaryRelease(ordinal))
	}
	return p, func() error { return errors.Join(cu.MemFree(ctx, p), cu.PrimaryRelease(ordinal)) }, nil
}
