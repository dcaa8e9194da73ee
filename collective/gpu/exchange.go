package gpu

import (
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// An exchange writes the LL128 programs of all sites for a call. Ranks on one site fold their inputs first, so that the link carries
// one operand of a site: the tree of a sum is the fold, in the order of sites, of each site's fold in the order of ranks.
type exchange struct {
	l      *links
	calls  []Call
	block  int64   // bytes of each rank's block that are exchanged,
	base   int64   // from these on,
	count  int     // elements,
	stride int64   // and from a block to the next
	used   []int64 // of the rows of a pair, by storing site and other one
	full   bool    // something did not fit

	puts, near, takes, rest [][]cuda.Pass // of each site, in this order: what stores rows, copies at home, what takes rows, what comes after
	lists                   arena
	tells                   []uint64 // of each site: the sites that it stores rows for
	meets                   []uint64 // of each site: the sites that it exchanges with
}

// An arena holds the lists of passes, from call to call.
type arena struct {
	places []unsafe.Pointer
	rows   []cuda.Row
}

func (a *arena) reset() { a.places, a.rows = a.places[:0], a.rows[:0] }

// one and row return lists of one. Growth moves later lists alone.
func (a *arena) one(p unsafe.Pointer) []unsafe.Pointer {
	a.places = append(a.places, p)
	return a.placesFrom(len(a.places) - 1)
}

func (a *arena) row(r cuda.Row) []cuda.Row {
	a.rows = append(a.rows, r)
	return a.rowsFrom(len(a.rows) - 1)
}

// placesFrom and rowsFrom return what was added since there were so many.
func (a *arena) placesFrom(n int) []unsafe.Pointer { return a.places[n:len(a.places):len(a.places)] }
func (a *arena) rowsFrom(n int) []cuda.Row         { return a.rows[n:len(a.rows):len(a.rows)] }

func (x *exchange) begin(l *links, calls []Call) {
	n := len(l.sites)
	if len(x.puts) != n {
		x.puts, x.near, x.takes, x.rest = make([][]cuda.Pass, n), make([][]cuda.Pass, n), make([][]cuda.Pass, n), make([][]cuda.Pass, n)
		x.used, x.tells, x.meets = make([]int64, n*n), make([]uint64, n), make([]uint64, n)
	}
	x.l, x.calls, x.full = l, calls, false
	if calls != nil {
		x.round(0, calls[0].Count)
	}
	x.lists.reset()
	clear(x.used)
	clear(x.tells)
	clear(x.meets)
	for i := range n {
		x.puts[i], x.near[i], x.takes[i], x.rest[i] = x.puts[i][:0], x.near[i][:0], x.takes[i][:0], x.rest[i][:0]
	}
}

// round has the part of every block exchanged that begins at element first.
func (x *exchange) round(first, count int) {
	call := &x.calls[0]
	elem := int64(call.DType.Size())
	x.count, x.block, x.base, x.stride = count, int64(count)*elem, int64(first)*elem, int64(call.Count)*elem
}

// meet has two sites exchange in this call.
func (x *exchange) meet(a, b int) {
	if a != b {
		x.meets[a] |= 1 << b
		x.meets[b] |= 1 << a
	}
}

func (x *exchange) everybody() {
	for a := range x.l.sites {
		for b := range a {
			x.meet(a, b)
		}
	}
}

// row makes a row for what one site stores for another, as the one and the other name it.
func (x *exchange) row(from, to int, bytes int64) (put, take cuda.Row) {
	l := x.l
	share := l.linesShare()
	used := &x.used[from*len(l.sites)+to]
	at := l.stages[to].row(share, *used, to, from)
	if *used += cuda.RowBytes(bytes); *used > share {
		x.full = true
	}
	x.tells[from] |= 1 << to
	x.meet(from, to)
	return cuda.NewRow(at, to), cuda.NewRow(at, from)
}

func (x *exchange) in(rank, block int) unsafe.Pointer {
	return unsafe.Add(x.calls[rank].Src, int64(block)*x.stride+x.base)
}

func (x *exchange) out(rank, block int) unsafe.Pointer {
	return unsafe.Add(x.calls[rank].Dst, int64(block)*x.stride+x.base)
}

// ins and outs are those of all ranks of a site, at bytes into a block.
func (x *exchange) ins(site, block int, at int64) []unsafe.Pointer {
	from := len(x.lists.places)
	for _, r := range x.l.sites[site].ranks {
		x.lists.places = append(x.lists.places, unsafe.Add(x.in(r, block), at))
	}
	return x.lists.placesFrom(from)
}

// outs leaves out but, where what is stored comes from.
func (x *exchange) outs(site, block int, at int64, but unsafe.Pointer) []unsafe.Pointer {
	from := len(x.lists.places)
	for _, r := range x.l.sites[site].ranks {
		if p := unsafe.Add(x.out(r, block), at); p != but {
			x.lists.places = append(x.lists.places, p)
		}
	}
	return x.lists.placesFrom(from)
}

// fold has a site's inputs of a block's part folded with those of all other sites, which store theirs for it, and stored in late.
// Relays is of the sites that want the result too.
func (x *exchange) fold(site, block int, at, bytes int64, late []unsafe.Pointer, relays []cuda.Row) {
	from := len(x.lists.rows)
	for s := range x.l.sites {
		if s != site {
			_, take := x.row(s, site, bytes)
			x.lists.rows = append(x.lists.rows, take)
		}
	}
	takes := x.lists.rowsFrom(from)
	for s, k := 0, 0; s < len(x.l.sites); s++ {
		if s != site {
			put := takes[k].From(site)
			x.puts[s] = append(x.puts[s], cuda.Pass{Bytes: bytes, Srcs: x.ins(s, block, at), Puts: x.lists.row(put), At: -1})
			k++
		}
	}
	x.takes[site] = append(x.takes[site], cuda.Pass{Bytes: bytes, Srcs: x.ins(site, block, at), Takes: takes, Late: late, Relays: relays, At: site})
}

// spread has a block's part of one rank stored at all other sites, in places each, and here in early.
func (x *exchange) spread(rank int, src unsafe.Pointer, bytes int64, early []unsafe.Pointer, places func(site int) []unsafe.Pointer) {
	from, here := len(x.lists.rows), x.l.siteOf[rank]
	for s := range x.l.sites {
		if s != here {
			put, _ := x.row(here, s, bytes)
			x.lists.rows = append(x.lists.rows, put)
		}
	}
	puts := x.lists.rowsFrom(from)
	for s, k := 0, 0; s < len(x.l.sites); s++ {
		if s != here {
			x.takes[s] = append(x.takes[s], cuda.Pass{Bytes: bytes, Takes: x.lists.row(puts[k].From(here)), Late: places(s), At: -1})
			k++
		}
	}
	x.puts[here] = append(x.puts[here], cuda.Pass{Bytes: bytes, Srcs: x.lists.one(src), Puts: puts, Early: early, At: -1})
}

// local copies between ranks of one site, while lines are under way.
func (x *exchange) local(site int, dst, src unsafe.Pointer, bytes int64) {
	if dst != src && bytes > 0 {
		x.near[site] = append(x.near[site], cuda.Pass{Bytes: bytes, Srcs: x.lists.one(src), Early: x.lists.one(dst), At: -1})
	}
}

// message copies between ranks.
func (x *exchange) message(from, to int, dst, src unsafe.Pointer, bytes int64) {
	a, b := x.l.siteOf[from], x.l.siteOf[to]
	if a == b {
		x.local(a, dst, src, bytes)
		return
	}
	put, take := x.row(a, b, bytes)
	x.puts[a] = append(x.puts[a], cuda.Pass{Bytes: bytes, Srcs: x.lists.one(src), Puts: x.lists.row(put), At: -1})
	x.takes[b] = append(x.takes[b], cuda.Pass{Bytes: bytes, Takes: x.lists.row(take), Late: x.lists.one(dst), At: -1})
}

// collective writes down a call; false if it fits no exchange. In two shots every site sends on what it has folded or got of a piece.
func (x *exchange) collective(twoShot bool) bool {
	call, sites := &x.calls[0], x.l.sites
	switch call.Kind {
	case collective.AllReduce:
		if twoShot {
			return x.twoShot()
		}
		x.oneShot()
	case collective.ReduceScatter:
		for g := range sites {
			for _, r := range sites[g].ranks {
				x.fold(g, r, 0, x.block, x.lists.one(x.out(r, 0)), nil)
			}
		}
	case collective.Reduce:
		if twoShot {
			return x.twoShot()
		}
		x.fold(x.l.siteOf[call.Root], 0, 0, x.block, x.lists.one(x.out(call.Root, 0)), nil)
	case collective.AllGather:
		for r := range x.calls {
			src := x.in(r, 0)
			x.spread(r, src, x.block, x.outs(x.l.siteOf[r], r, 0, src), func(s int) []unsafe.Pointer { return x.outs(s, r, 0, nil) })
		}
	case collective.Broadcast:
		if twoShot {
			return x.scatter(call.Root)
		}
		src := x.in(call.Root, 0)
		x.spread(call.Root, src, x.block, x.outs(x.l.siteOf[call.Root], 0, 0, src), func(s int) []unsafe.Pointer { return x.outs(s, 0, 0, nil) })
	case collective.AllToAll:
		for r := range x.calls {
			for q := range x.calls {
				if r != q && x.l.siteOf[r] == x.l.siteOf[q] && (x.calls[r].inPlace(r) || x.calls[q].inPlace(q)) {
					return false // two would have to change places
				}
				x.message(r, q, x.out(q, r), x.in(r, q), x.block)
			}
		}
	case collective.Barrier:
		x.everybody()
	default:
		return false
	}
	return !x.full
}

// oneShot: every site stores its operand for all others, and each folds all.
func (x *exchange) oneShot() {
	n := len(x.l.sites)
	for g := range n {
		x.rest[g] = append(x.rest[g], cuda.Pass{Bytes: x.block, Srcs: x.ins(g, 0, 0), Late: x.outs(g, 0, 0, nil), At: g})
		from := len(x.lists.rows)
		for s := range n {
			if s != g {
				put, _ := x.row(g, s, x.block)
				x.lists.rows = append(x.lists.rows, put)
			}
		}
		x.rest[g][0].Puts = x.lists.rowsFrom(from)
	}
	for s := range n {
		from := len(x.lists.rows)
		for g := range n {
			if g != s {
				put := x.rest[g][0].Puts[s-bit(s > g)]
				x.lists.rows = append(x.lists.rows, put.From(g))
			}
		}
		x.rest[s][0].Takes = x.lists.rowsFrom(from)
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// write makes a site's program of its passes: first what is stored, which nobody then waits for in a circle. Where that is one pass, it
// takes meanwhile.
func (x *exchange) write(site int, p *cuda.LL128) bool {
	for s := range x.l.sites {
		if x.meets[site]>>s&1 != 0 {
			p.Meet(s, x.tells[site]>>s&1 == 0, x.tells[s]>>site&1 == 0)
		}
	}
	puts, takes := x.puts[site], x.takes[site]
	if len(puts) == 1 && len(x.near[site]) == 0 && len(takes) > 0 && len(takes[0].Srcs) == 0 && len(takes[0].Relays) == 0 && takes[0].Bytes == puts[0].Bytes {
		puts[0].Takes, puts[0].Late = takes[0].Takes, takes[0].Late
		takes = takes[1:]
	}
	for i := range puts {
		if !p.Add(&puts[i]) {
			return false
		}
	}
	for _, list := range [3][]cuda.Pass{x.near[site], takes, x.rest[site]} {
		for i := range list {
			if !p.Add(&list[i]) {
				return false
			}
		}
	}
	return true
}
