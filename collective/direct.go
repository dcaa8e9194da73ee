package collective

// directAllReduce has every rank send its whole input to every other and fold all of
// them in rank order.
//
// Steps 1. Bytes sent per rank S·(n-1). Same bits on every rank: one fold of n inputs.
func directAllReduce(s Shape, r int) Schedule {
	b := newBuilder(s, r, 1)
	exchange, operands := make([]Instr, 0, 2*s.Ranks), make([]Slot, s.Ranks)
	operands[r] = b.in(0)
	for k := 1; k < s.Ranks; k++ {
		exchange = append(exchange, send(mod(r+k, s.Ranks), b.in(0)))
	}
	for k := 1; k < s.Ranks; k++ {
		p := mod(r-k, s.Ranks)
		operands[p] = b.temp(p, 0)
		exchange = append(exchange, recv(p, operands[p]))
	}
	b.step(exchange...)
	b.step(fold(b.out(0), operands...))
	return b.schedule()
}
