//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// soon is how fast a failure must be known everywhere. The promise is much shorter; the machine may be busy.
const soon = 10 * time.Second

// culprit is the rank to which the failures of these tests are due, of 4.
const culprit = 2

// failureAlgorithms are the all_reduces that failures are tried with: who waits for whom differs.
var failureAlgorithms = []string{"oneshot", "ring", "tree", "doubling", "twoshot"}

// blames checks an error of a call: its class, and that it blames these ranks alone.
func blames(err error, class error, ranks ...int) error {
	var e *comm.Error
	switch {
	case err == nil:
		return errors.New("the call succeeded")
	case !errors.Is(err, comm.ErrAborted):
		return fmt.Errorf("not an ErrAborted: %w", err)
	case class != nil && !errors.Is(err, class):
		return fmt.Errorf("not %q: %w", class, err)
	case !errors.As(err, &e):
		return fmt.Errorf("not an *comm.Error: %w", err)
	case len(ranks) > 0 && !slices.Equal(e.Ranks, ranks):
		return fmt.Errorf("blames ranks %v, want %v: %w", e.Ranks, ranks, err)
	}
	return nil
}

// timely runs f and checks that it takes no longer than it may.
func timely(f func() error) error {
	start := time.Now()
	err := f()
	if d := time.Since(start); d > soon {
		return fmt.Errorf("took %v: %w", d, err)
	}
	return err
}

// allReduce sums n float32 by an algorithm.
func allReduce(c *comm.Comm, algorithm string, n int) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), soon+soon/5, errors.New("the test's patience ended"))
	defer cancel()
	x := make([]float32, n)
	m := kernels.MemOf(x)
	return c.Do(ctx, comm.Call{Kind: comm.KindAllReduce, Src: m, Dst: m, Count: n, DType: kernels.Float32, Algorithm: algorithm})
}

// closeSoon closes after a failure.
func closeSoon(c *comm.Comm) error {
	if c == nil {
		return nil
	}
	return timely(func() error {
		c.Close() // that peers do not answer any more may be said
		return nil
	})
}

const (
	algorithmVar = "GCCL_E2E_ALGORITHM"
	momentVar    = "GCCL_E2E_MOMENT"
)

// killed is the job of a rank in a loop of all_reduces, in which the culprit is killed.
func killed(r *cluster.Rank) {
	algorithm, moment := os.Getenv(algorithmVar), os.Getenv(momentVar)
	sizes := []int{2, 1000, 300_000}
	var c *comm.Comm
	r.Case("survivors", func(*cluster.Case) (err error) {
		if c, err = comm.New(context.Background(), r.Config()); err != nil {
			if moment == "before" {
				return blames(err, nil, culprit) // it was done with New, and dead, before we were
			}
			return err
		}
		rounds := 20
		if moment == "before" {
			rounds = 0 // no connection has been used yet
		}
		for i := range rounds {
			if err := allReduce(c, algorithm, sizes[i%3]); err != nil {
				return fmt.Errorf("round %d, all alive: %w", i, err)
			}
		}
		if r.Rank == culprit {
			switch moment {
			case "during":
				go func() {
					time.Sleep(7 * time.Millisecond)
					syscall.Kill(os.Getpid(), syscall.SIGKILL)
				}()
			default:
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		}
		if moment == "idle" {
			time.Sleep(300 * time.Millisecond) // the others hear of it between two calls
		}
		for i := 0; ; i++ {
			var last error
			if err := timely(func() error { last = allReduce(c, algorithm, sizes[i%3]); return nil }); err != nil {
				return fmt.Errorf("%w: %w", err, last)
			}
			if last != nil {
				return blames(last, nil, culprit)
			}
		}
	})
	r.Case("later call", func(*cluster.Case) error {
		if c == nil {
			return nil
		}
		return timely(func() error { return blames(allReduce(c, algorithm, 5), nil, culprit) })
	})
	r.Case("close", func(*cluster.Case) error { return closeSoon(c) })
}

func TestUC04_KilledRank(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for i, algorithm := range failureAlgorithms {
			moment := [...]string{"during", "before", "idle"}[i%3]
			t.Run(transport+"/"+algorithm+"/"+moment, func(t *testing.T) {
				cluster.Run(t, cluster.Launch{Job: "killed", Ranks: 4, Timeout: time.Minute, Dies: map[int]syscall.Signal{culprit: syscall.SIGKILL},
					Env: []string{"GCCL_TRANSPORT=" + transport, algorithmVar + "=" + algorithm, momentVar + "=" + moment}})
			})
		}
	}
}

// left is the job of a rank where the culprit closes in good order, before a call that the others make.
func left(r *cluster.Rank) {
	for i, algorithm := range failureAlgorithms {
		for k, used := range []bool{false, true} {
			var c *comm.Comm
			r.Case(fmt.Sprintf("%s/used=%v", algorithm, used), func(*cluster.Case) (err error) {
				// What others find in the call after next may already be told to a rank that is behind.
				if c, err = comm.New(context.Background(), r.World(2*i+k)); err == nil && used {
					err = allReduce(c, algorithm, 1000)
				}
				switch {
				case r.Rank == culprit:
					return errors.Join(err, closeSoon(c))
				case err == nil:
					return timely(func() error { return blames(allReduce(c, algorithm, 1000), nil, culprit) })
				}
				return blames(err, nil, culprit)
			})
			r.Case(fmt.Sprintf("%s/used=%v/close", algorithm, used), func(*cluster.Case) error { return closeSoon(c) })
		}
	}
}

