package collective

import "math/bits"

// doublingAllReduce has ranks exchange sums with partners at twice the distance each
// time. With n no power of two, each of the first odd ranks leaves its input to the even rank before
// it and is told the result, so that a power of two, m, takes part. The lower ranks'
// sum is the first operand on both sides: all compute the same tree.
//
// Steps log2(n), or with n no power of two up to 2+log2(m). Bytes sent per rank S·log2(m),
// at most S more. Same bits on every rank. Sums go to three blocks of Temp in turn, which
// leaves each alone for two steps, so that it can be lent.
func doublingAllReduce(s Shape, r int) Schedule {
	n, levels := s.Ranks, bits.Len(uint(s.Ranks))-1
	extra := n - 1<<levels // pairs (0,1), (2,3) … of which one takes part
	paired := r < 2*extra
	b := newBuilder(s, r, 1)
	sum, sums := b.in(0), 0
	next := func(last bool) Slot {
		sum = b.out(0)
		if !last {
			sum = b.temp(sums%3, 0)
		}
		sums++
		return sum
	}
	switch {
	case extra == 0:
	case !paired:
		b.step()
	case r%2 == 1:
		b.step(send(r-1, b.in(0)))
		for range levels {
			b.step()
		}
		b.step(recv(r-1, b.out(0)))
		return b.schedule()
	default:
		b.step(reduceRecv(r+1, b.in(0), next(false)))
	}
	v := r - extra // our number among those who take part
	if paired {
		v = r / 2
	}
	for k := range levels {
		partner := v ^ 1<<k
		peer := partner + extra
		if partner < extra {
			peer = 2 * partner
		}
		old := sum
		if partner > v {
			b.step(send(peer, old), reduceRecv(peer, old, next(k == levels-1)))
		} else {
			b.step(send(peer, old), recvReduce(peer, old, next(k == levels-1)))
		}
	}
	if paired {
		b.step(send(r+1, sum))
	}
	return b.schedule()
}
