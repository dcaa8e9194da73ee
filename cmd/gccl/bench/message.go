package bench

import (
	"context"

	"github.com/gccl-project/gccl/cmd/gccl/reference"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// message is one rank's side of what a row measures: buffers and calls.
type message struct {
	kind        Kind
	dtype       kernels.DType
	op          Op
	root        int
	rank, ranks int
	count       int   // elements in a block
	size        int64 // of the row
	inPlace     bool

	src, dst []byte // nil where the rank has none
	whole    []held // the buffers that hold them
	calls    []comm.Call
}

// held is a part of a buffer that a message takes.
type held struct {
	buffer *buffer
	bytes  int64
}

// newMessage places a message of size bytes in the buffers.
func newMessage(c *comm.Comm, cfg *Config, in, out *buffer, dtype kernels.DType, op Op, root int, size int64, inPlace bool) *message {
	k, n := cfg.Kind, c.Size()
	m := &message{kind: k, dtype: dtype, op: op, root: root, rank: c.Rank(), ranks: n,
		count: int(k.count(size, dtype.Size(), n)), size: size, inPlace: inPlace}
	if k.isBarrier() {
		m.calls = []comm.Call{{Comm: c, Kind: k.comm}}
		return m
	}
	part := int64(m.count) * int64(dtype.Size())
	inBytes, outBytes := part*int64(k.in(n)), part*int64(k.out(n))
	own := part * int64(m.rank)
	switch {
	case !inPlace:
		m.src, m.dst = in.data(inBytes), out.data(outBytes)
		m.whole = []held{{in, inBytes}, {out, outBytes}}
	case inBytes > outBytes: // a reduce-scatter: the result is our block of the input
		m.src = in.data(inBytes)
		m.dst = m.src[own : own+part]
		m.whole = []held{{in, inBytes}}
	case inBytes < outBytes: // an all-gather: the input is our block of the result
		m.dst = out.data(outBytes)
		m.src = m.dst[own : own+part]
		m.whole = []held{{out, outBytes}}
	default:
		m.dst = out.data(outBytes)
		m.src = m.dst
		m.whole = []held{{out, outBytes}}
	}
	if k.comm == comm.KindBroadcast && m.rank != root {
		m.src = nil
	}
	if k.comm == comm.KindReduce && m.rank != root {
		m.dst = nil
	}
	call := comm.Call{Comm: c, Kind: k.comm, Count: m.count, DType: dtype, Algorithm: cfg.Algorithm}
	if k.reduces {
		call.RedOp = op.RedOp
		if op.factors {
			call.Factor = kernels.FactorOf(reference.Factor(m.rank))
		}
	}
	if k.rooted {
		call.Root = root
	}
	if m.src != nil {
		call.Src = memOf(m.src)
	}
	if m.dst != nil {
		call.Dst = memOf(m.dst)
	}
	m.calls = []comm.Call{call}
	if k.isExchange() {
		send, recv := call, call
		send.Dst, recv.Src = kernels.Mem{}, kernels.Mem{}
		send.Peer = (m.rank + 1) % n
		recv.Kind, recv.Peer = comm.KindRecv, m.previous()
		m.calls = []comm.Call{send, recv}
	}
	return m
}

// previous is the rank that an exchange receives from.
func (m *message) previous() int { return (m.rank + m.ranks - 1) % m.ranks }

// do makes the calls.
func (m *message) do(ctx context.Context) error {
	if len(m.calls) == 1 {
		return m.calls[0].Comm.Do(ctx, m.calls[0])
	}
	return comm.Group(ctx, m.calls...)
}

// input is what the ranks give in a checked call.
func (m *message) input(seed uint64, special bool) reference.Input {
	return reference.Input{DType: m.dtype, RedOp: m.op.RedOp, Factors: m.op.factors, Ranks: m.ranks, Seed: seed, Special: special}
}

// check makes the calls with fresh inputs and compares all that they wrote, and what they should not
// have written.
func (m *message) check(ctx context.Context, in reference.Input) (reference.Verdict, error) {
	for _, h := range m.whole {
		h.buffer.poison(h.bytes)
	}
	in.Write(m.src, m.rank, 0)
	if err := m.do(ctx); err != nil {
		return reference.Verdict{}, err
	}
	return m.verdict(in), nil
}

// verdict compares all that the calls wrote, and what they should not have written.
func (m *message) verdict(in reference.Input) reference.Verdict {
	v := m.result(in)
	if !m.inPlace && m.src != nil {
		if kept := in.Copied(m.src, m.rank, 0); kept.Wrong != 0 {
			kept.First = "the call changed its input: " + kept.First
			v.Add(kept)
		}
	}
	for _, h := range m.whole {
		if where := h.buffer.intact(h.bytes); where != "" {
			v.Add(reference.Verdict{Wrong: 1, First: "the call wrote " + where + " its buffer"})
		}
	}
	return v
}

// result compares the output with what it must be.
func (m *message) result(in reference.Input) (v reference.Verdict) {
	if m.dst == nil {
		return v
	}
	switch m.kind.comm {
	case comm.KindAllReduce, comm.KindReduce:
		return in.Reduced(m.dst, 0)
	case comm.KindReduceScatter:
		return in.Reduced(m.dst, m.rank*m.count)
	case comm.KindBroadcast:
		return in.Copied(m.dst, m.root, 0)
	case comm.KindAllGather, comm.KindAllToAll:
		first := 0
		if m.kind.comm == comm.KindAllToAll {
			first = m.rank * m.count
		}
		part := m.count * m.dtype.Size()
		for q := range m.ranks {
			v.Add(in.Copied(m.dst[q*part:(q+1)*part], q, first))
		}
		return v
	default:
		return in.Copied(m.dst, m.previous(), 0)
	}
}
