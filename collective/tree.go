package collective

import "math/bits"

// treeAllReduce sums up and sends down two binary trees at once, each with one half of the data.
// A rank is a leaf in one tree and inside the other, but for one rank with n odd, so all
// links are used both ways.
//
// With h the height of the trees, floor(log2(n-1))+1, the sums go up in h messages one after
// the other and down in at most h. Bytes sent per rank at most 2·S. Same bits on every rank: only the
// roots compute the sums.
//
// A node of height g sends up in step 2g, having folded in step 2g-1 what it received, at
// the latest, in step 2g-2. One at depth d receives from above in step 2h+d-1 and sends
// down in the next. Memory that was sent is not written again.
func treeAllReduce(s Shape, r int) Schedule {
	b := newBuilder(s, r, 2)
	var steps [][]Instr
	add := func(k int, in Instr) {
		for len(steps) <= k {
			steps = append(steps, nil)
		}
		steps[k] = append(steps[k], in)
	}
	for t := range 2 {
		tree := doubleTree{s.Ranks, t}
		at := tree.position(r)
		top := 2 * tree.height(0)
		// Up. Sums are in the order of positions.
		sum, below := b.in(t), tree.children(at)
		var before, after []Slot
		for i, c := range below {
			part := b.temp(1+i, t)
			if c < at {
				before = append(before, part)
			} else {
				after = append(after, part)
			}
			add(2*tree.height(c), recv(tree.rank(c), part))
		}
		if len(below) > 0 {
			operands := append(append(before, sum), after...)
			if sum = b.temp(0, t); at == 0 {
				sum = b.out(t)
			}
			add(2*tree.height(at)-1, fold(sum, operands...))
		}
		// Down.
		down := top
		if at != 0 {
			up := tree.rank(tree.parent(at))
			down += tree.depth(at)
			add(2*tree.height(at), send(up, sum))
			add(down-1, recv(up, b.out(t)))
		}
		for _, c := range below {
			add(down, send(tree.rank(c), b.out(t)))
		}
	}
	for _, step := range steps {
		b.step(step...)
	}
	return b.schedule()
}

// doubleTree is one of two binary trees over n ranks, of number 0 or 1. Both are the same
// tree over positions 0…n-1; position p of the second is rank n-1-p or, with n odd, the
// rank after p, so that the odd positions, which are leaves, are other ranks.
//
// Position 0 is the root, with one child. Below it, a position whose lowest set bit is b is
// between the positions of its left subtree, p-b+1…p-1, and of its right subtree, up to
// p+b-1 or n-1.
type doubleTree struct{ n, number int }

func (t doubleTree) rank(position int) int {
	switch {
	case t.number == 0:
		return position
	case t.n%2 == 0:
		return t.n - 1 - position
	}
	return mod(position+1, t.n)
}

func (t doubleTree) position(rank int) int {
	switch {
	case t.number == 0:
		return rank
	case t.n%2 == 0:
		return t.n - 1 - rank
	}
	return mod(rank-1, t.n)
}

func lowestBit(p int) int { return p & -p }

// children returns the positions below p, in order.
func (t doubleTree) children(p int) []int {
	if p == 0 {
		return []int{1 << (bits.Len(uint(t.n-1)) - 1)}
	}
	half := lowestBit(p) / 2
	if half == 0 {
		return nil
	}
	below := []int{p - half}
	for ; half > 0; half /= 2 {
		if p+half < t.n {
			return append(below, p+half)
		}
	}
	return below
}

// parent returns the position above p ≠ 0.
func (t doubleTree) parent(p int) int {
	b := lowestBit(p)
	if up := p&^b | b<<1; up < t.n {
		return up
	}
	return p &^ b
}

// height returns the most edges from p down to a leaf: those to the left, where nothing
// is missing.
func (t doubleTree) height(p int) int {
	if p == 0 {
		return bits.Len(uint(t.n - 1))
	}
	return bits.TrailingZeros(uint(p))
}

// depth returns the edges from the root to p.
func (t doubleTree) depth(p int) int {
	d := 0
	for p != 0 {
		p = t.parent(p)
		d++
	}
	return d
}
