package comm

import (
	"context"

	"github.com/gccl-project/gccl/kernels"
)

// AllReduce leaves in dst, on every rank, the reduction of all ranks' src, with the same bits everywhere. Dst may be src.
// Lengths must be equal on all ranks.
func AllReduce[T kernels.Number](ctx context.Context, c *Comm, dst, src []T, op kernels.RedOp) error {
	if len(dst) != len(src) {
		return argument("all_reduce: dst has %d elements, src %d", len(dst), len(src))
	}
	var cl Call
	set(&cl, KindAllReduce, dst, src, len(src), op, 0)
	return c.do(ctx, &cl)
}

// AllGather leaves in dst, on every rank, all ranks' src, rank r's at r·len(src). In place, src is dst's block of
// this rank.
func AllGather[T kernels.Number](ctx context.Context, c *Comm, dst, src []T) error {
	if len(dst) != len(src)*c.Size() {
		return argument("all_gather: dst has %d elements, want %d × %d ranks", len(dst), len(src), c.Size())
	}
	var cl Call
	set(&cl, KindAllGather, dst, src, len(src), 0, 0)
	return c.do(ctx, &cl)
}

// ReduceScatter leaves in dst the reduction of all ranks' block of this rank: src is Size blocks of len(dst). In place, dst is src's
// block of this rank.
func ReduceScatter[T kernels.Number](ctx context.Context, c *Comm, dst, src []T, op kernels.RedOp) error {
	if len(src) != len(dst)*c.Size() {
		return argument("reduce_scatter: src has %d elements, want %d × %d ranks", len(src), len(dst), c.Size())
	}
	var cl Call
	set(&cl, KindReduceScatter, dst, src, len(dst), op, 0)
	return c.do(ctx, &cl)
}

// Broadcast leaves root's src in every rank's dst. Src is used on root only, and may be dst there.
func Broadcast[T kernels.Number](ctx context.Context, c *Comm, dst, src []T, root int) error {
	if c.Rank() == root && len(dst) != len(src) {
		return argument("broadcast: dst has %d elements, src %d", len(dst), len(src))
	}
	if c.Rank() != root {
		src = nil
	}
	var cl Call
	set(&cl, KindBroadcast, dst, src, len(dst), 0, root)
	return c.do(ctx, &cl)
}

// Reduce leaves the reduction of all ranks' src in root's dst. Dst is used on root only, and may be src there.
func Reduce[T kernels.Number](ctx context.Context, c *Comm, dst, src []T, op kernels.RedOp, root int) error {
	if c.Rank() == root && len(dst) != len(src) {
		return argument("reduce: dst has %d elements, src %d", len(dst), len(src))
	}
	if c.Rank() != root {
		dst = nil
	}
	var cl Call
	set(&cl, KindReduce, dst, src, len(src), op, root)
	return c.do(ctx, &cl)
}

// AllToAll sends block r of src to rank r and leaves what rank r sent in block r of dst; both are Size blocks of equal
// length. Dst may be src.
func AllToAll[T kernels.Number](ctx context.Context, c *Comm, dst, src []T) error {
	if len(dst) != len(src) || len(src)%c.Size() != 0 {
		return argument("alltoall: dst has %d elements, src %d, want equal multiples of %d ranks", len(dst), len(src), c.Size())
	}
	var cl Call
	set(&cl, KindAllToAll, dst, src, len(src)/c.Size(), 0, 0)
	return c.do(ctx, &cl)
}

// Send sends src to a peer, which takes it by a Recv of the same length. It returns when src may be used again.
func Send[T kernels.Number](ctx context.Context, c *Comm, src []T, peer int) error {
	var cl Call
	set(&cl, KindSend, nil, src, len(src), 0, 0)
	cl.Peer = peer
	return c.do(ctx, &cl)
}

// Recv receives into dst what a peer sends by a Send of the same length.
func Recv[T kernels.Number](ctx context.Context, c *Comm, dst []T, peer int) error {
	var cl Call
	set(&cl, KindRecv, dst, nil, len(dst), 0, 0)
	cl.Peer = peer
	return c.do(ctx, &cl)
}

// set fills in a call where it lies: copied as a whole at once, it would wait for its fields' stores.
func set[T kernels.Number](cl *Call, k Kind, dst, src []T, count int, op kernels.RedOp, root int) {
	cl.Kind, cl.Count, cl.DType, cl.RedOp, cl.Root = k, count, kernels.DTypeOf[T](), op, root
	d, s := kernels.MemOf(dst), kernels.MemOf(src)
	cl.Dst.Ptr, cl.Dst.Bytes = d.Ptr, d.Bytes
	cl.Src.Ptr, cl.Src.Bytes = s.Ptr, s.Bytes
}
