package pairwise

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCover counts the pairs of every result in a way of its own.
func TestCover(t *testing.T) {
	for _, sizes := range [][]int{{1}, {5}, {1, 1}, {2, 2}, {3, 1, 4}, {2, 2, 2, 2, 2, 2, 2}, {30, 10, 7, 6, 4, 3, 3, 2}} {
		for seed := range uint64(3) {
			rows := Cover(sizes, seed)
			missing := uncovered(sizes, rows)
			require.Empty(t, missing, "sizes %v", sizes)
		}
	}
}

// uncovered lists what the rows do not have, or what is wrong with a row.
func uncovered(sizes []int, rows [][]int) (out []string) {
	met := map[[4]int]bool{}
	for _, row := range rows {
		if len(row) != len(sizes) {
			return []string{fmt.Sprint("row ", row)}
		}
		for f, x := range row {
			if x < 0 || x >= sizes[f] {
				return []string{fmt.Sprint("row ", row)}
			}
			for g, y := range row {
				met[[4]int{f, x, g, y}] = true
			}
		}
	}
	for f := range sizes {
		for g := range sizes {
			for x := range sizes[f] {
				for y := range sizes[g] {
					if (f != g || x == y) && !met[[4]int{f, x, g, y}] {
						out = append(out, fmt.Sprintf("factor %d at %d with factor %d at %d", f, x, g, y))
					}
				}
			}
		}
	}
	return out
}

// TestCoverNeedsItsRows sees that the judge above notices a missing row, and that few rows are wasted.
func TestCoverNeedsItsRows(t *testing.T) {
	sizes := []int{9, 8, 3, 2}
	rows := Cover(sizes, 1)
	require.GreaterOrEqual(t, len(rows), 72)
	require.LessOrEqual(t, len(rows), 80)
	needed := 0
	for i := range rows {
		if len(uncovered(sizes, slices.Delete(slices.Clone(rows), i, i+1))) > 0 {
			needed++
		}
	}
	require.Greater(t, needed, len(rows)*8/10)
}

func TestCoverIsDeterministic(t *testing.T) {
	sizes := []int{20, 5, 5, 3, 2}
	require.Equal(t, Cover(sizes, 7), Cover(sizes, 7))
	require.NotEqual(t, Cover(sizes, 7), Cover(sizes, 8))
}

func TestCoverOfRandomSizes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		sizes := make([]int, 1+rng.IntN(6))
		for f := range sizes {
			sizes[f] = 1 + rng.IntN(6)
		}
		require.Empty(t, uncovered(sizes, Cover(sizes, rng.Uint64())), "sizes %v", sizes)
	}
}

func TestCoverRefusesAnEmptyFactor(t *testing.T) {
	require.PanicsWithValue(t, "pairwise: factor 1 has 0 values", func() { Cover([]int{2, 0}, 1) })
}
