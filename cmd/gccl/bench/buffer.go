package bench

import (
	"bytes"
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// Memory says what buffers are.
type Memory string

// The kinds of memory.
const (
	MemoryAlloc Memory = "alloc" // comm.Alloc: ranks of the host can read each other's
	MemorySlice Memory = "slice" // ordinary Go slices
)

// ParseMemory returns the memory of that name.
func ParseMemory(s string) (Memory, error) {
	switch m := Memory(s); m {
	case MemoryAlloc, MemorySlice:
		return m, nil
	}
	return "", fmt.Errorf("%q is no kind of memory; want alloc or slice", s)
}

// Bytes around the data of a buffer. The front one keeps the data on a page of its own.
const (
	front = 4096
	back  = 64
	guard = 0xC7 // what a canary is made of
)

// buffer is memory for messages of up to a number of bytes, with canaries on both sides of the data.
type buffer struct {
	all  []byte
	free func() error
}

// newBuffer returns a buffer for n bytes of data. The caller frees it.
func newBuffer(c *comm.Comm, memory Memory, n int64) (*buffer, error) {
	total := front + n + back
	if memory == MemorySlice {
		return &buffer{make([]byte, total), func() error { return nil }}, nil
	}
	m, err := c.Alloc(total)
	if err != nil {
		return nil, fmt.Errorf("memory for %s of data: %w", FormatSize(n), err)
	}
	return &buffer{unsafe.Slice((*byte)(m.Ptr), total), func() error { return c.Free(m) }}, nil
}

// data returns the first n bytes of the data.
func (b *buffer) data(n int64) []byte { return b.all[front : front+n : front+n] }

// poison overwrites n bytes of data with what no result is likely to be, and sets the canaries
// around them.
func (b *buffer) poison(n int64) {
	d := b.data(n)
	for i := range d {
		d[i] = 0xA5
	}
	b.guard(n)
}

// guard sets the canaries around n bytes of data.
func (b *buffer) guard(n int64) {
	copy(b.all[front-back:front], canary)
	copy(b.all[front+n:front+n+back], canary)
}

// intact returns "" when the canaries around n bytes of data live, and otherwise which doesn't.
func (b *buffer) intact(n int64) string {
	switch {
	case !bytes.Equal(b.all[front-back:front], canary):
		return "before"
	case !bytes.Equal(b.all[front+n:front+n+back], canary):
		return "behind"
	}
	return ""
}

var canary = bytes.Repeat([]byte{guard}, back)

// memOf returns b as a call's memory, borrowed from b.
func memOf(b []byte) kernels.Mem {
	return kernels.Mem{Ptr: unsafe.Pointer(unsafe.SliceData(b)), Bytes: int64(len(b))}
}
