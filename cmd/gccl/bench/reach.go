package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// reach is two ranks' registered memory, of which rank 0 uses the peer's by one-sided operations.
type reach struct {
	end    *linkEnd
	one    transport.OneSided
	bytes  int    // of an operation
	memory []byte // of the host's; with a GPU it holds what look fetches
	gpu    *cuda.Device
	used   kernels.Mem // by operations: memory, or as much of the GPU's
	region transport.Region
	window transport.Window
	done   uint64 // operations
}

// newReach registers memory at both ends, of the GPU if there is one. Rank 1's has other bytes than rank 0's.
func newReach(ctx context.Context, s bootstrap.Session, end *linkEnd, c transport.Conn, gpu *cuda.Device, n int) (r *reach, err error) {
	one, can := c.(transport.OneSided)
	registrar, may := end.e.(transport.Registrar)
	if !can || !may {
		return nil, fmt.Errorf("%s has no one-sided operations: %w", end.e.Name(), errors.ErrUnsupported)
	}
	r = &reach{end: end, one: one, bytes: n, gpu: gpu}
	page := unix.Getpagesize()
	if r.memory, err = unix.Mmap(-1, 0, (n+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	for i := range r.memory {
		if !end.first {
			r.memory[i] = byte(i*7 + 1)
		}
	}
	r.used = kernels.MemOf(r.memory)
	if gpu != nil {
		if r.used, err = gpu.Alloc(int64(len(r.memory))); err != nil {
			return r, err
		}
	}
	if err = r.fill(); err != nil {
		return r, err
	}
	if r.region, err = registrar.Register(r.used); err != nil {
		return r, err
	}
	token, err := r.region.Token()
	if err != nil {
		return r, err
	}
	tokens, err := s.AllGather(ctx, token)
	if err != nil {
		return r, err
	}
	r.window, err = one.Window(tokens[1-s.Rank()])
	return r, err
}

func (r *reach) close() error {
	var errs []error
	if r.region != nil {
		errs = append(errs, r.region.Close())
	}
	if r.gpu != nil && r.used.Bytes > 0 {
		errs = append(errs, r.gpu.Free(r.used))
	}
	return errors.Join(append(errs, unix.Munmap(r.memory))...)
}

// fill makes the memory that operations use what memory is, and look the reverse.
func (r *reach) fill() error { return r.copy(r.used, kernels.MemOf(r.memory)) }
func (r *reach) look() error { return r.copy(kernels.MemOf(r.memory), r.used) }

func (r *reach) copy(dst, src kernels.Mem) error {
	if r.gpu == nil {
		return nil
	}
	return r.gpu.CopyNow(dst.Ptr, src.Ptr, int64(len(r.memory)))
}

// peer is all that rank 1 does: it waits.
func (r *reach) peer() (string, error) { return "", r.end.receive(make([]byte, 1)) }

// farewell lets rank 1 go on.
func (r *reach) farewell() error { return r.end.send(make([]byte, 1)) }

// reads reads the peer's memory so many times, as much at once as there is room for, and looks at what it got.
func (r *reach) reads(times int) (string, error) {
	if times == 0 {
		return "", nil
	}
	if !r.end.first {
		return r.peer()
	}
	clear(r.memory)
	if err := r.fill(); err != nil {
		return "", err
	}
	before := r.done
	line, err := r.end.flow(times, r.bytes, func() (bool, error) {
		return r.one.Get(r.region, 0, r.window, 0, r.bytes)
	}, func() (n uint64, err error) {
		r.done, err = r.one.Performed()
		return r.done - before, err
	}, func() error { return nil })
	if err == nil {
		err = r.look()
	}
	if err != nil {
		return "", err
	}
	for i, v := range r.memory[:r.bytes] {
		if v != byte(i*7+1) {
			return "", fmt.Errorf("byte %d that was read is %#x, want %#x", i, v, byte(i*7+1))
		}
	}
	return line, r.farewell()
}

// atomics adds 1 to a number of the peer's so many times, one at a time, and looks at what was there before each.
func (r *reach) atomics(times int) (string, error) {
	if times == 0 {
		return "", nil
	}
	if !r.end.first {
		return r.peer()
	}
	us := make([]float64, 0, times)
	var first uint64
	start := time.Now()
	for k := range times {
		begin := func() (bool, error) { return r.one.FetchAdd(r.region, 0, r.window, 0, 1) }
		if err := errors.Join(r.end.ended(k), r.end.until(begin)); err != nil {
			return "", err
		}
		want := r.done + 1
		if err := r.end.until(func() (_ bool, err error) {
			r.done, err = r.one.Performed()
			return r.done == want, err
		}); err != nil {
			return "", err
		}
		now := time.Now()
		us = append(us, float64(now.Sub(start).Nanoseconds())/1000)
		start = now
		if r.gpu != nil {
			if err := r.look(); err != nil {
				return "", err
			}
			start = time.Now()
		}
		had := binary.NativeEndian.Uint64(r.memory)
		if k == 0 {
			first = had
		}
		if had != first+uint64(k) {
			return "", fmt.Errorf("before addition %d there was %d, want %d", k, had, first+uint64(k))
		}
	}
	return latencies(8, us), r.farewell()
}
