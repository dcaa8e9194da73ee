package collective

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRenamedSchedulesAreRight: every algorithm in any order of the ranks does what its kind promises.
func TestRenamedSchedulesAreRight(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 5))
	for _, k := range Kinds() {
		for _, a := range Catalog(k) {
			for n := 2; n <= 7; n++ {
				root := 0
				if k.Rooted() {
					root = random.IntN(n)
				}
				names := random.Perm(n)
				all := make([]Schedule, n)
				for _, s := range schedulesOf(a, n, root) {
					before := s.Rank
					renamed, err := s.Rename(names)
					require.NoError(t, err)
					require.Equal(t, before, s.Rank)
					require.Equal(t, names[before], renamed.Rank)
					all[renamed.Rank] = renamed
				}
				if k.Rooted() {
					require.Equal(t, names[root], all[0].Shape.Root)
				}
				for _, opt := range optionsOf(k) {
					require.NoError(t, Verify(all, opt), "%v %s of %d as %v", k, a.Name, n, names)
				}
				for _, s := range schedulesOf(a, n, root) { // what it was made from is as before
					require.Equal(t, a.Build(s.Shape, s.Rank), s)
				}
			}
		}
	}
}

func TestRingPassesAlongTheNames(t *testing.T) {
	names := []int{2, 0, 3, 1} // 2 → 0 → 3 → 1 → 2
	next := map[int]int32{2: 0, 0: 3, 3: 1, 1: 2}
	for r := range names {
		s, err := ringAllReduce(Shape{Kind: AllReduce, Ranks: 4}, r).Rename(names)
		require.NoError(t, err)
		for _, step := range s.Steps {
			for _, in := range step {
				if in.Code == Send {
					require.Equal(t, next[s.Rank], in.Peer)
				}
			}
		}
	}
}

func TestNamesOfOtherRanks(t *testing.T) {
	s := ringAllGather(Shape{Kind: AllGather, Ranks: 3}, 1)
	for _, names := range [][]int{nil, {0, 1}, {0, 1, 2, 3}, {0, 1, 1}, {0, 1, 3}, {-1, 0, 1}} {
		_, err := s.Rename(names)
		require.ErrorContains(t, err, "rename", "%v", names)
	}
}

// A schedule of a user's own may be wrong in any way: that is an error, too.
func TestRenameChecksTheSchedule(t *testing.T) {
	for want, edit := range map[string]func(*Schedule){
		"0 ranks":  func(s *Schedule) { *s = Schedule{} },
		"-1 ranks": func(s *Schedule) { s.Shape.Ranks = -1 },
		"rank 3,":  func(s *Schedule) { s.Rank = 3 },
		"0 pieces": func(s *Schedule) { s.Pieces = 0 },
		"peer 9":   func(s *Schedule) { s.Steps = [][]Instr{{send(9, Slot{})}} },
		"out[3]":   func(s *Schedule) { s.Steps = [][]Instr{{copySlot(Slot{Out, 3}, Slot{})}} },
	} {
		s := ringAllGather(Shape{Kind: AllGather, Ranks: 3}, 1)
		edit(&s)
		_, err := s.Rename([]int{2, 1, 0})
		require.ErrorContains(t, err, want)
	}
}
