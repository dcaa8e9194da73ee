package collective

// builder collects the steps of one rank's schedule. Chunk numbers are taken modulo the
// number of chunks of their space, so that ring arithmetic needs no care.
type builder struct {
	s       Schedule
	written map[int32]bool // chunks of Out written so far
}

func newBuilder(s Shape, rank, pieces int) *builder {
	s.Hosts = nil
	return &builder{s: Schedule{Shape: s, Rank: rank, Pieces: pieces}, written: map[int32]bool{}}
}

func (b *builder) slot(sp Space, c int) Slot {
	return Slot{sp, int32(mod(c, int(b.s.chunks(sp))))}
}

func (b *builder) in(c int) Slot  { return b.slot(In, c) }
func (b *builder) out(c int) Slot { return b.slot(Out, c) }

// temp returns piece p of block t of Temp, which grows as needed.
func (b *builder) temp(t, p int) Slot {
	b.s.Temps = max(b.s.Temps, t+1)
	return Slot{Temp, int32(t*b.s.Pieces + mod(p, b.s.Pieces))}
}

// partial is where this rank's share of chunk c is: out once anything was written there.
func (b *builder) partial(c int) Slot {
	if o := b.out(c); b.written[o.Chunk] {
		return o
	}
	return b.in(c)
}

// step adds one step. One without instrs keeps the steps of a rank that has nothing to do
// then in line with those of others.
func (b *builder) step(instrs ...Instr) {
	for _, in := range instrs {
		if in.Code != Send && in.Dst.Space == Out {
			b.written[in.Dst.Chunk] = true
		}
	}
	b.s.Steps = append(b.s.Steps, instrs)
}

// schedule returns the schedule, without empty steps at its end.
func (b *builder) schedule() Schedule {
	n := len(b.s.Steps)
	for n > 0 && len(b.s.Steps[n-1]) == 0 {
		n--
	}
	b.s.Steps = b.s.Steps[:n]
	return b.s
}

func send(peer int, src Slot) Instr { return Instr{Code: Send, Peer: int32(peer), Srcs: []Slot{src}} }
func recv(peer int, dst Slot) Instr { return Instr{Code: Recv, Peer: int32(peer), Dst: dst} }

// recvReduce is dst = what peer sent + operand.
func recvReduce(peer int, operand, dst Slot) Instr {
	return Instr{Code: RecvReduce, Peer: int32(peer), Dst: dst, Srcs: []Slot{{Space: Wire}, operand}}
}

// reduceRecv is dst = operand + what peer sent.
func reduceRecv(peer int, operand, dst Slot) Instr {
	return Instr{Code: RecvReduce, Peer: int32(peer), Dst: dst, Srcs: []Slot{operand, {Space: Wire}}}
}

func fold(dst Slot, srcs ...Slot) Instr { return Instr{Code: Fold, Dst: dst, Srcs: srcs} }
func copySlot(dst, src Slot) Instr      { return Instr{Code: Copy, Dst: dst, Srcs: []Slot{src}} }

func mod(a, n int) int { return ((a % n) + n) % n }
