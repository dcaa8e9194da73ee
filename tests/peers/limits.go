//go:build linux

package main

import "context"

// exchange is what two processes take now to exchange a cache line, in µs; 0 where that could not be measured.
func (b *comparison) exchange(ctx context.Context) float64 {
	out, err := output(ctx, nil, b.program("limits"))
	if err != nil {
		return 0
	}
	rows, err := parseRows(out)
	if err != nil || len(rows) == 0 {
		return 0
	}
	return rows[0].P50
}

// limits is what the machine can do at each size: copies and sums by two processes at once, and bytes both ways through a socket.
func (b *comparison) limits(ctx context.Context) ([]Row, error) {
	args := []string{b.program("limits")}
	for _, g := range groups {
		args = append(args, slice{group: g.within(b.most, "", 2)}.sizes()...)
	}
	out, err := output(ctx, nil, args...)
	if err != nil {
		return nil, err
	}
	return parseRows(out)
}

// limitOf names the rows of limits that bound a kind in a mode: the fastest of them is the limit.
func limitOf(mode, kind string) []string {
	switch {
	case mode == "tcp" || mode == "veth":
		return []string{"socket"}
	case mode != "shm":
		return nil // two processes measured them
	case kind == "all_reduce":
		return []string{"sum", "sum_streaming"}
	case kind == "reduce_scatter":
		return nil
	}
	return []string{"copy"}
}
