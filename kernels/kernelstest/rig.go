package kernelstest

import (
	"bytes"
	"fmt"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// A rig is data for kernels of one type and number of sources, and room to lay it out in.
type rig struct {
	dtype    kernels.DType
	data     [][]byte // the sources' elements
	arenas   [][]byte // one per source and then the destination's, each on an address that is a multiple of 64
	wanted   [][]byte // what the arenas must hold after the run
	canaries []byte   // an arena of them
}

// Canaries before and after each buffer.
const (
	margin = 64
	canary = 0xA5
)

func newRig(d kernels.DType, nsrc int) *rig {
	data := make([][]byte, nsrc)
	for k := range data {
		data[k] = Random(d, lengths()[0], uint64(k))
	}
	return rigOf(d, data)
}

func rigOf(d kernels.DType, data [][]byte) *rig {
	size := margin + 64 + len(data[0]) + margin
	r := &rig{dtype: d, data: data, canaries: bytes.Repeat([]byte{canary}, size)}
	for range len(data) + 1 {
		r.arenas = append(r.arenas, aligned(size))
		r.wanted = append(r.wanted, make([]byte, size))
	}
	return r
}

func aligned(n int) []byte {
	room := make([]byte, n+64)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(room))) % 64
	return room[skip:][:n:n]
}

// check lays the sources out, runs the kernel, and compares everything with what must be: the
// destination with the first elements of want, sources and canaries with what they were.
func (r *rig) check(t *testing.T, l layout, want []byte, run func(dst unsafe.Pointer, srcs []unsafe.Pointer)) {
	t.Helper()
	size := r.dtype.Size()
	n := l.length * size
	at := func(k int) int { return margin + (l.offset+3*(k+1)*size)%64 }
	pointers := make([]unsafe.Pointer, len(r.data))
	for k, src := range r.data {
		copy(r.lay(k, at(k), n), src)
		pointers[k] = unsafe.Pointer(&r.arenas[k][at(k)])
	}
	target, start := len(r.data), margin+l.offset
	if l.place >= 0 {
		target, start = l.place, at(l.place)
	} else {
		r.lay(target, start, n)
	}
	for k, arena := range r.arenas {
		copy(r.wanted[k][:margin+64+n+margin], arena)
	}
	copy(r.wanted[target][start:][:n], want)

	run(unsafe.Pointer(&r.arenas[target][start]), pointers)

	for k, arena := range r.arenas {
		if (k < len(r.data) || k == target) && !bytes.Equal(arena[:margin+64+n+margin], r.wanted[k][:margin+64+n+margin]) {
			t.Fatalf("%s, %d sources, %s: %s", r.dtype, len(r.data), l, r.difference(k, target, start, n))
		}
	}
}

// lay fills an arena with canaries and returns where the elements go.
func (r *rig) lay(k, start, n int) []byte {
	arena := r.arenas[k][:margin+64+n+margin]
	copy(arena, r.canaries)
	return arena[start:][:n]
}

func (r *rig) difference(k, target, start, n int) string {
	got, want := r.arenas[k], r.wanted[k]
	i := 0
	for got[i] == want[i] {
		i++
	}
	if k != target {
		return fmt.Sprintf("source %d was written to", k)
	}
	if i < start || i >= start+n {
		return fmt.Sprintf("byte %d of the destination's %d was written to", i-start, n)
	}
	i = (i - start) / r.dtype.Size()
	text := fmt.Sprintf("element %d is %#x, want %#x; sources", i, bits(r.dtype, got[start:], i), bits(r.dtype, want[start:], i))
	for _, src := range r.data {
		text += fmt.Sprintf(" %#x", bits(r.dtype, src, i))
	}
	return text
}

func (l layout) String() string {
	return fmt.Sprintf("length %d, offset %d, in place at %d", l.length, l.offset, l.place)
}
