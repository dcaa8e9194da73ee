package shm

import (
	"cmp"
	"slices"
)

// extent is the bytes from lo to before hi.
type extent struct{ lo, hi int64 }

// extents is a set of bytes: disjoint extents that do not touch, in order. It is
// the free space of a segment, and the part of a peer's that is known to be
// there.
type extents []extent

// add unites the set with [lo, hi).
func (s *extents) add(lo, hi int64) {
	i, _ := slices.BinarySearchFunc(*s, lo, func(e extent, lo int64) int { return cmp.Compare(e.hi, lo) })
	j := i
	for j < len(*s) && (*s)[j].lo <= hi {
		lo, hi = min(lo, (*s)[j].lo), max(hi, (*s)[j].hi)
		j++
	}
	*s = slices.Replace(*s, i, j, extent{lo, hi})
}

// take removes n bytes that begin at a multiple of align from the first extent
// that has room, and returns where they begin.
func (s *extents) take(n, align int64) (lo int64, ok bool) {
	for i, e := range *s {
		lo := (e.lo + align - 1) / align * align
		if lo > e.hi || e.hi-lo < n {
			continue
		}
		rest := make([]extent, 0, 2)
		if lo > e.lo {
			rest = append(rest, extent{e.lo, lo})
		}
		if lo+n < e.hi {
			rest = append(rest, extent{lo + n, e.hi})
		}
		*s = slices.Replace(*s, i, i+1, rest...)
		return lo, true
	}
	return 0, false
}

// around returns the extent that holds [lo, hi), if there is one.
func (s extents) around(lo, hi int64) (extent, bool) {
	i, _ := slices.BinarySearchFunc(s, hi, func(e extent, hi int64) int { return cmp.Compare(e.hi, hi) })
	if i < len(s) && s[i].lo <= lo {
		return s[i], true
	}
	return extent{}, false
}

// touch reports whether a byte of [lo, hi) is in the set.
func (s extents) touch(lo, hi int64) bool {
	i, _ := slices.BinarySearchFunc(s, lo, func(e extent, lo int64) int { return cmp.Compare(e.hi, lo+1) })
	return i < len(s) && s[i].lo < hi
}
