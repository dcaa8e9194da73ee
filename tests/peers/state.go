//go:build linux

package main

import (
	"fmt"
	"math"
	"slices"
)

// state is what a slice found the machine in. On a shared host the processors that we run on are near each other at one time and far at another, and
// a cache line takes several times as long between them: short calls of peers that were not measured in the same state cannot be compared.
type state struct {
	name string
	rows []Row
}

// apart is how many times as long as the quick exchanges of a line the slow ones must take for there to be two states.
const apart = 2

// states has the rows of the slices before and after which the processors were near, and of those where they were far; none where they were always the
// same. Slices in which that changed are in neither.
func states(rows []Row) []state {
	var times []float64
	for _, r := range rows {
		if r.Exchange > 0 && r.After > 0 {
			times = append(times, r.Exchange, r.After)
		}
	}
	if len(times) == 0 {
		return nil
	}
	slices.Sort(times)
	least, most := times[len(times)/10], times[len(times)-1-len(times)/10] // one disturbed exchange is no state
	if most < apart*least {
		return nil
	}
	between := math.Sqrt(least * most)
	near := state{name: fmt.Sprintf("slices of near processors (a line each way in less than %.3g us)", between)}
	far := state{name: fmt.Sprintf("slices of distant processors (a line each way in %.3g us or more)", between)}
	for _, r := range rows {
		switch {
		case r.Exchange <= 0 || r.After <= 0:
		case r.Exchange < between && r.After < between:
			near.rows = append(near.rows, r)
		case r.Exchange >= between && r.After >= between:
			far.rows = append(far.rows, r)
		}
	}
	return slices.DeleteFunc([]state{near, far}, func(s state) bool { return len(s.rows) == 0 })
}
