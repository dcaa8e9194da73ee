//go:build linux

package faults

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// deed is one operation of a loop, the same on all ranks: a collective, or (KindSend) messages around the ring.
type deed struct {
	kind      comm.Kind
	count     int // of uint32
	redop     kernels.RedOp
	root      int
	algorithm string
	seed      uint32
}

// mostBytes is the longest buffer of a deed.
const mostBytes = 4 << 20

// deedOf is number i of a loop among n ranks with buffers of at most most bytes.
func deedOf(seed uint64, i, n, most int) deed {
	rng := rand.New(rand.NewPCG(seed, uint64(i)))
	d := deed{kind: comm.Kind(rng.IntN(int(comm.KindSend) + 1)), seed: rng.Uint32()}
	words := 1 << rng.IntN(bits.Len(uint(most/4))) // evenly over the sizes' magnitudes
	words += rng.IntN(words)
	words = max(2, min(words, most/4))
	d.count = max(1, words/d.blocks(n))
	if d.kind == comm.KindSend {
		return d
	}
	kind := collective.Kind(d.kind)
	if kind.Reduces() && d.kind != comm.KindBarrier {
		d.redop = []kernels.RedOp{kernels.Sum, kernels.Max, kernels.Min}[rng.IntN(3)]
	}
	if kind.Rooted() {
		d.root = rng.IntN(n)
	}
	if known := collective.Catalog(kind); rng.IntN(3) > 0 {
		d.algorithm = known[rng.IntN(len(known))].Name
	}
	if d.kind == comm.KindBarrier {
		d.count = 0
	}
	return d
}

// blocks is how many blocks of count the larger buffer has.
func (d deed) blocks(n int) int {
	switch d.kind {
	case comm.KindAllGather, comm.KindReduceScatter, comm.KindAllToAll:
		return n
	}
	return 1
}

func (d deed) bytes(n int) int { return 4 * d.count * d.blocks(n) }

func (d deed) String() string {
	return fmt.Sprintf("%v of %d uint32 %v root %d by %q", d.kind, d.count, d.redop, d.root, d.algorithm)
}

// value is element i of what a rank gives. It wraps.
func (d deed) value(rank, i int) uint32 {
	return uint32(i)*2654435761 + uint32(rank+1)*40503*65537 + d.seed
}

// want is element i of the result on a rank.
func (d deed) want(rank, n, i int) uint32 {
	switch d.kind {
	case comm.KindAllGather:
		return d.value(i/d.count, i%d.count)
	case comm.KindAllToAll:
		return d.value(i/d.count, rank*d.count+i%d.count)
	case comm.KindBroadcast:
		return d.value(d.root, i)
	case comm.KindSend:
		return d.value((rank+n-1)%n, i)
	case comm.KindReduceScatter:
		i += rank * d.count
	}
	v := d.value(0, i)
	for q := 1; q < n; q++ {
		switch x := d.value(q, i); d.redop {
		case kernels.Max:
			v = max(v, x)
		case kernels.Min:
			v = min(v, x)
		default:
			v += x
		}
	}
	return v
}

// buffers are what a rank gives and gets, in memory of Go and in memory that peers may read.
type buffers [2]struct{ src, dst []uint32 }

func newBuffers(c *comm.Comm, most int) (*buffers, error) {
	var b buffers
	b[0].src, b[0].dst = make([]uint32, most/4), make([]uint32, most/4)
	var err error
	if b[1].src, err = comm.AllocSlice[uint32](c, most/4); err == nil {
		b[1].dst, err = comm.AllocSlice[uint32](c, most/4)
	}
	return &b, err
}

// fill writes a pattern everywhere.
func (b *buffers) fill(pattern uint32) {
	for i := range b {
		for _, s := range [][]uint32{b[i].src, b[i].dst} {
			for j := range s {
				s[j] = pattern + uint32(j)
			}
		}
	}
}

// intact says where the pattern is not any more.
func (b *buffers) intact(pattern uint32) error {
	for i := range b {
		for k, s := range [][]uint32{b[i].src, b[i].dst} {
			for j, v := range s {
				if v != pattern+uint32(j) {
					return fmt.Errorf("word %d of buffer %d.%d changed after the call had returned: %#x, want %#x", j, i, k, v, pattern+uint32(j))
				}
			}
		}
	}
	return nil
}

// untouched stands where a call must not write.
const untouched = 0xdeadbeef

// do does the deed on this rank and checks the result; around is told when the call proper begins and ends. Errors of the call come as they are,
// a wrong result is a *wrongError.
func (d deed) do(ctx context.Context, c *comm.Comm, b *buffers, turn int, around func(inCall bool)) error {
	rank, n := c.Rank(), c.Size()
	mine := b[(rank+turn)%2]
	src, dst := mine.src, b[(rank+turn/2)%2].dst
	in, out := d.count, d.count
	switch d.kind {
	case comm.KindAllGather:
		out *= n
	case comm.KindReduceScatter:
		in *= n
	case comm.KindAllToAll:
		in, out = in*n, out*n
	case comm.KindReduce:
		if rank != d.root {
			out = 0
		}
	}
	for i := range in {
		src[i] = d.value(rank, i)
	}
	for i := range min(out+16, len(dst)) {
		dst[i] = untouched
	}
	call := comm.Call{Comm: c, Kind: d.kind, Src: kernels.MemOf(src[:in]), Dst: kernels.MemOf(dst[:out]), Count: d.count, DType: kernels.Uint32, RedOp: d.redop, Root: d.root, Algorithm: d.algorithm}
	var err error
	around(true)
	if d.kind == comm.KindSend {
		send, recv := call, call
		send.Dst, send.Peer = kernels.Mem{}, (rank+1)%n
		recv.Kind, recv.Src, recv.Peer = comm.KindRecv, kernels.Mem{}, (rank+n-1)%n
		err = comm.Group(ctx, send, recv)
	} else {
		err = c.Do(ctx, call)
	}
	around(false)
	if err != nil {
		return err
	}
	for i, v := range dst[:out] {
		if want := d.want(rank, n, i); v != want {
			return &wrongError{fmt.Sprintf("%v: element %d of rank %d is %#x, want %#x", d, i, rank, v, want)}
		}
	}
	for i, v := range dst[out:min(out+16, len(dst))] {
		if v != untouched {
			return &wrongError{fmt.Sprintf("%v: wrote %#x to element %d behind the result", d, v, i)}
		}
	}
	return nil
}

// wrongError is a wrong result.
type wrongError struct{ text string }

func (e *wrongError) Error() string { return "WRONG RESULT: " + e.text }

// good does this many deeds, all of which must succeed.
func good(ctx context.Context, c *comm.Comm, b *buffers, seed uint64, calls, most int) error {
	for i := range calls {
		d := deedOf(seed, i, c.Size(), most)
		if err := d.do(ctx, c, b, i, func(bool) {}); err != nil {
			return fmt.Errorf("call %d of %d, %v, after the fault: %w", i, calls, d, err)
		}
	}
	return nil
}
