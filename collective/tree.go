package collective

import "math/bits"

// treeAllReduce sums up and sends down two trees at once, each with one half of the data: binary trees over the hosts, of which
// each is a leaf in one and inside the other, but for one with an odd number of them, so that all links are used both ways; and a
// chain of the ranks of each host. Without hosts to speak of that is two binary trees over the ranks.
//
// With h the height of the binary trees of H hosts, floor(log2(H-1))+1, and up to m ranks on each, the sums go up in h+m-1
// messages one after the other and down in at most as many. Bytes sent per rank at most 2·S, between hosts 2·S·(H-1) in all. Same
// bits on every rank: only the roots compute the sums.
//
// A node of height g sends up in step 2g, having folded in step 2g-1 what it received, at
// the latest, in step 2g-2. One at depth d receives from above in step 2(h+m-1)+d-1 and sends
// down in the next. Memory that was sent is not written again.
func treeAllReduce(s Shape, r int) Schedule {
	b := newBuilder(s, r, 2)
	var steps stepList
	for t := range 2 {
		at := s.branch(r, t)
		sum := b.sumUp(&steps, at, t, 0)
		down := 2*at.top + at.depth
		if at.up >= 0 {
			steps.add(2*at.height, send(at.up, sum))
			steps.add(down-1, recv(at.up, b.out(t)))
		}
		for _, c := range at.below {
			steps.add(down, send(c.rank, b.out(t)))
		}
	}
	return b.stepped(steps)
}

// treeBroadcast sends down two trees at once, each with one half of the data: as in treeAllReduce, but with the root at the top of both.
// A host that is inside one of the binary trees is a leaf in the other, but for the root's and with an even number of hosts one more.
//
// Messages one after the other at most h+m. Bytes sent per rank at most 2·S, between hosts S·(H-1) in all. One tree has the even
// steps and the other the odd ones, so that no two messages go to one rank at once.
func treeBroadcast(s Shape, r int) Schedule {
	b := newBuilder(s, r, 2)
	var steps stepList
	for t := range 2 {
		at := s.branch(r, t)
		from := b.out(t)
		if at.up < 0 {
			from = b.in(t)
			steps.add(t, copySlot(b.out(t), from))
		} else {
			steps.add(2*at.depth-2+t, recv(at.up, from))
		}
		for _, c := range at.below {
			steps.add(2*at.depth+t, send(c.rank, from))
		}
	}
	return b.stepped(steps)
}

// treeReduce is treeBroadcast backwards: sums go up two trees at once.
//
// Messages one after the other at most h+m. Bytes sent per rank S, by the root 0, between hosts S·(H-1) in all.
func treeReduce(s Shape, r int) Schedule {
	b := newBuilder(s, r, 2)
	var steps stepList
	for t := range 2 {
		at := s.branch(r, t)
		sum := b.sumUp(&steps, at, t, t)
		if at.up >= 0 {
			steps.add(2*at.height+t, send(at.up, sum))
		}
	}
	return b.stepped(steps)
}

// sumUp receives piece t from below and folds it with our own, in the order of places in the tree, and says where the sum is. All is
// done so many steps late.
func (b *builder) sumUp(steps *stepList, at branch, t, late int) Slot {
	if len(at.below) == 0 {
		return b.in(t)
	}
	var before, after []Slot
	for i, c := range at.below {
		part := b.temp(1+i, t)
		if c.before {
			before = append(before, part)
		} else {
			after = append(after, part)
		}
		steps.add(2*c.height+late, recv(c.rank, part))
	}
	sum := b.temp(0, t)
	if at.up < 0 {
		sum = b.out(t)
	}
	steps.add(2*at.height-1+late, fold(sum, append(append(before, b.in(t)), after...)...))
	return sum
}

// stepList collects the instrs of steps in any order.
type stepList [][]Instr

func (l *stepList) add(k int, in Instr) {
	for len(*l) <= k {
		*l = append(*l, nil)
	}
	(*l)[k] = append((*l)[k], in)
}

