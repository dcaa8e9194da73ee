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
