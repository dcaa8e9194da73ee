package collective

// chainBroadcast hands the message from rank to rank, from the root on. Alone it is as slow as
// can be; with many rounds in flight every link carries the message once, at full speed.
//
// Steps at most 2 per rank, one after the other over all ranks n-1. Bytes sent per rank S, by the
// last 0.
func chainBroadcast(s Shape, r int) Schedule {
	n, v := s.Ranks, mod(r-s.Root, s.Ranks)
	next, prev := mod(r+1, n), mod(r-1, n)
	b := newBuilder(s, r, 1)
	if v == 0 {
		b.step(send(next, b.in(0)), copySlot(b.out(0), b.in(0)))
		return b.schedule()
	}
	b.step(recv(prev, b.out(0)))
	if v < n-1 {
		b.step(send(next, b.out(0)))
	}
	return b.schedule()
}