// stepped adds the steps and ends the schedule.
func (b *builder) stepped(steps stepList) Schedule {
	for _, step := range steps {
		b.step(step...)
	}
	return b.schedule()
}

// branch is a rank's place in a tree: a binary tree over the hosts' first ranks, and on each host a chain from there.
type branch struct {
	up     int // the rank above; -1 at the top
	below  []twig
	height int // the most edges down to a leaf, were all chains as long as the longest
	depth  int // edges up to the top
	top    int // height of the top
}

// twig is a rank below another.
type twig struct {
	rank, height int
	before       bool // its sum stands before that of the rank above
}

// branch finds the place of rank r in tree number 0 or 1. The chains of the second go the other way round, so that another rank of
// a host speaks to other hosts; where there is a root, it is the first rank of its host and its host the first of all in both.
func (s Shape) branch(r, number int) branch {
	at := s.host(r)
	tree := doubleTree{n: s.hosts(), number: number}
	if s.Kind.Rooted() {
		tree.rooted, tree.root = true, s.host(s.Root).index
	}
	longest, position := s.most()-1, tree.position(at.index)
	place := s.link(at, r, number)
	b := branch{up: -1, height: longest - place, depth: tree.depth(position) + place, top: longest + tree.height(0)}
	if place > 0 {
		b.up = s.linked(at, place-1, number)
	} else {
		b.height += tree.height(position)
		if position > 0 {
			b.up = s.linked(s.hostAt(tree.rank(tree.parent(position))), 0, number)
		}
		for _, p := range tree.children(position) {
			b.below = append(b.below, twig{s.linked(s.hostAt(tree.rank(p)), 0, number), longest + tree.height(p), p < position})
		}
	}
	if place+1 < at.size {
		b.below = append(b.below, twig{s.linked(at, place+1, number), longest - place - 1, false})
	}
	return b
}

// link is a rank's place in the chain of its host, and linked the rank at a place.
func (s Shape) link(h home, r, number int) int {
	first := s.Root - h.first
	switch rooted := s.Kind.Rooted() && first >= 0 && first < h.size; {
	case rooted && number == 0:
		return mod(r-s.Root, h.size)
	case rooted:
		return mod(s.Root-r, h.size)
	case number == 0:
		return r - h.first
	}
	return h.first + h.size - 1 - r
}

func (s Shape) linked(h home, place, number int) int {
	first := s.Root - h.first
	switch rooted := s.Kind.Rooted() && first >= 0 && first < h.size; {
	case rooted && number == 0:
		return h.first + mod(first+place, h.size)
	case rooted:
		return h.first + mod(first-place, h.size)
	case number == 0:
		return h.first + place
	}
	return h.first + h.size - 1 - place
}

// doubleTree is one of two binary trees over n ranks (or hosts), of number 0 or 1. Both are the same
// tree over positions 0…n-1; position p of the second is rank n-1-p or, with n odd, the
// rank after p, so that the odd positions, which are leaves, are other ranks.
//
// Position 0 is the root, with one child. Below it, a position whose lowest set bit is b is
// between the positions of its left subtree, p-b+1…p-1, and of its right subtree, up to
// p+b-1 or n-1.
//
// With a root, position 0 of both is the root, and the others take turns likewise.
type doubleTree struct {
	n, number int
	rooted    bool
	root      int
}

func (t doubleTree) rank(position int) int {
	switch {
	case t.rooted:
		switch {
		case t.number == 0 || position == 0:
		case t.n%2 == 1:
			position = t.n - position
		default:
			position = mod(position-2, t.n-1) + 1
		}
		return mod(t.root+position, t.n)
	case t.number == 0:
		return position
	case t.n%2 == 0:
		return t.n - 1 - position
	}
	return mod(position+1, t.n)
}

func (t doubleTree) position(rank int) int {
	switch {
	case t.rooted:
		switch v := mod(rank-t.root, t.n); {
		case t.number == 0 || v == 0:
			return v
		case t.n%2 == 1:
			return t.n - v
		default:
			return v%(t.n-1) + 1
		}
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
	if t.n == 1 {
		return nil
	}
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
