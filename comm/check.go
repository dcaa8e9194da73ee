package comm

import (
	"github.com/gccl-project/gccl/kernels"
)

// checkShape checks what does not depend on memory.
func (c *Comm) checkShape(call *Call) error {
	switch {
	case call.Kind > KindRecv:
		return argument("unknown %v", call.Kind)
	case !call.DType.Valid():
		return argument("unknown data type %d", call.DType)
	case call.Count < 0:
		return argument("%v: count %d is negative", call.Kind, call.Count)
	case call.Kind == KindBarrier && call.Count != 0:
		return argument("barrier with count %d, want 0", call.Count)
	case call.Kind.pointToPoint() && (call.Peer < 0 || call.Peer >= c.Size()):
		return argument("%v: peer %d, want 0…%d", call.Kind, call.Peer, c.Size()-1)
	case call.Root < 0 || call.Root >= c.Size():
		return argument("%v: root %d, want 0…%d", call.Kind, call.Root, c.Size()-1)
	case call.Root != 0 && call.Kind != KindBroadcast && call.Kind != KindReduce:
		return argument("%v has no root, but Root is %d", call.Kind, call.Root)
	case !call.RedOp.Valid():
		return argument("unknown reduction %d", call.RedOp)
	case call.Factor.Set && (!call.Kind.combines() || call.RedOp != kernels.Sum || !call.DType.IsFloat()):
		return argument("%v: a factor goes with a sum of floating-point numbers alone", call)
	}
	return nil
}

// checkMemory checks that the buffers are long enough and overlap only as the in-place rule has it.
func (c *Comm) checkMemory(call *Call, src, dst int64, inPlace bool) error {
	if call.Src.Device != call.Dst.Device && src > 0 && dst > 0 {
		return argument("%v: Src is on %v and Dst on %v, want one device", call, call.Src.Device, call.Dst.Device)
	}
	if call.Src.Bytes < src || src > 0 && call.Src.Ptr == nil {
		return argument("%v: Src has %d bytes at %p, want %d", call, call.Src.Bytes, call.Src.Ptr, src)
	}
	if call.Dst.Bytes < dst || dst > 0 && call.Dst.Ptr == nil {
		return argument("%v: Dst has %d bytes at %p, want %d", call, call.Dst.Bytes, call.Dst.Ptr, dst)
	}
	s, d := uintptr(call.Src.Ptr), uintptr(call.Dst.Ptr)
	if !inPlace && src > 0 && dst > 0 && s < d+uintptr(dst) && d < s+uintptr(src) {
		return argument("%v: Src [%#x, +%d) and Dst [%#x, +%d) overlap, and not in the way that in-place calls do", call, s, src, d, dst)
	}
	return nil
}

// inPlace reports whether the buffers stand as their kind's in-place rule has it.
func (c *Comm) inPlace(call *Call) bool {
	src, dst := uintptr(call.Src.Ptr), uintptr(call.Dst.Ptr)
	if src == 0 || dst == 0 || call.Count <= 0 {
		return false
	}
	return src-dst == c.apart(call)
}

// apart is how far Src is behind Dst where both stand as the in-place rule has it, modulo 2⁶⁴.
func (c *Comm) apart(call *Call) uintptr {
	own := uintptr(c.rank) * uintptr(call.Count) * uintptr(call.DType.Size())
	switch call.Kind {
	case KindAllGather:
		return own
	case KindReduceScatter:
		return -own
	}
	return 0
}
