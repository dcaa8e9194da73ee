package histories

import (
	"slices"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// prepare makes memory and data for a rank's part of a call. With odd, the rank calls something that is not what others call.
func (r *rank) prepare(m *member, c Call, odd bool) []*deed {
	n, me := len(m.ranks), slices.Index(m.ranks, r.number)
	elem := 1
	if c.DType.Valid() {
		elem = c.DType.Size()
	}
	if c.Messages != nil {
		var deeds []*deed
		for i, g := range c.Messages {
			from, to, count := g.From%n, g.To%n, g.Count
			if odd && from != to && (from == me || to == me) && count > 0 {
				count++
				odd = false
			}
			if from == me {
				d := &deed{on: m, call: comm.Call{Kind: comm.KindSend, DType: c.DType, Count: count, Peer: to}}
				d.own = func(k int) int { return value(c.ID+uint64(i), from, k, 2) }
				r.equip(d, count*elem, 0)
				d.pair = 1 + from<<8 + to
				deeds = append(deeds, d)
			}
			if to == me {
				d := &deed{on: m, call: comm.Call{Kind: comm.KindRecv, DType: c.DType, Count: count, Peer: from}}
				d.want = func(k int) int { return value(c.ID+uint64(i), from, k, 2) }
				r.equip(d, 0, count*elem)
				d.pair = 1 + from<<8 + to
				deeds = append(deeds, d)
			}
		}
		return deeds
	}
	if odd {
		c = r.oddly(c, n)
		elem = 1
		if c.DType.Valid() {
			elem = c.DType.Size()
		}
	}
	root := c.Root % n
	d := &deed{on: m, call: comm.Call{Kind: c.Kind, DType: c.DType, RedOp: c.RedOp, Count: c.Count, Root: root, Algorithm: c.Algorithm}}
	kind := collective.Kind(c.Kind)
	if kind == collective.Barrier {
		return []*deed{d}
	}
	in, out := kind.Blocks(n)
	shape := collective.Shape{Kind: kind, Ranks: n, Root: root}
	var src, dst int
	if shape.HasIn(me) {
		src = in * c.Count * elem
	}
	if shape.HasOut(me) {
		dst = out * c.Count * elem
	}
	at := func(rank, block, k int) int { return value(c.ID, rank, block*c.Count+k, c.RedOp) }
	d.own = func(i int) int { return value(c.ID, me, i, c.RedOp) }
	reduced := func(i int) int {
		v := value(c.ID, 0, i, c.RedOp)
		for q := 1; q < n; q++ {
			v = apply(c.RedOp, v, value(c.ID, q, i, c.RedOp))
		}
		return v
	}
	switch c.Kind {
	case comm.KindAllReduce, comm.KindReduce:
		d.want = reduced
	case comm.KindBroadcast:
		d.want = func(i int) int { return at(root, 0, i) }
	case comm.KindAllGather:
		d.want = func(i int) int { return at(i/c.Count, 0, i%c.Count) }
	case comm.KindReduceScatter:
		d.want = func(i int) int { return reduced(me*c.Count + i) }
	case comm.KindAllToAll:
		d.want = func(i int) int { return at(i/c.Count, me, i%c.Count) }
	}
	d.inPlace = src > 0 && dst > 0 && r.rng.IntN(4) == 0
	r.equip(d, src, dst)
	return []*deed{d}
}

// oddly changes a call in one respect.
func (r *rank) oddly(c Call, n int) Call {
	kind := collective.Kind(c.Kind)
	switch bit := r.job.Fault.Bit % 5; {
	case kind == collective.Barrier:
		c.Kind, c.Count, c.DType = comm.KindAllReduce, 3, kernels.Int32
	case c.Count == 0 || bit == 0:
		c.Count++
	case bit == 4:
		c.Count = 0 // nothing to be done, for this rank
	case bit == 1 && kind.Reduces():
		c.RedOp = (c.RedOp + 1) % 4
	case bit == 2 && kind.Rooted():
		c.Root = (c.Root%n + 1) % n
	case bit == 3:
		c.Kind = comm.KindAllGather
		if kind == collective.AllGather {
			c.Kind = comm.KindAllToAll
		}
		c.Algorithm, c.Root = "", 0
	default:
		c.DType = map[kernels.DType]kernels.DType{kernels.Int8: kernels.Uint8, kernels.Uint8: kernels.Int32, kernels.Int32: kernels.Float32, kernels.Uint32: kernels.Int32,
			kernels.Int64: kernels.Float64, kernels.Uint64: kernels.Int64, kernels.Float32: kernels.Int32, kernels.Float64: kernels.Float32}[c.DType]
	}
	return c
}

// equip gives the deed its memory: of src and dst bytes, with data in src, and a guard behind both.
func (r *rank) equip(d *deed, src, dst int) {
	guarded := func(b []byte) []byte { fill(b, guarding); return b }
	elem := d.call.DType.Size()
	write := func(b []byte, n int) {
		for i := range n / elem {
			put(b[i*elem:], d.call.DType, d.own(i))
		}
	}
	me, block := slices.Index(d.on.ranks, r.number), d.call.Count*elem
	switch {
	case d.inPlace && d.call.Kind == comm.KindAllGather:
		d.dst = guarded(r.alloc(d.on, dst+guard))
		d.src = d.dst[me*block : (me+1)*block]
		write(d.src, src)
	case d.inPlace && d.call.Kind == comm.KindReduceScatter:
		d.src = guarded(r.alloc(d.on, src+guard))
		write(d.src, src)
		d.dst = d.src[me*block : (me+1)*block]
	case d.inPlace:
		d.dst = guarded(r.alloc(d.on, max(src, dst)+guard))
		d.src = d.dst
		write(d.src, src)
	default:
		d.src, d.dst = guarded(r.alloc(d.on, src+guard)), guarded(r.alloc(d.on, dst+guard))
		write(d.src, src)
	}
	d.call.Src, d.call.Dst = kernels.MemOf(d.src[:src]), kernels.MemOf(d.dst[:dst])
	if src == 0 {
		d.call.Src = kernels.Mem{}
	}
	if dst == 0 {
		d.call.Dst, d.want = kernels.Mem{}, nil
	}
}

// alloc returns memory, sometimes such as peers can read.
func (r *rank) alloc(m *member, n int) []byte {
	if r.job.Lends || n >= 4096 && r.rng.IntN(2) == 0 || r.rng.IntN(16) == 0 {
		if b, err := comm.AllocSlice[uint8](m.comm, n); err == nil {
			return b
		}
	}
	return make([]byte, n)
}
