package comm_test

import (
	"context"
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
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport"
)

// TestUC06_MissingAtInit: the error of New is the same kind of thing as a call's, and blames who is not there, as soon as the time is up.
func TestUC06_MissingAtInit(t *testing.T) {
	t.Parallel() // it waits more than it works
	const limit = 5 * time.Second
	ctx := context.Background()
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	defer root.Close()
	each(4, func(r int) {
		if r == 2 {
			return
		}
		began := time.Now()
		c, err := comm.New(ctx, comm.Config{Rank: r, Size: 4, ID: root.ID(), InitTimeout: limit})
		took := time.Since(began)
		if err == nil {
			c.Close()
		}
		var e *comm.Error
		if !errors.Is(err, comm.ErrTimeout) || !errors.Is(err, comm.ErrAborted) || !errors.As(err, &e) || e.Op != "init" || e.Rank != r || !slices.Equal(e.Ranks, []int{2}) || e.Elapsed < limit {
			t.Errorf("rank %d: %v (%+v), want a timeout of init that blames rank 2", r, err, e)
		}
		if err != nil && (e.Comm != "" || !strings.HasPrefix(err.Error(), fmt.Sprintf("comm: rank %d: init, ", r))) {
			t.Errorf("rank %d: %v, want no id, for there was nothing yet that had one", r, err)
		}
		if took < limit || took > limit+3*time.Second {
			t.Errorf("rank %d: %v, want the error after %v to %v", r, took, limit, limit+3*time.Second)
		}
		if err != nil && !strings.Contains(err.Error(), "3 of 4 joined, missing: 2") {
			t.Errorf("rank %d: %v, want how many joined and who is missing", r, err)
		}
	})
}

// TestUC27_SplitGivenUpByOne: where one rank gives a Split up, at whatever moment, that either was made on all ranks, or the communicator has
// failed on all, soon: nobody is left with one in which the ranks no longer count alike. The survivors, which are all of them, go on.
func TestUC27_SplitGivenUpByOne(t *testing.T) {
	made, failed := 0, 0
	for k := range 24 {
		after := time.Duration(k*k) * 8 * time.Microsecond
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
		require.NoError(t, err)
		comms, children, errs := make([]*comm.Comm, 3), make([]*comm.Comm, 3), make([]error, 3)
		each(3, func(r int) {
			if comms[r], errs[r] = comm.New(ctx, comm.Config{Rank: r, Size: 3, ID: root.ID(), Transport: "shm", Logger: slog.New(slog.DiscardHandler)}); errs[r] == nil {
				errs[r] = comms[r].Barrier(ctx)
			}
		})
		require.NoError(t, errors.Join(errs...))
		each(3, func(r int) {
			mine, stop := context.WithCancel(ctx)
			defer stop()
			if r == 1 {
				defer time.AfterFunc(after, stop).Stop()
			}
			children[r], errs[r] = comms[r].Split(mine, 0, 0)
			if r == 1 && errs[r] != nil && !errors.Is(errs[r], comm.ErrAborted) { // its context had ended before: nothing happened
				children[r], errs[r] = comms[r].Split(ctx, 0, 0)
			}
		})
		if errors.Join(errs...) == nil {
			made++
		} else {
			failed++
			each(3, func(r int) { // whatever its own Split said
				begun := time.Now()
				_, err := comms[r].Split(ctx, 0, 0)
				if !errors.Is(err, comm.ErrAborted) || time.Since(begun) > 10*time.Second {
					t.Errorf("cancelled after %v: rank %d: Split again after %v: %v, want ErrAborted", after, r, time.Since(begun), err)
				}
				again, err := comms[r].Shrink(ctx)
				if err != nil {
					t.Errorf("cancelled after %v: rank %d: Shrink: %v", after, r, err)
					return
				}
				defer again.Close()
				child, err := again.Split(ctx, 0, 0)
				if err != nil || child.Size() != 3 {
					t.Errorf("cancelled after %v: rank %d: Split of what Shrink gave: %v", after, r, err)
					return
				}
				defer child.Close()
				if err := child.Barrier(ctx); err != nil {
					t.Errorf("cancelled after %v: rank %d: %v", after, r, err)
				}
			})
		}
		each(3, func(r int) {
			if children[r] != nil {
				children[r].Close()
			}
			comms[r].Close()
		})
		root.Close()
		cancel()
	}
	t.Logf("%d were made, %d failed", made, failed)
	require.Positive(t, failed)
}

// A call that needs a rank which closed before it came to that call fails at once: nothing of that rank can be on its way.
func TestCallAfterAPeerClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 4)
		children, errs := make([]*comm.Comm, 4), make([]error, 4)
		each(4, func(r int) { children[r], errs[r] = h.comms[r].Split(background, 0, 0) })
		require.NoError(t, errors.Join(errs...))
		defer each(4, func(r int) { children[r].Close() })
		time.Sleep(2 * time.Second)
		children[2].Close() // no call on it has connected anybody, and the endpoints stay, for the others
		each(4, func(r int) {
			if r == 2 {
				return
			}
			began := time.Now()
			x := []float32{1}
			err := comm.AllReduce(background, children[r], x, x, kernels.Sum)
			var e *comm.Error
			if !errors.As(err, &e) || !errors.Is(err, transport.ErrGone) || len(e.Ranks) != 1 || e.Ranks[0] != 2 || time.Since(began) > 2*time.Second {
				t.Errorf("rank %d after %v: %v, want at once that rank 2 is gone", r, time.Since(began), err)
			}
		})
	})
}

// A message that needs a rank which closed, and never was at the other end, fails within a second of that, whether it waits already or
// begins later; where the rank's endpoint still answers, too.
func TestMessageWithAPeerThatClosed(t *testing.T) {
	check := func(t *testing.T, comms []*comm.Comm, before bool, bound time.Duration) {
		children, errs := make([]*comm.Comm, len(comms)), make([]error, len(comms))
		each(len(comms), func(r int) { children[r], errs[r] = comms[r].Split(background, 0, 0) })
		require.NoError(t, errors.Join(errs...))
		defer each(len(comms), func(r int) { children[r].Close() })
		closed := make(chan time.Time, 1)
		leave := func() {
			children[2].Close()
			closed <- time.Now()
		}
		if before {
			leave()
			time.Sleep(time.Second)
		} else {
			defer time.AfterFunc(time.Second, leave).Stop()
		}
		began := time.Now()
		err := comm.Recv(background, children[0], []float32{0}, 2)
		if at := <-closed; at.After(began) {
			began = at
		}
		var e *comm.Error
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, transport.ErrGone)
		require.Equal(t, []int{2}, e.Ranks)
		require.Less(t, time.Since(began), bound)
	}
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprintf("mem-%v", before), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { check(t, newHosts(t, 4).comms, before, time.Second) })
		})
		for _, name := range []string{"shm", "tcp"} {
			t.Run(fmt.Sprintf("%s-%v", name, before), func(t *testing.T) {
				check(t, world(t, 3, transports()[name]), before, 4*time.Second) // a second, on a machine that is not loaded
			})
		}
	}
}
