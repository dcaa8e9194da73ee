package topology

import (
	"fmt"
	"math/bits"
)

// Tree is along which edges a channel gathers to one rank and spreads from it.
type Tree struct {
	Up   []int    `json:"up"` // each rank's parent; -1 for the root
	Rail int      `json:"rail"`
	Nets []NodeID `json:"nets"` // as in [Ring]
}

// Down returns a rank's children, in ascending order.
func (t Tree) Down(rank int) []int {
	var down []int
	for r, up := range t.Up {
		if up == rank {
			down = append(down, r)
		}
	}
	return down
}

// Trees plans one tree for each channel, with ranks, rails and channels as in [Rings]. On each host it is a chain in the order
// of the channel's ring, whose head, at the rail's port, alone speaks to other hosts. Between hosts even and odd channels are
// the two trees of a double binary tree: a host that has children in one is a leaf of the other, so that with half the data on
// each both directions of every port are busy.
func Trees(hosts []Local, channels int) ([]Tree, error) {
	rings, err := Rings(hosts, channels)
	if err != nil {
		return nil, fmt.Errorf("plan trees: %w", err)
	}
	trees := make([]Tree, len(rings))
	for c, r := range rings {
		t := Tree{Up: make([]int, len(r.Ranks)), Rail: r.Rail, Nets: r.Nets}
		heads := make([]int, len(hosts))
		at := 0
		for i, l := range hosts {
			heads[i] = r.Ranks[at]
			for k := at + 1; k < at+len(l.GPUs); k++ {
				t.Up[r.Ranks[k]] = r.Ranks[k-1]
			}
			at += len(l.GPUs)
		}
		for i, head := range heads {
			t.Up[head] = -1
			if up := doubleTree(i, len(hosts), c%2 == 1); up >= 0 {
				t.Up[head] = heads[up]
			}
		}
		trees[c] = t
	}
	return trees, nil
}

// doubleTree is i's parent in the first or second of two binary trees over 0 to n-1, -1 for the root. The second is the first
// one mirrored if n is even, else shifted by one.
func doubleTree(i, n int, second bool) int {
	switch {
	case !second:
		return binaryTree(i, n)
	case n%2 == 0:
		if up := binaryTree(n-1-i, n); up >= 0 {
			return n - 1 - up
		}
		return -1
	}
	if up := binaryTree((i-1+n)%n, n); up >= 0 {
		return (up + 1) % n
	}
	return -1
}

// binaryTree is i's parent in a tree whose odd numbers are its leaves: i with its lowest bit moved up by one, or without it
// where that is n or more. The root is 0.
func binaryTree(i, n int) int {
	if i == 0 {
		return -1
	}
	low := 1 << bits.TrailingZeros(uint(i))
	if up := i ^ low | low<<1; up < n {
		return up
	}
	return i ^ low
}
