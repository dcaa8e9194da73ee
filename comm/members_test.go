package comm_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport/mem"
)

// hosts is a world of ranks, each on a host of its own, in virtual time.
type hosts struct {
	network *bootstraptest.Net
	memory  mem.Network
	comms   []*comm.Comm
}

func host(r int) string { return fmt.Sprintf("192.0.2.%d", r+1) }

func (h *hosts) config(r, n int, id bootstrap.ID) comm.Config {
	return comm.Config{Rank: r, Size: n, ID: id, Transport: "mem", Memory: &h.memory, Network: h.network.Host(host(r)), Driver: engine.NewSimulatedDriver(), CallTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler)}
}

func newHosts(t *testing.T, n int) *hosts { return newLateHosts(t, n, nil) }

// newLateHosts is newHosts on a network that is late by what delay says, which is called from many goroutines.
func newLateHosts(t *testing.T, n int, delay func() time.Duration) *hosts {
	h := &hosts{network: bootstraptest.New(), comms: make([]*comm.Comm, n)}
	h.network.Delay(delay)
	root, err := bootstrap.ListenRoot(background, bootstrap.RootConfig{Address: host(0) + ":1", Network: h.network.Host(host(0))})
	require.NoError(t, err)
	errs := make([]error, n)
	each(n, func(r int) { h.comms[r], errs[r] = comm.New(background, h.config(r, n, root.ID())) })
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, root.Close())
	t.Cleanup(func() { each(n, func(r int) { h.comms[r].Close() }) })
	return h
}

// kill ends a rank as the death of its host does: nobody gets a goodbye.
func (h *hosts) kill(r int) {
	h.network.Kill(host(r))
	h.comms[r].Close()
}

// After ranks die, rank 0 and two at once included, the survivors' calls name them, and Shrink gives a communicator that works.
func TestShrink(t *testing.T) {
	for _, dead := range [][]int{{2}, {0}, {1, 3}, {0, 1}, {0, 4}, {0, 1, 2, 3}} {
		synctest.Test(t, func(t *testing.T) {
			const n = 5
			h := newHosts(t, n)
			isDead := make([]bool, n)
			for _, r := range dead {
				isDead[r] = true
			}
			each(n, func(r int) {
				c := h.comms[r]
				buf := make([]int64, 100)
				if err := comm.AllReduce(background, c, buf, buf, kernels.Sum); err != nil {
					t.Error(err)
				}
				if isDead[r] {
					time.Sleep(time.Second)
					h.kill(r)
					return
				}
				began := time.Now()
				err := comm.AllReduce(background, c, buf, buf, kernels.Sum)
				var e *comm.Error
				if !errors.As(err, &e) || !errors.Is(err, comm.ErrAborted) {
					t.Errorf("dead %v: rank %d: %v", dead, r, err)
					return
				}
				if len(e.Ranks) == 0 || !isDead[e.Ranks[0]] {
					t.Errorf("dead %v: rank %d blames %v: %v", dead, r, e.Ranks, err)
				}
				if d := time.Since(began); d > 8*time.Second {
					t.Errorf("dead %v: rank %d knew only after %v", dead, r, d)
				}
				small, err := c.Shrink(background)
				if err != nil {
					t.Errorf("dead %v: rank %d: %v", dead, r, err)
					return
				}
				defer small.Close()
				if small.Size() != n-len(dead) {
					t.Errorf("dead %v: rank %d: %d are left", dead, r, small.Size())
				}
				for range 10 {
					one := []int64{int64(r)}
					if err := comm.AllReduce(background, small, one, one, kernels.Sum); err != nil {
						t.Errorf("dead %v: rank %d after shrinking: %v", dead, r, err)
						return
					}
					want := int64(n * (n - 1) / 2)
					for _, d := range dead {
						want -= int64(d)
					}
					if one[0] != want {
						t.Errorf("dead %v: rank %d: %d, want %d", dead, r, one[0], want)
					}
				}
			})
		})
	}
}

