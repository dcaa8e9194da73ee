package collective

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutant is a rank's schedule with one fault.
type mutant struct {
	class string
	what  string
	s     Schedule
}

// mutants yields the schedule with every small fault at every instr.
func mutants(s Schedule) iter.Seq[mutant] {
	return func(yield func(mutant) bool) {
		ok := true
		try := func(class, what string, change func(steps [][]Instr) [][]Instr) {
			if !ok {
				return
			}
			m := s
			m.Steps = make([][]Instr, len(s.Steps))
			for k := range s.Steps {
				m.Steps[k] = slices.Clone(s.Steps[k])
				for i := range m.Steps[k] {
					m.Steps[k][i].Srcs = slices.Clone(m.Steps[k][i].Srcs)
				}
			}
			m.Steps = change(m.Steps)
			ok = yield(mutant{class, what, m})
		}
		for k, step := range s.Steps {
			if k+1 < len(s.Steps) {
				try("swap steps", fmt.Sprintf("%d and the next", k), func(st [][]Instr) [][]Instr {
					st[k], st[k+1] = st[k+1], st[k]
					return st
				})
			}
			for i, in := range step {
				at := fmt.Sprintf("step %d, %v", k, in)
				try("drop", at, func(st [][]Instr) [][]Instr { st[k] = slices.Delete(st[k], i, i+1); return st })
				try("duplicate", at, func(st [][]Instr) [][]Instr { st[k] = slices.Insert(st[k], i, in); return st })
				try("duplicate", at+" in a step of its own", func(st [][]Instr) [][]Instr {
					return slices.Insert(st, k+1, []Instr{in})
				})
				if i+1 < len(step) {
					try("swap in step", at, func(st [][]Instr) [][]Instr {
						st[k][i], st[k][i+1] = st[k][i+1], st[k][i]
						return st
					})
				}
				if k+1 < len(s.Steps) {
					for h := range s.Steps[k+1] {
						try("swap across steps", fmt.Sprintf("%s with %v", at, s.Steps[k+1][h]), func(st [][]Instr) [][]Instr {
							st[k][i], st[k+1][h] = st[k+1][h], st[k][i]
							return st
						})
					}
					try("move", at+" to the next step", func(st [][]Instr) [][]Instr {
						st[k] = slices.Delete(st[k], i, i+1)
						st[k+1] = append(st[k+1], in)
						return st
					})
				}
				for _, d := range []int{-1, 1} {
					by := fmt.Sprintf("%s by %+d", at, d)
					if p := mod(int(in.Peer)+d, s.Shape.Ranks); in.Code <= RecvReduce && p != s.Rank {
						try("peer", by, func(st [][]Instr) [][]Instr { st[k][i].Peer = int32(p); return st })
					}
					shift := func(sl Slot) (Slot, bool) {
						if sl.Space == Wire {
							return sl, false
						}
						to := Slot{sl.Space, int32(mod(int(sl.Chunk)+d, int(s.chunks(sl.Space))))}
						return to, to != sl
					}
					if to, changed := shift(in.Dst); in.Code != Send && changed {
						try("chunk written", by, func(st [][]Instr) [][]Instr { st[k][i].Dst = to; return st })
					}
					for j := range in.Srcs {
						if to, changed := shift(in.Srcs[j]); changed {
							try("chunk read", by, func(st [][]Instr) [][]Instr { st[k][i].Srcs[j] = to; return st })
						}
					}
				}
				if in.Code == Fold {
					try("fold to copy", at, func(st [][]Instr) [][]Instr {
						st[k][i].Code, st[k][i].Srcs = Copy, in.Srcs[:1:1]
						return st
					})
				}
				if in.Code == RecvReduce {
					try("fold to copy", at, func(st [][]Instr) [][]Instr { st[k][i].Code, st[k][i].Srcs = Recv, nil; return st })
				}
				if len(in.Srcs) > 1 {
					for j := range in.Srcs {
						try("drop source", at, func(st [][]Instr) [][]Instr {
							st[k][i].Srcs = slices.Delete(st[k][i].Srcs, j, j+1)
							return st
						})
						if j > 0 {
							try("swap sources", at, func(st [][]Instr) [][]Instr {
								srcs := st[k][i].Srcs
								srcs[j-1], srcs[j] = srcs[j], srcs[j-1]
								return st
							})
						}
					}
				}
			}
		}
	}
}

// tally counts, for each class of mutant, what became of them.
type tally struct {
	mu     sync.Mutex
	counts map[string]map[string]int
}

func (c *tally) add(class, fate string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]map[string]int{}
	}
	if c.counts[class] == nil {
		c.counts[class] = map[string]int{}
	}
	c.counts[class][fate]++
}

func (c *tally) report(t *testing.T) {
	for _, class := range sortedKeys(c.counts) {
		line := ""
		for _, fate := range sortedKeys(c.counts[class]) {
			line += fmt.Sprintf("  %s %d", fate, c.counts[class][fate])
		}
		t.Logf("%-18s%s", class, line)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// verdictOf is what Verify says of all ranks' plans with one rank's schedule replaced.
func verdictOf(plans []*Plan, s Schedule) error {
	p, err := Compile(s, plans[s.Rank].Options)
	if err != nil {
		return err
	}
	changed := slices.Clone(plans)
	changed[s.Rank] = p
	return verifyPlans(changed)
}

// Every mutant of every algorithm is flagged exactly if a plain interpreter says that it
// breaks the kind's promise.
func TestMutantsOfSchedules(t *testing.T) {
	most, interleavings := 8, 100
	if testing.Short() {
		most, interleavings = 4, 10
	}
	var fates tally
	t.Run("all", func(t *testing.T) {
		forCatalog(t, func(t *testing.T, a Algorithm) {
			if a.Kind == Barrier {
				t.Skip("the same functions as all_reduce")
			}
			for n := 2; n <= most; n++ {
				root := 0
				if a.Kind.Rooted() {
					root = n / 2
				}
				all := schedulesOf(a, n, root)
				v, why := judgeSchedules(all, 3)
				require.Equal(t, right, v, why)
				var plans, inPlace []*Plan
				for _, s := range all {
					p, err := Compile(s, Options{})
					require.NoError(t, err)
					plans = append(plans, p)
					p, err = Compile(s, Options{InPlace: true})
					require.NoError(t, err)
					inPlace = append(inPlace, p)
				}
				for r := range all {
					for m := range mutants(all[r]) {
						changed := slices.Clone(all)
						changed[r] = m.s
						judgement, why := judgeSchedules(changed, interleavings)
						err := verdictOf(plans, m.s)
						where := fmt.Sprintf("%d ranks, rank %d, %s: %s; judged %v: %s", n, r, m.class, m.what, judgement, why)
						fate := judgement.String() + ", flagged"
						if err == nil {
							fate = judgement.String() + ", passed"
						}
						fates.add(m.class, fate)
						switch judgement {
						case right:
							require.NoError(t, err, where)
							require.NoError(t, verdictOf(inPlace, m.s), "in place, "+where)
						case unequal:
							var value *WrongValueError
							require.True(t, errors.As(err, &value), "%s: %v", where, err)
							require.Contains(t, value.Want, "same bits", where)
						case cramped:
							var deadlock *DeadlockError
							require.True(t, err == nil || errors.As(err, &deadlock), "%s: %v", where, err)
						default:
							require.Error(t, err, where)
						}
					}
				}
			}
		})
	})
	fates.report(t)
}
