package collective

// ringAllReduce passes partial sums round the ring, then the sums.
//
// Steps 2(n-1). Bytes sent per rank 2·S·(n-1)/n. Same bits on every rank.
func ringAllReduce(s Shape, r int) Schedule {
	n, next, prev := s.Ranks, mod(r+1, s.Ranks), mod(r-1, s.Ranks)
	b := newBuilder(s, r, n)
	for k := range n - 1 {
		b.step(send(next, b.partial(r-k)), recvReduce(prev, b.in(r-k-1), b.out(r-k-1)))
	}
	for k := range n - 1 {
		b.step(send(next, b.out(r+1-k)), recv(prev, b.out(r-k)))
	}
	return b.schedule()
}

// ringAllGather passes every block round the ring.
//
// Steps n-1. Bytes sent per rank S·(n-1), of a block of S.
func ringAllGather(s Shape, r int) Schedule {
	n, next, prev := s.Ranks, mod(r+1, s.Ranks), mod(r-1, s.Ranks)
	b := newBuilder(s, r, 1)
	b.step(send(next, b.in(0)), recv(prev, b.out(r-1)), copySlot(b.out(r), b.in(0)))
	for k := 1; k < n-1; k++ {
		b.step(send(next, b.out(r-k)), recv(prev, b.out(r-k-1)))
	}
	return b.schedule()
}

// ringReduceScatter passes partial sums round the ring, each to end where it is wanted.
//
// Steps n-1. Bytes sent per rank S·(n-1), of a block of S. Three blocks of Temp in turn leave a
// partial sum alone for two steps, so that it can be lent.
func ringReduceScatter(s Shape, r int) Schedule {
	n, next, prev := s.Ranks, mod(r+1, s.Ranks), mod(r-1, s.Ranks)
	b := newBuilder(s, r, 1)
	partial := b.in(r - 1)
	for k := range n - 1 {
		sum := b.out(0)
		if k < n-2 {
			sum = b.temp(k%3, 0)
		}
		b.step(send(next, partial), recvReduce(prev, b.in(r-k-2), sum))
		partial = sum
	}
	return b.schedule()
}