// A healthy communicator shrinks by the ranks that are excluded, which do not call.
func TestShrinkExcludes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 4)
		each(4, func(r int) {
			if r == 1 {
				return
			}
			small, err := h.comms[r].Shrink(background, 1)
			if err != nil {
				t.Error(err)
				return
			}
			defer small.Close()
			one := []int64{1}
			if err := comm.AllReduce(background, small, one, one, kernels.Sum); err != nil || one[0] != 3 {
				t.Errorf("rank %d: %d, %v", r, one[0], err)
			}
		})
	})
}

// A smaller communicator that one of its ranks does not come to fails on all others, whose errors hold its number and not only its name.
func TestShrinkThatNeverMeets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 5)
		each(5, func(r int) {
			if r == 1 || r == 3 { // excluded, and the one that does not come
				return
			}
			_, err := h.comms[r].Shrink(background, 1)
			var e *comm.Error
			if !errors.As(err, &e) || !errors.Is(err, comm.ErrAborted) || !slices.Equal(e.Ranks, []int{3}) {
				t.Errorf("rank %d: %v, want an error whose Ranks are [3]", r, err)
			}
		})
	})
}

// New ranks join by an invitation; old ranks keep their numbers.
func TestGrow(t *testing.T) {
	comms := world(t, 2, nil)
	id, err := comms[1].Invite(background, 2)
	require.NoError(t, err)
	each(4, func(r int) {
		var c *comm.Comm
		var err error
		if r < 2 {
			c, err = comms[r].Grow(background)
		} else {
			c, err = comm.New(background, comm.Config{ID: id, Rank: r, Size: 4})
		}
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		one := []int64{int64(10 * r)}
		if err := comm.AllReduce(background, c, one, one, kernels.Sum); err != nil || one[0] != 60 || c.Rank() != r {
			t.Errorf("rank %d is %d: %d, %v", r, c.Rank(), one[0], err)
		}
	})
}

// Nobody invited, or two did: an error on all.
func TestGrowWithoutInvitation(t *testing.T) {
	comms := world(t, 2, nil)
	each(2, func(r int) {
		if _, err := comms[r].Grow(background); !errors.Is(err, comm.ErrArgument) {
			t.Error(err)
		}
	})
}

// A rank waits in another communicator than the others: they say so, and for which call.
func TestTwoCommunicatorsInOppositeOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 2)
		subs := make([]*comm.Comm, 2)
		each(2, func(r int) {
			var err error
			if subs[r], err = h.comms[r].Split(background, 0, r); err != nil {
				t.Error(err)
			}
		})
		buf := func() []int64 { return make([]int64, 4) }
		each(2, func(r int) {
			first, second := h.comms[r], subs[r]
			if r == 1 {
				first, second = second, first
			}
			err := comm.AllReduce(background, first, buf(), buf(), kernels.Sum)
			if !errors.Is(err, comm.ErrTimeout) || !strings.Contains(err.Error(), fmt.Sprintf("%016x", second.ID())) || !strings.Contains(err.Error(), "sequence 1") {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		each(2, func(r int) { subs[r].Close() })
	})
}

// The record of a failed communicator says where everybody stood.
func TestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 3)
		each(3, func(r int) {
			if r == 2 {
				time.Sleep(2 * time.Minute)
				return
			}
			buf := make([]int64, 1000)
			err := h.comms[r].Do(background, comm.Call{Kind: comm.KindAllReduce, DType: kernels.Int64, Count: 1000, Src: kernels.MemOf(buf), Dst: kernels.MemOf(buf), Algorithm: "ring"})
			if !errors.Is(err, comm.ErrTimeout) {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		rec := h.comms[0].Record()
		require.Len(t, rec.Lanes, 1)
		require.Equal(t, 2, rec.Lanes[0].Waits)
		require.Equal(t, uint64(1), rec.Lanes[0].Seq)
		require.Equal(t, []int{2}, rec.Culprit)
		require.Equal(t, "all_reduce of 1000 int64 sum by ring", rec.Calls[0].Call)
		require.False(t, rec.Calls[0].Done)
		require.Empty(t, h.comms[2].Record().Lanes)
	})
}
