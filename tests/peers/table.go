//go:build linux

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// cell is what the repeats of one peer, kind and size come to.
type cell struct{ p50, p99, spread float64 }

type place struct {
	kind, peer string
	bytes      int64
}

// summary has the median over repeats of each peer's medians and percentiles, and how far the medians are apart.
func summary(rows []Row) map[place]cell {
	all := map[place][]Row{}
	for _, r := range rows {
		peer := r.Peer
		if peer == "limit" {
			peer += " " + r.Kind
		}
		k := place{r.Kind, peer, r.Bytes}
		all[k] = append(all[k], r)
	}
	cells := map[place]cell{}
	for k, rs := range all {
		var p50, p99 []float64
		for _, r := range rs {
			p50, p99 = append(p50, r.P50), append(p99, r.P99)
		}
		slices.Sort(p50)
		slices.Sort(p99)
		cells[k] = cell{p50[len(p50)/2], p99[len(p99)/2], p50[len(p50)-1] / max(p50[0], 1e-9)}
	}
	return cells
}

// limit is the machine's limit for a kind and size, or 0.
func limit(cells map[place]cell, mode, kind string, bytes int64) (least float64) {
	for _, name := range limitOf(mode, kind) {
		if c, ok := cells[place{name, "limit " + name, bytes}]; ok && (least == 0 || c.p50 < least) {
			least = c.p50
		}
	}
	return least
}

func isOurs(peer string) bool { return strings.HasPrefix(peer, "gccl-") }

// table is what a mode comes to: medians in µs (99th percentile; spread of the repeats), gccl's ratios to the best peer, of medians and of 99th
// percentiles, and the limit. Rows are those of the state that the title names; where a peer among all rows is not among them nobody is the best.
func table(title, mode string, rows, all []Row) string {
	cells, everywhere := summary(rows), summary(all)
	sizes, kinds, peers := map[int64]bool{}, map[string]bool{}, map[string]bool{}
	for k := range everywhere {
		if !strings.HasPrefix(k.peer, "limit") {
			sizes[k.bytes], kinds[k.kind], peers[k.peer] = true, true, true
		}
	}
	names := slices.Sorted(maps.Keys(peers))
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "# %s: median us (p99; slowest/fastest repeat)\n", title)
	fmt.Fprintf(w, "kind\tbytes\t%s\tslice/best\talloc/best\tp99 slice/best\tp99 alloc/best\tlimit\talloc/limit\n", strings.Join(names, "\t"))
	for _, kind := range allKinds {
		if !kinds[kind] {
			continue
		}
		for _, n := range slices.Sorted(maps.Keys(sizes)) {
			best, bestP99, missing := 0.0, 0.0, false
			row, measured := []string{kind, fmt.Sprint(n)}, false
			for _, p := range names {
				c, ok := cells[place{kind, p, n}]
				if !ok {
					_, elsewhere := everywhere[place{kind, p, n}]
					missing = missing || elsewhere && !isOurs(p)
					row = append(row, "-")
					continue
				}
				measured = true
				if !isOurs(p) && (best == 0 || c.p50 < best) {
					best = c.p50
				}
				if !isOurs(p) && (bestP99 == 0 || c.p99 < bestP99) {
					bestP99 = c.p99
				}
				row = append(row, fmt.Sprintf("%.4g (%.4g; %.2f)", c.p50, c.p99, c.spread))
			}
			if !measured {
				continue
			}
			if missing {
				best, bestP99 = 0, 0
			}
			p50, p99 := func(c cell) float64 { return c.p50 }, func(c cell) float64 { return c.p99 }
			of := func(p string, what func(cell) float64, to float64) string {
				c, ok := cells[place{kind, p, n}]
				if !ok || to == 0 {
					return "-"
				}
				return fmt.Sprintf("%.2f", what(c)/to)
			}
			l := limit(cells, mode, kind, n)
			row = append(row, of("gccl-slice", p50, best), of("gccl-alloc", p50, best), of("gccl-slice", p99, bestP99), of("gccl-alloc", p99, bestP99),
				fmt.Sprintf("%.4g", l), of("gccl-alloc", p50, l))
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
	}
	w.Flush()
	return b.String()
}
