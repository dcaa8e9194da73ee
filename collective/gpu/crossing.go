package gpu

import (
	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// crossing is how a call's data gets from GPU to GPU.
type crossing uint8

const (
	byEvents crossing = iota // launches that wait for nobody, between events: everything, on any link
	byLines                  // an LL128 exchange
	byTwoShotLines
	byPush   // FIFOs
	byBulk   // direct stores between barriers
	byCopies // the GPUs' copy engines between barriers
)

// tuned are the bytes of messages by which a way is chosen.
var tuned = struct {
	allReduceLines int64 // lines up to so many of an all-reduce of two sites
	oneShotLines   int64 // … of more sites
	twoShotLines   int64 // two-shot lines up to so many
	pairLines      int64 // lines up to so many from one site to another, in other kinds
	copies         int64 // copy engines from so many on
}{6 << 20, 64 << 10, 2 << 20, 4 << 20, 192 << 20}

// choose picks the way of a call. The sizes are those that measured best on two H200s (tests/gpu/RESULTS.md); for more GPUs they follow
// from what each way stores.
func (l *links) choose(calls []Call) crossing {
	call, n := &calls[0], len(l.sites)
	bytes := int64(call.Count) * int64(call.DType.Size())
	single := len(calls) == n // one rank a site
	switch call.Kind {
	case collective.AllReduce:
		switch {
		case n == 2 && bytes <= tuned.allReduceLines, n > 2 && bytes <= tuned.oneShotLines:
			return byLines
		case n > 2 && bytes <= tuned.twoShotLines:
			return byTwoShotLines
		case aligned(calls):
			return byPush
		}
	case collective.ReduceScatter:
		if bytes*int64((len(calls)+n-1)/n) <= l.pairLines() {
			return byLines
		}
		if single && aligned(calls) {
			return byPush
		}
	case collective.Reduce:
		if bytes <= l.pairLines() {
			return byLines
		}
	case collective.Barrier:
		return byLines
	case collective.AllGather, collective.AllToAll, collective.Broadcast:
		pair := bytes // from a site to another
		switch call.Kind {
		case collective.AllGather:
			pair *= int64((len(calls) + n - 1) / n)
		case collective.AllToAll:
			pair *= int64((len(calls)+n-1)/n) * int64((len(calls)+n-1)/n)
		}
		for r := range calls {
			if call.Kind == collective.AllToAll && calls[r].inPlace(r) && pair > l.pairLines() {
				return byEvents
			}
		}
		return l.far(pair, aligned(calls))
	}
	return byEvents
}

// pairLines is tuned.pairLines, or what fits.
func (l *links) pairLines() int64 {
	return min(tuned.pairLines, l.linesShare()/16*15) // 15 of 16 bytes are payload
}

// far picks the way of bytes that go from a site to another as they are.
func (l *links) far(pair int64, aligned bool) crossing {
	switch {
	case pair <= l.pairLines():
		return byLines
	case pair >= tuned.copies:
		return byCopies
	case aligned:
		return byBulk
	}
	return byEvents
}

// chooseMessages picks the way of messages: by the most between two sites.
func (l *links) chooseMessages(jobs []job) crossing {
	n := len(l.sites)
	var sums [cuda.MaxSites * cuda.MaxSites]int64
	pair, mixed := int64(0), uintptr(0)
	away := false
	for i := range jobs {
		t := &jobs[i].transfer
		at := l.siteOf[t.From]*n + l.siteOf[t.To]
		away = away || l.siteOf[t.From] != l.siteOf[t.To] && t.Bytes > 0
		sums[at] += t.Bytes
		pair = max(pair, sums[at])
		mixed |= uintptr(t.Src) | uintptr(t.Dst)
	}
	if !away {
		return byEvents
	}
	return l.far(pair, mixed%16 == 0)
}

// aligned reports whether all buffers are multiples of 16, and where several blocks lie in one the blocks.
func aligned(calls []Call) bool {
	block := uintptr(calls[0].Count) * uintptr(calls[0].DType.Size())
	mixed := uintptr(0)
	for r := range calls {
		mixed |= uintptr(calls[r].Src) | uintptr(calls[r].Dst)
	}
	if ins, outs := calls[0].Kind.Blocks(len(calls)); max(ins, outs) > 1 {
		mixed |= block
	}
	return mixed%16 == 0
}
