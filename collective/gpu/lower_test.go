package gpu_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/collective/gpu"
)

// plans compiles all ranks' plans. inPlace has a bit for each rank.
func plans(t *testing.T, s collective.Shape, name string, scale bool, inPlace uint64) []*collective.Plan {
	t.Helper()
	all := make([]*collective.Plan, s.Ranks)
	for r := range all {
		schedule, err := collective.Build(s, r, name)
		require.NoError(t, err)
		all[r], err = collective.Compile(schedule, collective.Options{InPlace: inPlace>>r&1 != 0, Scale: scale})
		require.NoError(t, err)
	}
	return all
}

// memory interprets moves on host memory: numbers that float32 holds exactly, one piece an element.
type memory map[gpu.Place]float64

// run does the moves of each phase in random order, each at once: if the phases are right, no order gives another result.
func (mem memory) run(m *gpu.Moves, factor float64, rng *rand.Rand) {
	for _, phase := range m.Phases {
		for _, i := range rng.Perm(len(phase)) {
			move := phase[i]
			in := make([]float64, len(move.Srcs))
			for k, p := range move.Srcs {
				in[k] = mem[p]
				if move.Scaled>>k&1 != 0 {
					in[k] *= factor
				}
			}
			for k, d := range move.Dsts {
				if move.Exchange {
					mem[d] = in[k]
					continue
				}
				sum := 0.0
				for _, x := range in {
					sum += x
				}
				mem[d] = sum
			}
		}
	}
}

// where finds a piece of a rank's input or output, in place or not.
func where(s collective.Shape, rank int, inPlace bool, sp collective.Space, block, piece int) gpu.Place {
	p := gpu.Place{Rank: int32(rank), Block: int32(block), Piece: int32(piece), Space: sp}
	if !inPlace {
		return p
	}
	switch {
	case s.Kind == collective.ReduceScatter && sp == collective.Out:
		p.Space, p.Block = collective.In, int32(rank)
	case s.Kind == collective.ReduceScatter:
	case s.Kind == collective.AllGather && sp == collective.In:
		p.Space, p.Block = collective.Out, int32(rank)
	case sp == collective.In:
		p.Space = collective.Out
	}
	return p
}

// TestLower holds every algorithm of the catalog to what its kind means, for 1 to 9 ranks, out of place, in place and mixed.
func TestLower(t *testing.T) {
	refused := map[string]bool{}
	for _, kind := range collective.Kinds() {
		for _, a := range collective.Catalog(kind) {
			for n := 1; n <= 9; n++ {
				for _, root := range []int{0, n - 1} {
					if root != 0 && !kind.Rooted() {
						continue
					}
					for _, inPlace := range []uint64{0, ^uint64(0), 0b10110} {
						for _, scale := range []bool{false, kind.Reduces() && kind != collective.Barrier} {
							s := collective.Shape{Kind: kind, Ranks: n, Root: root}
							what := fmt.Sprintf("%v by %s, %d ranks, root %d, in place %b, scale %v", kind, a.Name, n, root, inPlace, scale)
							m, err := gpu.Lower(plans(t, s, a.Name, scale, inPlace))
							if errors.Is(err, errors.ErrUnsupported) {
								refused[fmt.Sprintf("%v %s", kind, a.Name)] = true
								continue
							}
							require.NoError(t, err, what)
							check(t, s, m, inPlace, scale, what)
						}
					}
				}
			}
		}
	}
	t.Log("refused in part:", refused)
	for _, direct := range []string{"all_reduce oneshot", "all_reduce twoshot", "all_gather direct", "reduce_scatter direct", "broadcast direct", "reduce direct", "alltoall pairwise", "barrier direct"} {
		require.NotContains(t, refused, direct)
	}
}

