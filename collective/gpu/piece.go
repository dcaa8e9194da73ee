package gpu

import (
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// piece is where in the blocks one of some pieces is, in bytes.
func (x *exchange) piece(k, pieces int) (at, bytes int64) {
	layout := collective.Layout{Count: x.count, Elem: x.calls[0].DType.Size(), Round: max(x.count, 1), Pieces: pieces}
	first, count := layout.Piece(0, k)
	return int64(first) * int64(layout.Elem), int64(count) * int64(layout.Elem)
}

// twoShot: every site folds a piece and stores the result for all others, of a reduce for the root alone.
func (x *exchange) twoShot() bool {
	n := len(x.l.sites)
	wants := func(int) bool { return true }
	if call := &x.calls[0]; call.Kind == collective.Reduce {
		root := x.l.siteOf[call.Root]
		wants = func(s int) bool { return s == root }
	}
	for g := range n {
		at, bytes := x.piece(g, n)
		if bytes == 0 {
			continue
		}
		relays := x.sendOn(g, at, bytes, wants)
		var late []unsafe.Pointer
		if wants(g) {
			late = x.results(g, at)
		}
		x.fold(g, 0, at, bytes, late, relays)
	}
	x.everybody() // who stores nothing has to tell
	return !x.full
}

// scatter: a broadcast's root stores a piece for every other site, which stores it for the rest.
func (x *exchange) scatter(root int) bool {
	n, here := len(x.l.sites), x.l.siteOf[root]
	src := x.in(root, 0)
	if early := x.outs(here, 0, 0, src); len(early) > 0 {
		x.near[here] = append(x.near[here], cuda.Pass{Bytes: x.block, Srcs: x.lists.one(src), Early: early, At: -1})
	}
	for g, k := 0, 0; g < n; g++ {
		if g == here {
			continue
		}
		at, bytes := x.piece(k, n-1)
		if k++; bytes == 0 {
			continue
		}
		relays := x.sendOn(g, at, bytes, func(s int) bool { return s != here })
		put, take := x.row(here, g, bytes)
		x.puts[here] = append(x.puts[here], cuda.Pass{Bytes: bytes, Srcs: x.lists.one(unsafe.Add(src, at)), Puts: x.lists.row(put), At: -1})
		x.takes[g] = append(x.takes[g], cuda.Pass{Bytes: bytes, Takes: x.lists.row(take), Late: x.results(g, at), Relays: relays, At: -1})
	}
	x.everybody()
	return !x.full
}

// results are the places of a piece on a site.
func (x *exchange) results(site int, at int64) []unsafe.Pointer {
	if x.calls[0].Kind == collective.Reduce {
		return x.lists.one(unsafe.Add(x.out(x.calls[0].Root, 0), at))
	}
	return x.outs(site, 0, at, nil)
}

// sendOn makes rows from a site for a piece to others that want it, which take it at last.
func (x *exchange) sendOn(from int, at, bytes int64, wants func(site int) bool) []cuda.Row {
	first := len(x.lists.rows)
	for s := range x.l.sites {
		if s != from && wants(s) {
			put, _ := x.row(from, s, bytes)
			x.lists.rows = append(x.lists.rows, put)
		}
	}
	relays := x.lists.rowsFrom(first)
	for s, k := 0, 0; s < len(x.l.sites); s++ {
		if s != from && wants(s) {
			x.rest[s] = append(x.rest[s], cuda.Pass{Bytes: bytes, Takes: x.lists.row(relays[k].From(from)), Late: x.results(s, at), At: -1})
			k++
		}
	}
	return relays
}
