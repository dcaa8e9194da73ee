package collective

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// values are expression trees over leaves, one number for each distinct tree whoever built
// it, so that two ranks hold equal bits exactly if their numbers are equal. Number 0 is
// "nothing".
type values struct {
	nodes  []node
	leaves map[leaf]int32
	sums   map[string]int32
	key    []byte
}

// node is a leaf or, with operands, their sum in that order.
type node struct {
	leaf
	sum []int32
}

// leaf is a chunk of a rank's input, or that times the call's factor.
type leaf struct {
	rank, chunk int32
	scaled      bool
}

func newValues() *values {
	return &values{nodes: make([]node, 1), leaves: map[leaf]int32{}, sums: map[string]int32{}}
}

func (v *values) leaf(l leaf) int32 {
	id, ok := v.leaves[l]
	if !ok {
		id = int32(len(v.nodes))
		v.nodes = append(v.nodes, node{leaf: l})
		v.leaves[l] = id
	}
	return id
}

// fold returns the tree of a fold. A fold of nothing, or with nothing, is nothing.
func (v *values) fold(operands []int32) int32 {
	v.key = v.key[:0]
	for _, x := range operands {
		if x == 0 {
			return 0
		}
		v.key = binary.LittleEndian.AppendUint32(v.key, uint32(x))
	}
	id, ok := v.sums[string(v.key)]
	if !ok && len(operands) > 0 {
		id = int32(len(v.nodes))
		v.nodes = append(v.nodes, node{sum: append([]int32(nil), operands...)})
		v.sums[string(v.key)] = id
	}
	return id
}

// scale returns the leaf scaled; what is not an unscaled leaf gives nothing.
func (v *values) scale(x int32) int32 {
	n := v.nodes[x]
	if x == 0 || n.sum != nil || n.scaled {
		return 0
	}
	n.scaled = true
	return v.leaf(n.leaf)
}

// walk calls f for each leaf of x, from left to right, until it returns false. A
// tree may have exponentially more leaves than there are nodes.
func (v *values) walk(x int32, f func(leaf) bool) bool {
	for stack := []int32{x}; len(stack) > 0; {
		n := v.nodes[stack[len(stack)-1]]
		stack = stack[:len(stack)-1]
		if n.sum == nil && !f(n.leaf) {
			return false
		}
		for i := len(n.sum) - 1; i >= 0; i-- {
			stack = append(stack, n.sum[i])
		}
	}
	return true
}

// isSum reports whether x adds the leaf chunk of each of n ranks once.
func (v *values) isSum(x int32, n, chunk int, scaled bool) bool {
	seen := make([]bool, n)
	return x != 0 && v.walk(x, func(l leaf) bool {
		if int(l.chunk) != chunk || l.scaled != scaled || seen[l.rank] {
			return false
		}
		seen[l.rank] = true
		n--
		return true
	}) && n == 0
}

// maxText is about where the text of an expression is cut off.
const maxText = 2000

// text prints x as (r0.c + r1.c), the leaf of rank 0 and chunk c first.
func (v *values) text(x int32) string {
	var b strings.Builder
	v.print(&b, x)
	return b.String()
}

func (v *values) print(b *strings.Builder, x int32) {
	n := v.nodes[x]
	switch {
	case x == 0:
		b.WriteString("nothing")
		return
	case n.sum == nil:
		if n.scaled {
			b.WriteString("f·")
		}
		fmt.Fprintf(b, "r%d.%d", n.rank, n.chunk)
		return
	}
	b.WriteByte('(')
	for i, y := range n.sum {
		if i > 0 {
			b.WriteString(" + ")
		}
		if b.Len() > maxText {
			b.WriteString("…")
			break
		}
		v.print(b, y)
	}
	b.WriteByte(')')
}
