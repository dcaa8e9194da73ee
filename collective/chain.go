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

// chainReduce hands the sum from rank to rank, to the root from the rank before it, and is to be
// used like the chain broadcast. Unlike a tree's, its root receives the message once.
//
// Steps at most 2 per rank, one after the other over all ranks n-1. Bytes sent per rank S, by the
// root 0.
func chainReduce(s Shape, r int) Schedule {
	n, v := s.Ranks, mod(r-s.Root, s.Ranks)
	next, prev := mod(r+1, n), mod(r-1, n)
	b := newBuilder(s, r, 1)
	sum := b.in(0)
	if v < n-1 {
		if v == 0 {
			sum = b.out(0)
		} else {
			sum = b.temp(0, 0)
		}
		b.step(reduceRecv(next, b.in(0), sum))
	}
	if v > 0 {
		b.step(send(prev, sum))
	}
	return b.schedule()
}
