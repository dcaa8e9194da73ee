//go:build linux

package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
	"github.com/gccl-project/gccl/transport"
)

// join is New for a job's first communicator.
func join(r *cluster.Rank, edit func(*comm.Config)) *comm.Comm {
	cfg := r.Config()
	cfg.Logger = quiet
	if edit != nil {
		edit(&cfg)
	}
	c, err := comm.New(background, cfg)
	if err != nil {
		r.Fatal(err)
	}
	return c
}

func over(t *testing.T, l cluster.Launch) {
	t.Helper()
	for _, name := range transports() {
		t.Run(name, func(t *testing.T) {
			l := l
			l.Env = append(slices.Clone(l.Env), "GCCL_TRANSPORT="+name)
			cluster.Run(t, l)
		})
	}
}

// absentee is the job of a rank of eight, where rank 5 does not make the third call.
func absentee(r *cluster.Rank) {
	c := join(r, func(cfg *comm.Config) { cfg.CallTimeout = 3 * time.Second })
	defer c.Close()
	r.Case("third call", func(*cluster.Case) error {
		ctx, cancel := within()
		defer cancel()
		x := make([]float32, 1000)
		for range 2 {
			if err := comm.AllReduce(ctx, c, x, x, kernels.Sum); err != nil {
				return err
			}
		}
		if r.Rank == 5 {
			time.Sleep(4 * time.Second)
		}
		err := comm.AllReduce(ctx, c, x, x, kernels.Sum)
		if err := blames(err, comm.ErrTimeout, 5); err != nil {
			return err
		}
		var e *comm.Error
		errors.As(err, &e)
		for _, words := range []string{fmt.Sprintf("%016x", c.ID()), "all_reduce", "equence 3", "[5]", "rank 5 ", "finished 2", "s for ranks"} {
			if !strings.Contains(err.Error(), words) {
				return fmt.Errorf("%q is missing in: %w", words, err)
			}
		}
		if r.Rank != 5 && e.Elapsed < time.Second {
			return fmt.Errorf("Elapsed is %v: %w", e.Elapsed, err)
		}
		return nil
	})
}

// TestUC02_AbsentRankOfEight: the error names the rank that did not call, which call that is, how far it got and how long it was waited for.
func TestUC02_AbsentRankOfEight(t *testing.T) {
	t.Parallel() // it waits more than it works
	over(t, cluster.Launch{Job: "absentee", Ranks: 8})
}

// early is the job of a rank where rank 2 is lost while they meet.
func early(r *cluster.Rank) {
	const initTimeout = 9 * time.Second
	if r.Rank == 3 {
		time.Sleep(70 * time.Millisecond) // so that the others wait at the root for a while
	}
	before := baseline()
	var c *comm.Comm
	r.Case("named", func(report *cluster.Case) error {
		cfg := r.Config()
		cfg.Logger, cfg.InitTimeout = quiet, initTimeout
		start := time.Now()
		var err error
		if c, err = comm.New(background, cfg); err == nil {
			for err == nil && time.Since(start) < patience {
				err = c.Barrier(background)
			}
			report.Fact("joined", 1)
			return blames(err, transport.ErrGone, 2)
		}
		took := time.Since(start)
		if errors.Is(err, comm.ErrTimeout) { // only if nobody has seen it: who has not come is waited for
			report.Fact("unseen", 1)
			var e *comm.Error
			if !errors.As(err, &e) || !slices.Equal(e.Ranks, []int{2}) || !unseenRank2.MatchString(err.Error()) || took < initTimeout {
				return fmt.Errorf("after %v, want a timeout of init that says that rank 2 has never been there: %w", took, err)
			}
			return nil
		}
		report.Fact("told", 1)
		if bound := initTimeout - time.Second; took > bound { // what is promised is a second for the dead and five for the silent
			return fmt.Errorf("took %v, want %v at most: %w", took, bound, err)
		}
		return blames(err, transport.ErrGone, 2)
	})
	r.Case("close", func(*cluster.Case) error {
		if c != nil {
			c.Close()
		}
		return settles(before, 0)
	})
}

// unseenRank2: others may have given up before this rank.
var unseenRank2 = regexp.MustCompile(`3 of 4 joined, missing: 2(, joined and left again: [013, -]+)?( \(last error: .*\)| at the timeout)?: timeout$`)

// TestUC04_KilledWhileMeeting: a rank that is killed or stopped at any moment of New is named, alone, by the others, by New or by the first
// call: soon, unless nobody has seen it.
func TestUC04_KilledWhileMeeting(t *testing.T) {
	t.Parallel() // it waits more than it works
	n := 6
	if full {
		n = 100
	}
	rng := rand.New(rand.NewPCG(firstSeed(t), 2))
	for _, name := range transports() {
		t.Run(name, func(t *testing.T) {
			sums := map[string]int{}
			for i := range n {
				pause := time.Duration(rng.IntN(130)) * time.Millisecond
				sig := syscall.SIGKILL
				if i%6 == 2 {
					sig = syscall.SIGSTOP
				}
				t.Run(fmt.Sprintf("%d/%v after %v", i, sig, pause), func(t *testing.T) {
					dir, err := os.MkdirTemp("/dev/shm", "early-")
					require.NoError(t, err)
					defer os.RemoveAll(dir)
					victims := ""
					res := cluster.Run(t, cluster.Launch{Job: "early", Ranks: 4, Timeout: time.Minute, Env: []string{"GCCL_TRANSPORT=" + name}, Dies: map[int]syscall.Signal{2: syscall.SIGKILL}, ShmDir: dir,
						Started: func(ps []*os.Process) {
							victims = fmt.Sprintf("-%d-", ps[2].Pid)
							time.Sleep(pause)
							ps[2].Signal(sig)
							if sig == syscall.SIGSTOP {
								time.Sleep(11 * time.Second) // until the others have heard
								ps[2].Kill()
							}
						}})
					left, err := os.ReadDir(dir)
					require.NoError(t, err)
					for _, f := range left {
						// Memory that nobody else had mapped yet goes when a process next opens some there.
						require.Contains(t, f.Name(), victims)
					}
					for rank := range 4 {
						for _, what := range []string{"joined", "told", "unseen"} {
							a, _ := res.Fact("named", rank, what)
							sums[what] += int(a)
						}
					}
				})
			}
			t.Logf("of the survivors %d had joined, %d were told in New, %d waited for one that nobody had seen", sums["joined"], sums["told"], sums["unseen"])
		})
	}
}

