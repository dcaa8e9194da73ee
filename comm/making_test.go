package comm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// Ranks of which some make a communicator while others are in something else are told so by all, soon, and who is in what.
func TestMakingMeetsSomethingElse(t *testing.T) {
	reduce := func(c *comm.Comm, kind comm.Kind) error {
		m := kernels.MemOf(make([]int64, 100))
		return c.Do(background, comm.Call{Kind: kind, Src: m, Dst: m, Count: 100, DType: kernels.Int64})
	}
	ops := map[string]func(c *comm.Comm) error{
		"all_reduce": func(c *comm.Comm) error { return reduce(c, comm.KindAllReduce) },
		"broadcast":  func(c *comm.Comm) error { return reduce(c, comm.KindBroadcast) },
		"split":      func(c *comm.Comm) error { _, err := c.Split(background, 0, 0); return err },
		"grow":       func(c *comm.Comm) error { _, err := c.Grow(background); return err },
		"shrink":     func(c *comm.Comm) error { _, err := c.Shrink(background); return err },
		"shrink without ranks [4]": func(c *comm.Comm) error {
			_, err := c.Shrink(background, 4)
			return err
		},
		"shrink without ranks [3]": func(c *comm.Comm) error {
			_, err := c.Shrink(background, 3)
			return err
		},
	}
	for _, do := range []struct {
		most, some string
		odd        []int
	}{
		{"all_reduce", "split", []int{0}},
		{"all_reduce", "split", []int{2}},
		{"split", "all_reduce", []int{1}},
		{"split", "all_reduce", []int{3, 4}},
		{"broadcast", "split", []int{2}},
		{"all_reduce", "grow", []int{1}},
		{"all_reduce", "shrink", []int{1}},
		{"all_reduce", "shrink without ranks [4]", []int{1}},
		{"split", "grow", []int{2}},
		{"grow", "split", []int{0}},
		{"split", "shrink", []int{1}},
		{"split", "shrink", []int{0, 3}},
		{"split", "shrink without ranks [4]", []int{2}},
		{"shrink without ranks [4]", "shrink without ranks [3]", []int{1}},
	} {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s-%s-%v-%v", do.most, do.some, do.odd, before), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const n = 5
					h := newHosts(t, n)
					if before { // ranks that were excluded once have made fewer
						each(n, func(r int) {
							if r == 4 {
								return
							}
							small, err := h.comms[r].Shrink(background, 4)
							if err != nil {
								t.Error(err)
								return
							}
							small.Close()
						})
						require.False(t, t.Failed())
					}
					each(n, func(r int) {
						began := time.Now()
						op := do.most
						if slices.Contains(do.odd, r) {
							op = do.some
						}
						if op == fmt.Sprintf("shrink without ranks [%d]", r) {
							return
						}
						err := ops[op](h.comms[r])
						if err == nil && op == "broadcast" {
							err = h.comms[r].Barrier(background) // its part was over: the next call says it
						}
						var e *comm.Error
						if !errors.As(err, &e) || !errors.Is(err, comm.ErrMismatch) || !errors.Is(err, comm.ErrAborted) || !slices.Equal(e.Ranks, do.odd) {
							t.Errorf("rank %d in %s: %v, want a mismatch that names ranks %v", r, op, err, do.odd)
							return
						}
						for _, what := range []string{do.most, do.some} {
							if !strings.Contains(err.Error(), "called "+what) {
								t.Errorf("rank %d in %s: %v, want %q", r, op, err, "called "+what)
							}
						}
						if took := time.Since(began); op != "shrink" && took > 12*time.Second || do.some != "shrink" && took > 3*time.Second {
							t.Errorf("rank %d in %s: %v after %v", r, op, err, took)
						}
					})
				})
			})
		}
	}
}

// Ranks that come to what they make one by one, however late, and from whatever was before, are not in anything else.
func TestMakingWaitsForLateRanks(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			const n = 5
			h := newHosts(t, n)
			each(n, func(r int) {
				nap := func(k int) { time.Sleep(time.Duration((seed+3)*uint64(7*r+k)%11) * 700 * time.Millisecond) }
				c, buf := h.comms[r], []int64{1}
				m := kernels.MemOf(buf)
				for k := range 3 {
					nap(k)
					p := c.Start(comm.Call{Kind: comm.KindAllReduce, Src: m, Dst: m, Count: 1, DType: kernels.Int64})
					nap(k + 1)
					child, err := c.Split(background, r%2, 0)
					if err == nil {
						err = errors.Join(p.Wait(background), child.Close())
					}
					if err == nil && r != 4 {
						nap(k + 2)
						if child, err = c.Shrink(background, 4); err == nil {
							err = child.Close()
						}
					}
					if err == nil {
						nap(k + 3)
						if child, err = c.Shrink(background); err == nil {
							err = child.Close()
						}
					}
					if err == nil {
						nap(k + 4)
						err = c.Barrier(background)
					}
					if err != nil {
						t.Errorf("seed %d: rank %d, round %d: %v", seed, r, k, err)
						return
					}
				}
			})
			time.Sleep(time.Second) // goroutines that looked after what was started
		})
	}
}

// What begins with a context that has ended is an error of that rank alone, which changes nothing: not an operation that others wait in.
func TestMakingWithAContextThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 3)
		why := errors.New("no more of this")
		over, cancel := context.WithCancelCause(background)
		cancel(why)
		for name, op := range map[string]func(c *comm.Comm, ctx context.Context) (*comm.Comm, error){
			"split":       func(c *comm.Comm, ctx context.Context) (*comm.Comm, error) { return c.Split(ctx, 0, 0) },
			"shrink":      func(c *comm.Comm, ctx context.Context) (*comm.Comm, error) { return c.Shrink(ctx) },
			"shrink by 2": func(c *comm.Comm, ctx context.Context) (*comm.Comm, error) { return c.Shrink(ctx, 2) },
			"grow":        func(c *comm.Comm, ctx context.Context) (*comm.Comm, error) { return c.Grow(ctx) },
		} {
			_, err := op(h.comms[1], over)
			require.ErrorIs(t, err, why, name)
			require.NotErrorIs(t, err, comm.ErrAborted, name)
			require.NoError(t, h.comms[1].Err(), name)
		}
		id, err := h.comms[0].Invite(background, 1)
		require.NoError(t, err)
		_, err = h.comms[0].Grow(over) // keeps the invitation
		require.ErrorIs(t, err, why)
		each(4, func(r int) {
			if r == 3 {
				c, err := comm.New(background, h.config(3, 4, id))
				if err != nil {
					t.Error(err)
					return
				}
				c.Close()
				return
			}
			for _, op := range []func() (*comm.Comm, error){
				func() (*comm.Comm, error) { return h.comms[r].Split(background, 0, 0) },
				func() (*comm.Comm, error) { return h.comms[r].Grow(background) },
				func() (*comm.Comm, error) { return h.comms[r].Shrink(background) },
			} {
				made, err := op()
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
					return
				}
				made.Close()
			}
		})
	})
}
