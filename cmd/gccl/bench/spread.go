package bench

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gccl-project/gccl/comm"
)

// gather returns every rank's numbers, of which all give equally many.
func gather(ctx context.Context, c *comm.Comm, own []int64) ([][]int64, error) {
	all := make([]int64, len(own)*c.Size())
	if err := comm.AllGather(ctx, c, all, own); err != nil {
		return nil, err
	}
	parts := make([][]int64, c.Size())
	for q := range parts {
		parts[q] = all[q*len(own) : (q+1)*len(own)]
	}
	return parts, nil
}

// tally returns the sum of every rank's number.
func tally(ctx context.Context, c *comm.Comm, own int64) (sum int64, err error) {
	all, err := gather(ctx, c, []int64{own})
	for _, part := range all {
		sum += part[0]
	}
	return sum, err
}

// spread returns every rank's value, sent as JSON.
func spread[T any](ctx context.Context, c *comm.Comm, own T) ([]T, error) {
	text, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	lengths, err := gather(ctx, c, []int64{int64(len(text))})
	if err != nil {
		return nil, err
	}
	longest := int64(0)
	for _, n := range lengths {
		longest = max(longest, n[0])
	}
	padded := make([]byte, longest)
	copy(padded, text)
	all := make([]byte, longest*int64(c.Size()))
	if err := comm.AllGather(ctx, c, all, padded); err != nil {
		return nil, err
	}
	values := make([]T, c.Size())
	for q := range values {
		at := int64(q) * longest
		if err := json.Unmarshal(all[at:at+lengths[q][0]], &values[q]); err != nil {
			return nil, fmt.Errorf("what rank %d says of itself: %w", q, err)
		}
	}
	return values, nil
}
