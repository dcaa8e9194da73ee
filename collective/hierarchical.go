package collective

import "math/bits"

// The hierarchical all-reduces send between hosts no more than they must, and share that out among the ranks of each host. The data
// has a part for every rank of the smallest host, its owner. Each host sums up its ranks' parts at their owners, the owners of a part
// reduce it among the hosts by an algorithm for all ranks, and each host's owners give its ranks the sums.
//
// With m ranks on each of H hosts a rank sends 2·S·(m-1)/m within its host, and of S/m what the algorithm between hosts sends. Steps:
// those of that algorithm, and two more for each piece that it cuts a part in. Same bits on every rank, as the algorithm's.
type hierarchical struct {
	between func(Shape, int) Schedule
	pieces  func(hosts int) int // of a part
	steps   func(hosts int) int // of the longest of its schedules
}

var (
	// Between hosts 2(H-1) messages of S/(m·H), as in twoshot 2(H-1) at once in two steps, or one after the other.
	hierarchicalDirect = hierarchical{twoshot, func(h int) int { return h }, func(int) int { return 3 }}
	hierarchicalRing   = hierarchical{ringAllReduce, func(h int) int { return h }, func(h int) int { return 2 * (h - 1) }}
	// Between hosts log2(H) messages of S/m, with H no power of two up to 2 more.
	hierarchicalDoubling = hierarchical{doublingAllReduce, func(int) int { return 1 }, func(h int) int {
		levels := bits.Len(uint(h)) - 1
		if h == 1<<levels {
			return levels
		}
		return levels + 2
	}}
)

func (a hierarchical) build(s Shape, r int) Schedule {
	hosts, owners, at := s.hosts(), s.least(), s.host(r)
	pieces := 1
	if hosts > 1 {
		pieces = a.pieces(hosts)
	}
	b := newBuilder(s, r, owners*pieces)
	part := r - at.first // that we own
	owns := part < owners
	others := func(f func(q int)) { // the other ranks of our host, from the next on
		for k := 1; k < at.size; k++ {
			f((part + k) % at.size)
		}
	}
	sum := func(c int) Slot { return b.temp(0, part*pieces+c) } // our host's; of one rank its input
	if hosts == 1 {
		sum = func(c int) Slot { return b.out(part*pieces + c) }
	}
	if at.size == 1 {
		sum = func(c int) Slot { return b.in(part*pieces + c) }
	}
	// Within the host: piece c of every part in step c, and in the next one its fold.
	for c := range pieces + 1 {
		var step []Instr
		if c < pieces {
			others(func(q int) {
				if q < owners {
					step = append(step, send(at.first+q, b.in(q*pieces+c)))
				}
			})
		}
		if owns && at.size > 1 {
			operands := func(c int) []Slot {
				list := make([]Slot, at.size)
				list[part] = b.in(part*pieces + c)
				k := 1
				others(func(q int) { list[q] = b.temp(k, part*pieces+c); k++ })
				return list
			}
			if c < pieces {
				from := operands(c)
				others(func(q int) { step = append(step, recv(at.first+q, from[q])) })
			}
			if c > 0 {
				step = append(step, fold(sum(c-1), operands(c-1)...))
			}
		}
		b.step(step...)
	}
	// Between hosts: the algorithm's own schedule, on our part.
	if hosts > 1 {
		steps := a.steps(hosts)
		if owns {
			inner := a.between(Shape{Kind: AllReduce, Ranks: hosts}, at.index)
			for _, step := range inner.Steps {
				b.step(b.nest(step, sum, part, pieces, at.size, func(h int32) int { return s.hostAt(int(h)).first + part })...)
			}
			steps -= len(inner.Steps)
		}
		for range steps {
			b.step()
		}
	}
	for c := range pieces {
		var step []Instr
		if owns {
			others(func(q int) { step = append(step, send(at.first+q, b.out(part*pieces+c))) })
		}
		others(func(q int) {
			if q < owners {
				step = append(step, recv(at.first+q, b.out(q*pieces+c)))
			}
		})
		b.step(step...)
	}
	return b.schedule()
}

// nest returns a step of an algorithm among other ranks, on one part of the data: its input is where in says, its blocks of Temp come after
// the first of ours.
func (b *builder) nest(step []Instr, in func(c int) Slot, part, pieces, temps int, peer func(int32) int) []Instr {
	slot := func(sl Slot) Slot {
		c := int(sl.Chunk)
		switch sl.Space {
		case In:
			return in(c)
		case Out:
			return b.out(part*pieces + c)
		case Temp:
			return b.temp(temps+c/pieces, part*pieces+c%pieces)
		}
		return sl
	}
	out := make([]Instr, len(step))
	for i, x := range step {
		y := Instr{Code: x.Code}
		if x.Code <= RecvReduce {
			y.Peer = int32(peer(x.Peer))
		}
		if x.Code != Send {
			y.Dst = slot(x.Dst)
		}
		for _, src := range x.Srcs {
			y.Srcs = append(y.Srcs, slot(src))
		}
		out[i] = y
	}
	return out
}
