package collective

// cell is a number for memory that holds one chunk. Two refs or slots of a rank are the
// same memory exactly if their cells are equal.
type cell int64

// memory numbers the cells of one rank: chunks from 0 on, views below 0. Where an in-place
// call lays the input and the output over each other, both names give one number.
type memory struct {
	base   [Temp + 1]cell
	pieces cell
}

func newMemory(s Shape, rank, pieces int, inPlace bool) memory {
	in, out := s.Kind.Blocks(s.Ranks)
	p := cell(pieces)
	m := memory{pieces: p}
	m.base[Out] = cell(in) * p
	m.base[Temp] = cell(in+out) * p
	if inPlace {
		switch s.Kind {
		case ReduceScatter:
			m.base[Out] = cell(rank) * p
		case AllGather:
			m.base[In] = m.base[Out] + cell(rank)*p
		default:
			m.base[In] = m.base[Out]
		}
	}
	return m
}

func (m *memory) slot(s Slot) cell {
	if s.Space == view {
		return -1 - cell(s.Chunk)
	}
	return m.base[s.Space] + cell(s.Chunk)
}

func (m *memory) ref(r Ref) cell {
	if r.Space == view {
		return -1 - cell(r.Block)
	}
	return m.base[r.Space] + cell(r.Block)*m.pieces + cell(r.Piece)
}

// resolved is a plan whose refs are replaced by small numbers, one for each cell that its
// ops name.
type resolved struct {
	*Plan
	memory memory
	number map[cell]int32
	dst    []int32 // of each op, -1 without
	src    []int32 // of each of Plan.Srcs
}

func resolve(p *Plan) *resolved {
	v := &resolved{
		Plan: p, memory: newMemory(p.Shape, p.Rank, p.Pieces, p.InPlace), number: make(map[cell]int32, len(p.Ops)),
		dst: make([]int32, len(p.Ops)), src: make([]int32, len(p.Srcs)),
	}
	for i := range p.Ops {
		v.dst[i] = -1
		if c := p.Ops[i].Code; c != OpSend && c != OpReuse {
			v.dst[i] = v.add(p.Ops[i].Dst)
		}
	}
	for i, r := range p.Srcs {
		v.src[i] = v.add(r)
	}
	return v
}

func (v *resolved) add(r Ref) int32 {
	c := v.memory.ref(r)
	n, ok := v.number[c]
	if !ok {
		n = int32(len(v.number))
		v.number[c] = n
	}
	return n
}

// sources returns the cells of an op's sources.
func (v *resolved) sources(o *Op) []int32 {
	if o.Code == OpReuse {
		return nil
	}
	return v.src[o.Src : o.Src+uint32(o.NSrc)]
}
