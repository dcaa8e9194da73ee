// Package pairwise thins the product of many factors to a set of rows in which every two values of any two factors still meet.
// Most faults need no more than two things to come together, and the product of all is too much to run.
//
// The result depends on the arguments alone. Factors that constrain each other (an algorithm belongs to a kind) are to be made one
// factor of their allowed combinations.
//
//	rows := pairwise.Cover([]int{3, 2, 4}, 1) // rows of three numbers, below 3, 2 and 4
package pairwise

import (
	"fmt"
	"math/rand/v2"
)

// candidates are how many rows are tried for each that is taken.
const candidates = 12

// pair is two values of two factors.
type pair struct{ a, x, b, y int }

// Cover returns rows with a value 0 … sizes[f]-1 for each factor f, such that for any two factors every pair of values is in
// some row. A single factor gets one row for each value. It panics when a size is not positive.
func Cover(sizes []int, seed uint64) [][]int {
	for f, n := range sizes {
		if n < 1 {
			panic(fmt.Sprintf("pairwise: factor %d has %d values", f, n))
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0x70616972))
	var rows [][]int
	if len(sizes) == 1 {
		for x := range sizes[0] {
			rows = append(rows, []int{x})
		}
		return rows
	}
	open := newOpenPairs(sizes)
	for len(open.list) > 0 {
		var best []int
		most := 0
		for range candidates {
			row := candidate(sizes, open, rng)
			if n := open.count(row); n > most {
				best, most = row, n
			}
		}
		open.remove(best)
		rows = append(rows, best)
	}
	return rows
}

// candidate starts from a pair that is open and gives the other factors, in a random order, the values that close most.
func candidate(sizes []int, open *openPairs, rng *rand.Rand) []int {
	row := make([]int, len(sizes))
	for f := range row {
		row[f] = -1
	}
	p := open.list[rng.IntN(len(open.list))]
	row[p.a], row[p.b] = p.x, p.y
	for _, f := range rng.Perm(len(sizes)) {
		if row[f] >= 0 {
			continue
		}
		best, most := 0, -1
		start := rng.IntN(sizes[f])
		for i := range sizes[f] {
			x := (start + i) % sizes[f]
			n := 0
			for g, y := range row {
				if y >= 0 && open.has(f, x, g, y) {
					n++
				}
			}
			if n > most {
				best, most = x, n
			}
		}
		row[f] = best
	}
	return row
}

// openPairs are the pairs that no row has yet.
type openPairs struct {
	list []pair
	at   map[pair]int // index in list
}

func newOpenPairs(sizes []int) *openPairs {
	o := &openPairs{at: map[pair]int{}}
	for a := range sizes {
		for b := a + 1; b < len(sizes); b++ {
			for x := range sizes[a] {
				for y := range sizes[b] {
					p := pair{a, x, b, y}
					o.at[p] = len(o.list)
					o.list = append(o.list, p)
				}
			}
		}
	}
	return o
}

func (o *openPairs) has(f, x, g, y int) bool {
	if f > g {
		f, x, g, y = g, y, f, x
	}
	_, ok := o.at[pair{f, x, g, y}]
	return ok
}

// count is how many open pairs a row would close.
func (o *openPairs) count(row []int) (n int) {
	for f, x := range row {
		for g := f + 1; g < len(row); g++ {
			if o.has(f, x, g, row[g]) {
				n++
			}
		}
	}
	return n
}

func (o *openPairs) remove(row []int) {
	for f, x := range row {
		for g := f + 1; g < len(row); g++ {
			p := pair{f, x, g, row[g]}
			i, ok := o.at[p]
			if !ok {
				continue
			}
			last := o.list[len(o.list)-1]
			o.list[i] = last
			o.at[last] = i
			o.list = o.list[:len(o.list)-1]
			delete(o.at, p)
		}
	}
}
