package comm

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
)

// NoColor as the colour of Split leaves the rank without a new communicator.
const NoColor = -1

// Split makes communicators of the ranks with equal colour, ordered by key and, where keys are equal, by rank. All ranks
// must call it, in the same order as other splits and collectives. The result shares connections and memory with c, but is
// independent: it may outlive c, and aborting one does not abort the other. With NoColor the result is nil, without an
// error. A colour below NoColor on any rank is an error on all. While some ranks are in Split and others in a collective or a Shrink or Grow
// instead, c fails on all with ErrMismatch. When ctx ends during the call c fails, too; a ctx that has ended before is an error that changes nothing.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if c.reason() != nil {
		return nil, c.refusal("split", c.verdict())
	}
	ctx, cancel := context.WithTimeout(ctx, c.family.cfg.InitTimeout)
	defer cancel()
	c.mu.Lock()
	c.splits++
	count := c.splits
	c.mu.Unlock()

	m := c.begin("split", c.everybody())
	defer c.end(m)
	colors, keys := []int{color}, []int{key}
	if c.session != nil {
		mine := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(color)), uint64(key))
		all, err := c.gatherFor(ctx, m, mine)
		if err != nil {
			return nil, err
		}
		colors, keys = make([]int, len(all)), make([]int, len(all))
		for r, b := range all {
			if len(b) != 16 {
				return nil, c.unmade("split", true, &cause{ranks: []int{r}, text: fmt.Sprintf("rank %d says %x of its colour and key", r, b), from: -1})
			}
			colors[r], keys[r] = int(binary.LittleEndian.Uint64(b)), int(binary.LittleEndian.Uint64(b[8:]))
		}
	}
	var members []int
	for r, col := range colors {
		if col < NoColor {
			return nil, argument("split: colour %d of rank %d, want -1 for none or a number from 0", col, r)
		}
		if col == color {
			members = append(members, r)
		}
	}
	if color == NoColor {
		return nil, nil
	}
	slices.SortStableFunc(members, func(a, b int) int { return cmp.Compare(keys[a], keys[b]) })
	c.narrow(m, members)
	return c.child(ctx, "split", members, childID(c.id, count, color))
}

// childID is the id of the communicator that the count-th split of a parent makes of a colour.
func childID(parent, count uint64, color int) uint64 {
	h := fnv.New64a()
	var b [24]byte
	binary.LittleEndian.PutUint64(b[:], parent)
	binary.LittleEndian.PutUint64(b[8:], count)
	binary.LittleEndian.PutUint64(b[16:], uint64(color))
	h.Write(b[:])
	return h.Sum64()
}
