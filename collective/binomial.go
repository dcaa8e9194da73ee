package collective

import "math/bits"

// binomialBroadcast halves the distance each step: whoever has the message sends it half as
// far as before. Ranks count from the root on.
//
// Steps ceil(log2 n) at the root. Bytes sent by the root S·ceil(log2 n), by a rank with v,
// counted from the root, at most S per zero bit at the end of v.
func binomialBroadcast(s Shape, r int) Schedule {
	n, v := s.Ranks, mod(r-s.Root, s.Ranks)
	b := newBuilder(s, r, 1)
	have := b.out(0)
	if v == 0 {
		have = b.in(0)
	}
	for k := bits.Len(uint(n-1)) - 1; k >= 0; k-- {
		var step []Instr
		far := 1 << k
		switch {
		case v%(2*far) == 0 && v+far < n:
			step = append(step, send(mod(r+far, n), have))
		case v%(2*far) == far:
			step = append(step, recv(mod(r-far, n), have))
		}
		if v == 0 && k == 0 {
			step = append(step, copySlot(b.out(0), b.in(0)))
		}
		b.step(step...)
	}
	return b.schedule()
}

// binomialReduce is the broadcast backwards: the distance doubles each step, and who has
// sent its sum is done. Ranks count from the root on.
//
// Steps ceil(log2 n) at the root. Bytes sent per rank S, by the root 0.
func binomialReduce(s Shape, r int) Schedule {
	n, v := s.Ranks, mod(r-s.Root, s.Ranks)
	b := newBuilder(s, r, 1)
	sum := b.in(0)
	for k := range bits.Len(uint(n - 1)) {
		far := 1 << k
		switch {
		case v%(2*far) == far:
			b.step(send(mod(r-far, n), sum))
			return b.schedule()
		case v+far >= n:
			b.step()
		default:
			old := sum
			if sum = b.temp(0, 0); v == 0 {
				b.s.Temps, sum = 0, b.out(0)
			}
			b.step(reduceRecv(mod(r+far, n), old, sum))
		}
	}
	return b.schedule()
}
