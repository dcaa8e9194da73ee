package collective

// oneshot has every rank send its whole input to every other and fold all of them in
// rank order.
//
// Steps 1. Bytes sent per rank S·(n-1). Same bits on every rank: one fold of n inputs.
func oneshot(s Shape, r int) Schedule {
	b := newBuilder(s, r, 1)
	b.foldAll(b.out(0), func(int) Slot { return b.in(0) })
	return b.schedule()
}

// twoshot has every rank fold one piece of all inputs in rank order and send the sum to
// every other.
//
// Steps 2. Bytes sent per rank 2·S·(n-1)/n. Same bits on every rank: one fold of n inputs.
func twoshot(s Shape, r int) Schedule {
	b := newBuilder(s, r, s.Ranks)
	b.foldAll(b.out(r), b.in)
	b.step(b.shareAll(b.out(r))...)
	return b.schedule()
}

// directReduceScatter has every rank send each block to the rank that wants it, which
// folds what it gets in rank order.
//
// Steps 1. Bytes sent per rank S·(n-1), of a block of S.
func directReduceScatter(s Shape, r int) Schedule {
	b := newBuilder(s, r, 1)
	b.foldAll(b.out(0), b.in)
	return b.schedule()
}

// directAllGather has every rank send its block to every other.
//
// Steps 1. Bytes sent per rank S·(n-1), of a block of S.
func directAllGather(s Shape, r int) Schedule {
	b := newBuilder(s, r, 1)
	b.step(append(b.shareAll(b.in(0)), copySlot(b.out(r), b.in(0)))...)
	return b.schedule()
}

// directBroadcast has the root send to every other rank.
//
// Steps 1. Bytes sent by the root S·(n-1).
func directBroadcast(s Shape, r int) Schedule {
	b := newBuilder(s, r, 1)
	if r != s.Root {
		b.step(recv(s.Root, b.out(0)))
		return b.schedule()
	}
	step := []Instr{copySlot(b.out(0), b.in(0))}
	for k := 1; k < s.Ranks; k++ {
		step = append(step, send(mod(r+k, s.Ranks), b.in(0)))
	}
	b.step(step...)
	return b.schedule()
}

// directReduce has every rank send to the root, which folds in rank order.
//
// Steps 1. Bytes sent per rank S, by the root 0.
func directReduce(s Shape, r int) Schedule {
	b := newBuilder(s, r, 1)
	if r != s.Root {
		b.step(send(s.Root, b.in(0)))
		return b.schedule()
	}
	step, operands := []Instr(nil), make([]Slot, s.Ranks)
	operands[r] = b.in(0)
	for k := 1; k < s.Ranks; k++ {
		p := mod(r+k, s.Ranks)
		operands[p] = b.temp(k-1, 0)
		step = append(step, recv(p, operands[p]))
	}
	b.step(step...)
	b.step(fold(b.out(0), operands...))
	return b.schedule()
}

// foldAll adds two steps: every rank sends every other the part of its input that it
// wants, and folds the parts it got, and its own, into dst in rank order. The peers are taken in
// turn from the next rank on, so that not all send to the same one at first.
func (b *builder) foldAll(dst Slot, part func(p int) Slot) {
	r, n := b.s.Rank, b.s.Shape.Ranks
	step, operands := make([]Instr, 0, 2*n), make([]Slot, n)
	operands[r] = part(r)
	for k := 1; k < n; k++ {
		step = append(step, send(mod(r+k, n), part(mod(r+k, n))))
	}
	for k := 1; k < n; k++ {
		p := mod(r-k, n)
		operands[p] = b.temp(k-1, int(dst.Chunk))
		step = append(step, recv(p, operands[p]))
	}
	b.step(step...)
	b.step(fold(dst, operands...))
}

// shareAll sends src to every other rank and receives rank p's into out[p].
func (b *builder) shareAll(src Slot) []Instr {
	r, n := b.s.Rank, b.s.Shape.Ranks
	step := make([]Instr, 0, 2*n)
	for k := 1; k < n; k++ {
		step = append(step, send(mod(r+k, n), src))
	}
	for k := 1; k < n; k++ {
		step = append(step, recv(mod(r-k, n), b.out(r-k)))
	}
	return step
}
