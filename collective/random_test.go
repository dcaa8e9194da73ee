package collective

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// randomSchedules makes up a program for all ranks: aligned steps of random messages, folds and
// copies of whatever was written before, meant for nothing. Between two ranks there are at most
// perPair messages one way in a step.
func randomSchedules(rnd *rand.Rand, perPair int) []Schedule {
	kinds := []Kind{AllReduce, AllGather, ReduceScatter, AllToAll}
	shape := Shape{Kind: kinds[rnd.IntN(len(kinds))], Ranks: 2 + rnd.IntN(3)}
	all, full := make([]Schedule, shape.Ranks), make([]map[Slot]bool, shape.Ranks)
	pieces, temps := 1+rnd.IntN(2), 1+rnd.IntN(2)
	for r := range all {
		all[r] = Schedule{Shape: shape, Rank: r, Pieces: pieces, Temps: temps}
		full[r] = map[Slot]bool{}
		for c := range all[r].chunks(In) {
			full[r][Slot{In, int32(c)}] = true
		}
	}
	// source is a full slot of the rank with that piece.
	source := func(r, piece int) Slot {
		for {
			sp := Space(rnd.IntN(3))
			sl := Slot{sp, int32(rnd.IntN(int(all[r].chunks(sp)/int64(pieces)))*pieces + piece)}
			if full[r][sl] {
				return sl
			}
		}
	}
	for range 1 + rnd.IntN(6) {
		steps, writes := make([][]Instr, len(all)), make([]map[Slot]bool, len(all))
		for r := range writes {
			writes[r] = map[Slot]bool{}
		}
		// target is a slot of the rank that this step does not write yet.
		target := func(r, piece int) (Slot, bool) {
			sp := Out + Space(rnd.IntN(2))
			sl := Slot{sp, int32(rnd.IntN(int(all[r].chunks(sp)/int64(pieces)))*pieces + piece)}
			if writes[r][sl] {
				return sl, false
			}
			writes[r][sl] = true
			return sl, true
		}
		sent := map[[2]int]int{}
		for range rnd.IntN(2 * len(all)) {
			from, to, piece := rnd.IntN(len(all)), rnd.IntN(len(all)), rnd.IntN(pieces)
			if from == to || sent[[2]int{from, to}] == perPair {
				continue
			}
			dst, ok := target(to, piece)
			if !ok {
				continue
			}
			sent[[2]int{from, to}]++
			steps[from] = append(steps[from], send(to, source(from, piece)))
			in := recv(from, dst)
			switch rnd.IntN(3) {
			case 0:
				in = recvReduce(from, source(to, piece), dst)
			case 1:
				in = reduceRecv(from, source(to, piece), dst)
			}
			steps[to] = append(steps[to], in)
		}
		for range rnd.IntN(2 * len(all)) {
			r, piece := rnd.IntN(len(all)), rnd.IntN(pieces)
			dst, ok := target(r, piece)
			if !ok {
				continue
			}
			in := copySlot(dst, source(r, piece))
			if rnd.IntN(2) == 0 {
				in = fold(dst, source(r, piece), source(r, piece))
			}
			steps[r] = append(steps[r], in)
		}
		for r := range all {
			if perPair == 1 {
				rnd.Shuffle(len(steps[r]), func(i, j int) { steps[r][i], steps[r][j] = steps[r][j], steps[r][i] })
			}
			all[r].Steps = append(all[r].Steps, steps[r])
			for sl := range writes[r] {
				full[r][sl] = true
			}
		}
	}
	return all
}

func (v *values) tree(x int32) string {
	n := v.nodes[x]
	if n.sum == nil {
		return fmt.Sprintf("%d.%d", n.rank, n.chunk)
	}
	parts := make([]string, len(n.sum))
	for i, y := range n.sum {
		parts[i] = v.tree(y)
	}
	return "(" + strings.Join(parts, "+") + ")"
}

// Plans do what their schedules say, whatever they say; and with aligned steps they never
// wait for each other in a circle.
func TestPlansOfRandomSchedules(t *testing.T) {
	programs := 20000
	if testing.Short() {
		programs = 2000
	}
	for _, perPair := range []int{1, 3} {
		deadlocks := 0
		for seed := range uint64(programs) {
			all := randomSchedules(rand.New(rand.NewPCG(seed, uint64(perPair))), perPair)
			j := judge{all: all, trees: true}
			_, why := j.run(rand.New(rand.NewPCG(seed, 2)))
			opt := allOptions[seed%4]
			where := func() string {
				text := fmt.Sprintf("seed %d, %+v, judged %s\n", seed, opt, why)
				for _, s := range all {
					text += s.String()
				}
				return text
			}
			w := worldOf(t, all, opt)
			out, err := w.runLinear()
			var deadlock *DeadlockError
			if perPair > 1 && errors.As(err, &deadlock) {
				deadlocks++
				continue
			}
			if err != nil {
				require.NoError(t, err, where())
			}
			machines := make([]*Machine, len(all))
			for r, v := range w.plans {
				machines[r] = newMachine(v)
			}
			again, err := w.runMachines(machines, rand.New(rand.NewPCG(seed, 3)))
			if err != nil {
				require.NoError(t, err, where())
			}
			for r := range all {
				for c, x := range j.ranks[r].memory[Out] {
					if x.ok && (x.tree != w.values.tree(out[r][c]) || out[r][c] != again[r][c]) {
						require.Equal(t, x.tree, w.values.tree(out[r][c]), where())
						require.Equal(t, out[r][c], again[r][c], where())
					}
				}
			}
		}
		require.Less(t, deadlocks, programs/2, "most programs must say something")
		t.Logf("%d messages per pair: %d programs, %d of them need more room than one message", perPair, programs, deadlocks)
	}
}