// TestLeftByARank: a rank that closed is gone for the others as one that died is.
func TestLeftByARank(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			cluster.Run(t, cluster.Launch{Job: "left", Ranks: 4, Worlds: 2 * len(failureAlgorithms), Timeout: 10 * time.Minute, Env: []string{"GCCL_TRANSPORT=" + transport}})
		})
	}
}

// odd is a call that the culprit makes in place of an all_reduce of 1024 float32 by ring.
type odd struct {
	name string
	call func(c *comm.Comm, usual comm.Call) comm.Call
}

var odds = []odd{
	{"count", func(_ *comm.Comm, u comm.Call) comm.Call { u.Count -= 2; return u }},
	{"one more", func(_ *comm.Comm, u comm.Call) comm.Call { u.Count++; return u }},
	{"many more", func(_ *comm.Comm, u comm.Call) comm.Call { u.Count *= 300; return u }},
	{"type of equal size", func(_ *comm.Comm, u comm.Call) comm.Call { u.DType = kernels.Int32; return u }},
	{"redop", func(_ *comm.Comm, u comm.Call) comm.Call { u.RedOp = kernels.Max; return u }},
	{"algorithm", func(_ *comm.Comm, u comm.Call) comm.Call {
		u.Algorithm = map[string]string{"ring": "tree"}[u.Algorithm]
		if u.Algorithm == "" {
			u.Algorithm = "ring"
		}
		return u
	}},
	{"all_gather", func(_ *comm.Comm, u comm.Call) comm.Call {
		u.Kind, u.Algorithm, u.Src.Bytes = comm.KindAllGather, "", int64(u.Count)*4
		return u
	}},
	{"barrier", func(_ *comm.Comm, u comm.Call) comm.Call { return comm.Call{Kind: comm.KindBarrier} }},
	{"broadcast from another root", func(_ *comm.Comm, u comm.Call) comm.Call {
		u.Kind, u.Algorithm, u.Root = comm.KindBroadcast, "", culprit
		return u
	}},
	{"call before, left out", nil},
}

// differ is the job of a rank where the culprit makes another call than the rest, in one world for each way to differ.
func differ(r *cluster.Rank) {
	algorithms := failureAlgorithms
	for i := range len(algorithms) * len(odds) {
		algorithm, o := algorithms[i/len(odds)], odds[i%len(odds)]
		cfg := r.World(i)
		cfg.CallTimeout = 2 * soon // the difference must be seen, not waited for
		c, err := comm.New(context.Background(), cfg)
		if err != nil {
			r.Fatal(err)
		}
		src, dst := make([]float32, 1024*300), make([]float32, 1024*1200)
		r.Case(algorithm+"/"+o.name, func(report *cluster.Case) error {
			usual := comm.Call{Kind: comm.KindAllReduce, Src: kernels.MemOf(src), Dst: kernels.MemOf(dst), Count: 1024, DType: kernels.Float32, Algorithm: algorithm}
			mine := usual
			if r.Rank == culprit {
				switch {
				case o.call != nil:
					mine = o.call(c, usual)
				default:
					mine.Count, mine.Algorithm = 0, "" // what counts but is not sent
				}
			}
			return timely(func() error {
				// The others may be ahead, and find out before this rank is done with a call that was right.
				err := allReduce(c, algorithm, 100)
				if err == nil {
					err = c.Do(context.Background(), mine)
				}
				if r.Rank == culprit && err == nil {
					// Another kind may need nothing of those who differ. They must tell.
					for err == nil {
						err = c.Barrier(context.Background())
					}
				}
				if errors.Is(err, comm.ErrMismatch) {
					report.Fact("mismatch", 1)
				}
				return blames(err, nil)
			})
		})
		r.Case(algorithm+"/"+o.name+"/close", func(*cluster.Case) error { return closeSoon(c) })
	}
}

func TestUC01_DifferentCalls(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			res := cluster.Run(t, cluster.Launch{Job: "differ", Ranks: 4, Worlds: len(failureAlgorithms) * len(odds), Env: []string{"GCCL_TRANSPORT=" + transport}})
			for _, algorithm := range failureAlgorithms {
				for _, o := range odds {
					seen := int64(0)
					for rank := range 4 {
						n, _ := res.Fact(algorithm+"/"+o.name, rank, "mismatch")
						seen += n
					}
					require.Positive(t, seen, "%s/%s: no rank said ErrMismatch", algorithm, o.name)
				}
			}
		})
	}
}

// late is the job of a rank where the culprit does not make the third call.
func late(r *cluster.Rank) {
	for i, algorithm := range failureAlgorithms {
		cfg := r.World(i)
		cfg.CallTimeout = 2 * time.Second
		c, err := comm.New(context.Background(), cfg)
		if err != nil {
			r.Fatal(err)
		}
		r.Case(algorithm, func(*cluster.Case) error {
			for range 2 {
				if err := allReduce(c, algorithm, 1000); err != nil {
					return err
				}
			}
			if r.Rank == culprit {
				time.Sleep(2500 * time.Millisecond)
				return timely(func() error { return blames(allReduce(c, algorithm, 1000), nil) })
			}
			err := timely(func() error { return blames(allReduce(c, algorithm, 1000), comm.ErrTimeout, culprit) })
			return err
		})
		r.Case(algorithm+"/close", func(*cluster.Case) error { return closeSoon(c) })
	}
}

func TestUC02_LateRankIsNamed(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			cluster.Run(t, cluster.Launch{Job: "late", Ranks: 4, Worlds: len(failureAlgorithms), Env: []string{"GCCL_TRANSPORT=" + transport}})
		})
	}
}
