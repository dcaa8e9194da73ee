package gpu

import (
	"errors"
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// fifo cuts the slots for pieces of so many bytes.
func (l *links) fifo(piece int64) cuda.FIFO {
	n := len(l.sites)
	share := int64(stageSlots) / int64(n-1) &^ 4095
	f := cuda.FIFO{At: cuda.StageRows + 2*stageLines, Share: share, Stripes: max(1, min(cuda.MaxStripes, l.blocks/n)), Chunk: 32 << 10, Depth: 4}
	if tunedFIFO != nil {
		return tunedFIFO(f, piece)
	}
	for f.Chunk < 64<<10 && piece >= int64(f.Stripes)*int64(f.Chunk)*4 {
		f.Chunk *= 2
	}
	for int64(f.Stripes)*int64(f.Chunk)*int64(f.Depth) > share {
		f.Chunk /= 2
	}
	return f
}

// tunedFIFO lets tests try others.
var tunedFIFO func(f cuda.FIFO, piece int64) cuda.FIFO

// writePush makes the pushes of an all-reduce or a reduce-scatter with one rank a site.
func (l *links) writePush(calls []Call) (bool, error) {
	n, call := len(l.sites), &calls[0]
	var pieces [cuda.MaxSites]cuda.Piece
	longest := int64(0)
	elem := int64(call.DType.Size())
	layout := call.layout(n)
	for g := range n {
		first, count := layout.Piece(0, g)
		if call.Kind == collective.ReduceScatter {
			first, count = l.sites[g].ranks[0]*call.Count, call.Count
		}
		pieces[g] = cuda.Piece{At: int64(first) * elem, Bytes: int64(count) * elem}
		longest = max(longest, pieces[g].Bytes)
	}
	f := l.fifo(longest)
	for g := range n {
		l.plan.lists.reset()
		lists := &l.plan.lists
		for _, r := range l.sites[g].ranks {
			lists.places = append(lists.places, calls[r].Src)
		}
		srcs := lists.placesFrom(0)
		if call.Kind == collective.ReduceScatter {
			lists.places = append(lists.places, calls[l.sites[g].ranks[0]].Dst)
		} else {
			for k := range n { // its own first, then the next site's
				for _, r := range l.sites[(g+k)%n].ranks {
					lists.places = append(lists.places, unsafe.Add(calls[r].Dst, pieces[g].At))
				}
			}
		}
		dsts := lists.placesFrom(len(srcs))
		factor := cuda.FactorBits(call.DType, 1/float64(len(calls)))
		err := l.push[g].Reset(call.DType, call.RedOp, factor, g, l.at, l.abort(), f, pieces[:n], srcs, dsts, call.Kind == collective.AllReduce)
		if errors.Is(err, errors.ErrUnsupported) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}