// twice is the job of a rank of two communicators that are aborted one after the other.
func twice(r *cluster.Rank) {
	before := baseline()
	var comms [2]*comm.Comm
	for i := range comms {
		cfg := r.World(i)
		cfg.Logger = quiet
		var err error
		if comms[i], err = comm.New(background, cfg); err != nil {
			r.Fatal(err)
		}
	}
	r.Case("aborts return", func(*cluster.Case) error {
		// Rank 0 calls on A what rank 1 calls on B: neither can end.
		var calls []*comm.Pending
		for i := range comms {
			if (i+r.Rank)%2 == 0 {
				x := make([]float32, 300_000)
				calls = append(calls, comms[i].Start(comm.Call{Kind: comm.KindAllReduce, Src: kernels.MemOf(x), Dst: kernels.MemOf(x), Count: len(x), DType: kernels.Float32}))
			} else {
				recv := make([]byte, 100)
				calls = append(calls, comms[i].Start(comm.Call{Kind: comm.KindRecv, Dst: kernels.MemOf(recv), Count: 100, DType: kernels.Int8, Peer: 1 - r.Rank}))
			}
		}
		done := make(chan error, len(calls))
		for _, p := range calls {
			go func() { done <- p.Wait(background) }()
		}
		time.Sleep(300 * time.Millisecond)
		start := time.Now()
		comms[r.Rank].Abort(errors.New("enough of the first"))
		comms[1-r.Rank].Abort(errors.New("enough of the second"))
		if d := time.Since(start); d > 2*time.Second {
			return fmt.Errorf("Abort took %v", d)
		}
		for range calls {
			select {
			case err := <-done:
				if !errors.Is(err, comm.ErrAborted) || !strings.Contains(err.Error(), "enough of the") {
					return fmt.Errorf("want ErrAborted with the reason: %w", err)
				}
			case <-time.After(10 * time.Second):
				return errors.New("a call did not return after Abort")
			}
		}
		return nil
	})
	r.Case("close", func(*cluster.Case) error {
		comms[0].Close()
		comms[1].Close()
		return settles(before, 0)
	})
}

// TestUC07_AbortTwoCommunicators: aborting one after the other from one goroutine returns, in any order.
func TestUC07_AbortTwoCommunicators(t *testing.T) {
	over(t, cluster.Launch{Job: "twice", Ranks: 2, Worlds: 2})
}

// resetData resets the TCP connections of this process to peers' data ports: a connect to nowhere ends a connection with a reset.
func resetData() (n int) {
	entries, _ := os.ReadDir("/proc/self/fd")
	var busy []int
	for _, e := range entries {
		var fd int
		fmt.Sscan(e.Name(), &fd)
		if typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || typ != unix.SOCK_STREAM {
			continue
		}
		if listens, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); listens != 0 {
			continue
		}
		// The session's connections are few and quiet: data went over the one with the most bytes.
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil || info.Bytes_received+info.Bytes_acked < 4<<20 {
			continue
		}
		busy = append(busy, fd)
	}
	for _, fd := range busy {
		var nowhere [16]byte // AF_UNSPEC
		if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), addressOfBytes(&nowhere), 16); errno == 0 {
			n++
		}
	}
	return n
}

// reset is the job of a rank one of whose data connections is reset.
func reset(r *cluster.Rank) {
	before := baseline()
	c := join(r, nil)
	r.Case("named", func(report *cluster.Case) error {
		ctx, cancel := within()
		defer cancel()
		x := make([]float32, 1<<20)
		for range 10 {
			if err := comm.AllReduce(ctx, c, x, x, kernels.Sum); err != nil {
				return err
			}
		}
		var at time.Time
		if r.Rank == 1 {
			timer := time.AfterFunc(20*time.Millisecond, func() { at = time.Now(); report.Fact("reset", int64(resetData())) })
			defer timer.Stop()
		}
		var err error
		for err == nil {
			err = comm.AllReduce(ctx, c, x, x, kernels.Sum)
		}
		if d := time.Since(at); r.Rank == 1 && d > 5*time.Second {
			return fmt.Errorf("the error came %v after the reset: %w", d, err)
		}
		if err := blames(err, transport.ErrGone, 1-r.Rank); err != nil && blames(err, transport.ErrGone, r.Rank) != nil {
			return err // both are alive: each may take it to be the other
		}
		if !strings.Contains(err.Error(), "reset") {
			return fmt.Errorf("does not say that a connection was reset: %w", err)
		}
		return nil
	})
	r.Case("close", func(*cluster.Case) error { c.Close(); return settles(before, 0) })
}

// TestUC11_ResetDataConnection: a data connection that is reset is an error at once on both sides, which says so.
func TestUC11_ResetDataConnection(t *testing.T) {
	res := cluster.Run(t, cluster.Launch{Job: "reset", Ranks: 2, Env: []string{"GCCL_TRANSPORT=tcp"}})
	n, _ := res.Fact("named", 1, "reset")
	require.Positive(t, n, "no connection was reset")
}
