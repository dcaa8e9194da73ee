package collective

// directAllToAll has every rank send every other its block at once.
//
// Steps 1. Bytes sent per rank S·(n-1), of a block of S.
func directAllToAll(s Shape, r int) Schedule {
	n, b := s.Ranks, newBuilder(s, r, 1)
	step := []Instr{copySlot(b.out(r), b.in(r))}
	for k := 1; k < n; k++ {
		step = append(step, send(mod(r+k, n), b.in(r+k)))
	}
	for k := 1; k < n; k++ {
		step = append(step, recv(mod(r-k, n), b.out(r-k)))
	}
	b.step(step...)
	return b.schedule()
}

// pairwiseAllToAll has ranks exchange blocks in pairs, as in a tournament where everybody
// meets everybody else once, in n-1 steps or, with n odd and one rank idle in each, n. What
// is sent and received in a step is the same block of memory in an in-place call, so
// that it needs no other.
//
// Steps n-1. Bytes sent per rank S·(n-1), of a block of S. Each step is one message each way.
func pairwiseAllToAll(s Shape, r int) Schedule {
	n, b := s.Ranks, newBuilder(s, r, 1)
	m := (n - 1) | 1 // odd: the ranks below m whose sum is k mod m meet in step k
	for k := range m {
		p := mod(k-r, m)
		if r == m {
			p = k * (m + 1) / 2 % m // meets who would meet itself: (m+1)/2 halves
		} else if p == r {
			p = m
		}
		var step []Instr
		if p < n {
			step = []Instr{send(p, b.in(p)), recv(p, b.out(p))}
		}
		if k == 0 {
			step = append(step, copySlot(b.out(r), b.in(r)))
		}
		b.step(step...)
	}
	return b.schedule()
}
