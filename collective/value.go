package collective

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// values are expression trees over leaves (rank, chunk), one number for each distinct tree
// whoever built it, so that two ranks hold equal bits exactly if their numbers are equal.
// Number 0 is "nothing".
type values struct {
	nodes []node
	index map[string]int32
}

type node struct {
	rank, chunk int32   // of a leaf
	scaled      bool    // of a leaf
	sum         []int32 // of a fold: the operands in order
}

func newValues() *values { return &values{nodes: make([]node, 1), index: map[string]int32{}} }

func (v *values) intern(n node) int32 {
	key := make([]byte, 0, 4*len(n.sum)+9)
	if n.sum == nil {
		key = binary.LittleEndian.AppendUint32(append(key, 'l'), uint32(n.rank))
		key = binary.LittleEndian.AppendUint32(key, uint32(n.chunk))
		if n.scaled {
			key[0] = 's'
		}
	}
	for _, x := range n.sum {
		key = binary.LittleEndian.AppendUint32(key, uint32(x))
	}
	if id, ok := v.index[string(key)]; ok {
		return id
	}
	v.nodes = append(v.nodes, n)
	id := int32(len(v.nodes) - 1)
	v.index[string(key)] = id
	return id
}

func (v *values) leaf(rank, chunk int, scaled bool) int32 {
	return v.intern(node{rank: int32(rank), chunk: int32(chunk), scaled: scaled})
}

// fold returns the tree of a fold. A fold of nothing, or with nothing, is nothing.
func (v *values) fold(operands []int32) int32 {
	for _, x := range operands {
		if x == 0 {
			return 0
		}
	}
	return v.intern(node{sum: append([]int32(nil), operands...)})
}

// scale returns the leaf scaled; what is not an unscaled leaf gives nothing.
func (v *values) scale(x int32) int32 {
	n := v.nodes[x]
	if x == 0 || n.sum != nil || n.scaled {
		return 0
	}
	n.scaled = true
	return v.intern(n)
}

// leaves calls f for each leaf of x, from left to right.
func (v *values) leaves(x int32, f func(node)) {
	for stack := []int32{x}; len(stack) > 0; {
		n := v.nodes[stack[len(stack)-1]]
		stack = stack[:len(stack)-1]
		if n.sum == nil {
			f(n)
		}
		for i := len(n.sum) - 1; i >= 0; i-- {
			stack = append(stack, n.sum[i])
		}
	}
}

// text prints x as (r0.c + r1.c), the leaf of rank 0 and chunk c first.
func (v *values) text(x int32) string {
	n := v.nodes[x]
	switch {
	case x == 0:
		return "nothing"
	case n.sum == nil && n.scaled:
		return fmt.Sprintf("f·r%d.%d", n.rank, n.chunk)
	case n.sum == nil:
		return fmt.Sprintf("r%d.%d", n.rank, n.chunk)
	}
	parts := make([]string, len(n.sum))
	for i, y := range n.sum {
		parts[i] = v.text(y)
	}
	return "(" + strings.Join(parts, " + ") + ")"
}