func check(t *testing.T, s collective.Shape, m *gpu.Moves, inPlace uint64, scale bool, what string) {
	t.Helper()
	n := s.Ranks
	ins, outs := s.Kind.Blocks(n)
	input := func(rank, block, piece int) float64 { return float64(1 + rank*1009 + block*37 + piece*5) }
	factor := 1.0
	if scale {
		factor = 0.5
	}
	for seed := range uint64(3) {
		mem := memory{}
		for r := range n {
			for b := range ins {
				for p := range m.Pieces {
					if s.HasIn(r) {
						mem[where(s, r, inPlace>>r&1 != 0, collective.In, b, p)] = input(r, b, p)
					}
				}
			}
		}
		mem.run(m, factor, rand.New(rand.NewPCG(seed, 1)))
		sum := func(block, piece int) float64 {
			x := 0.0
			for r := range n {
				x += input(r, block, piece) * factor
			}
			return x
		}
		for r := range n {
			if !s.HasOut(r) {
				continue
			}
			for b := range outs {
				for p := range m.Pieces {
					var want float64
					switch s.Kind {
					case collective.AllReduce, collective.Reduce, collective.Barrier:
						want = sum(b, p)
					case collective.ReduceScatter:
						want = sum(r, p)
					case collective.AllGather:
						want = input(b, 0, p)
					case collective.Broadcast:
						want = input(s.Root, b, p)
					case collective.AllToAll:
						want = input(b, r, p)
					}
					require.Equal(t, want, mem[where(s, r, inPlace>>r&1 != 0, collective.Out, b, p)], "%s: rank %d, block %d, piece %d\n%v", what, r, b, p, m.Phases)
				}
			}
		}
	}
}

// TestLowerFuses says what direct algorithms come down to: the fewest bytes that can move.
func TestLowerFuses(t *testing.T) {
	for _, row := range []struct {
		kind         collective.Kind
		name         string
		inPlace      uint64
		moves        int
		loads, store int // of chunks, by all moves
	}{
		{collective.AllReduce, "oneshot", 0, 1, 8, 8},
		{collective.AllReduce, "oneshot", ^uint64(0), 1, 8, 8},
		{collective.AllReduce, "twoshot", 0, 8, 64, 64},
		{collective.AllReduce, "twoshot", ^uint64(0), 8, 64, 64},
		{collective.AllGather, "direct", 0, 8, 8, 64},
		{collective.AllGather, "direct", ^uint64(0), 8, 8, 56},
		{collective.ReduceScatter, "direct", 0, 8, 64, 8},
		{collective.Broadcast, "direct", 0, 1, 1, 8},
		{collective.Broadcast, "tree", ^uint64(0), 1, 1, 7},
		{collective.Reduce, "direct", 0, 1, 8, 1},
		{collective.AllToAll, "pairwise", 0, 64, 64, 64},
		{collective.AllToAll, "pairwise", ^uint64(0), 28, 56, 56},
		{collective.AllGather, "ring", 0, 8, 8, 64},
	} {
		s := collective.Shape{Kind: row.kind, Ranks: 8}
		m, err := gpu.Lower(plans(t, s, row.name, false, row.inPlace))
		require.NoError(t, err, "%v %s", row.kind, row.name)
		require.Len(t, m.Phases, 1, "%v %s: %v", row.kind, row.name, m.Phases)
		loads, stores := 0, 0
		for _, move := range m.Phases[0] {
			loads += len(move.Srcs)
			stores += len(move.Dsts)
		}
		require.Equal(t, []int{row.moves, row.loads, row.store}, []int{len(m.Phases[0]), loads, stores}, "%v %s in place %b: %v", row.kind, row.name, row.inPlace, m.Phases)
	}
}

func TestLowerRefusesNonsense(t *testing.T) {
	_, err := gpu.Lower(nil)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	a := plans(t, collective.Shape{Kind: collective.AllReduce, Ranks: 2}, "oneshot", false, 0)
	_, err = gpu.Lower(a[:1])
	require.ErrorContains(t, err, "rank 0")
	a[1] = a[0]
	_, err = gpu.Lower(a)
	require.ErrorContains(t, err, "plan 1")
}
