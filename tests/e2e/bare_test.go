//go:build linux

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

const (
	bareBatches = 200
	bareCalls   = 100
	bareThread  = "bare" // name of the thread that calls
)

// bare is the job of a rank of two that makes calls of 8 bytes, in batches. Before and after each, the thread asks for the parent's id, for who counts
// its system calls.
func bare(r *cluster.Rank) {
	r.Case("calls", func(report *cluster.Case) error {
		c, err := comm.New(background, r.Config())
		if err != nil {
			return err
		}
		defer c.Close()
		runtime.LockOSThread()
		if err := ownProcessor(r.Rank); err != nil {
			return err
		}
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -20) // others that compute are less in the way of who may do so
		if r.Rank == 0 {
			if err := os.WriteFile("/proc/thread-self/comm", []byte(bareThread), 0); err != nil {
				return err
			}
			for start := time.Now(); ; time.Sleep(time.Millisecond) { // until it is traced
				status, err := os.ReadFile("/proc/thread-self/status")
				if err != nil {
					return err
				}
				if !bytes.Contains(status, []byte("TracerPid:\t0\n")) {
					break
				}
				if time.Since(start) > 30*time.Second {
					return fmt.Errorf("nobody traces this thread after %v", time.Since(start))
				}
			}
		}
		least := int64(-1)
		var before, after runtime.MemStats
		src, dst := []int64{0}, []int64{0}
		for batch := range bareBatches {
			if err := c.Barrier(background); err != nil {
				return err
			}
			runtime.ReadMemStats(&before)
			_, _, _ = unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
			for i := range bareCalls {
				src[0] = int64(batch*bareCalls + i + r.Rank)
				if err := comm.AllReduce(background, c, dst, src, kernels.Sum); err != nil {
					return err
				}
				if want := int64(2*(batch*bareCalls+i) + 1); dst[0] != want {
					return fmt.Errorf("call %d of batch %d gave %d, want %d", i, batch, dst[0], want)
				}
			}
			_, _, _ = unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
			runtime.ReadMemStats(&after)
			if n := int64(after.Mallocs - before.Mallocs); least < 0 || n < least {
				least = n
			}
		}
		report.Fact("allocations", least)
		return nil
	})
}

// ownProcessor puts the calling thread on the rank's of the processors that the process may use: two ranks that share one yield to each other.
func ownProcessor(rank int) error {
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return err
	}
	for cpu, seen := 0, 0; seen <= rank; cpu++ {
		if cpu == len(may)*64 {
			return fmt.Errorf("rank %d has no processor of its own: the process may use %d", rank, may.Count())
		}
		if may.IsSet(cpu) {
			seen++
			one.Zero()
			one.Set(cpu)
		}
	}
	return unix.SchedSetaffinity(0, &one)
}

// systemCalls waits for the process's thread of that name, and then counts its system calls from one SYS_GETPPID to the next, so many
// times.
func systemCalls(pid int, name string, count int) (batches []int, err error) {
	runtime.LockOSThread() // who traces is a thread: it ends with this goroutine, and lets the other one go
	tid := 0
	for start := time.Now(); tid == 0; time.Sleep(time.Millisecond) {
		names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
		for _, file := range names {
			if b, err := os.ReadFile(file); err == nil && string(bytes.TrimSpace(b)) == name {
				tid, _ = strconv.Atoi(filepath.Base(filepath.Dir(file)))
			}
		}
		if tid == 0 && time.Since(start) > 30*time.Second {
			return nil, fmt.Errorf("process %d has no thread %q after %v", pid, name, time.Since(start))
		}
	}
	if err := unix.PtraceSeize(tid); err != nil {
		return nil, fmt.Errorf("trace thread %d of process %d: %w", tid, pid, err)
	}
	if err := unix.PtraceInterrupt(tid); err != nil {
		return nil, fmt.Errorf("stop thread %d of process %d: %w", tid, pid, err)
	}
	n, enters := -1, false
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(tid, &status, unix.WALL, nil); err == unix.EINTR {
			continue
		} else if err != nil {
			return batches, fmt.Errorf("wait for thread %d: %w", tid, err)
		}
		if !status.Stopped() {
			return batches, fmt.Errorf("thread %d ended after %d batches", tid, len(batches))
		}
		signal := 0
		switch s := status.StopSignal(); {
		case s == unix.SIGTRAP && status.TrapCause() <= 0: // a system call begins, or ends
			if enters = !enters; !enters {
				break
			}
			nr, err := numberOf(tid)
			if err != nil {
				return batches, err
			}
			switch {
			case nr != unix.SYS_GETPPID && n >= 0:
				n++
			case nr == unix.SYS_GETPPID && n < 0:
				n = 0
			case nr == unix.SYS_GETPPID:
				batches, n = append(batches, n), -1
			}
			if len(batches) == count { // waiting on would take the process's end from who started it
				return batches, unix.PtraceDetach(tid)
			}
		case status.TrapCause() < 0 && s != unix.SIGTRAP:
			signal = int(s)
		}
		if err := unix.PtraceSyscall(tid, signal); err != nil && err != unix.ESRCH {
			return batches, fmt.Errorf("let thread %d go on: %w", tid, err)
		}
	}
}

// numberOf is the number of the system call that a stopped thread begins.
func numberOf(tid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", tid))
	if err != nil {
		return 0, fmt.Errorf("read which system call thread %d makes: %w", tid, err)
	}
	first, _, _ := bytes.Cut(b, []byte(" "))
	return strconv.Atoi(string(first))
}

// raced reports whether the race detector is built in.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// TestShortCallsNeedNoKernel: an AllReduce of 8 bytes between ranks that share memory allocates nothing, and makes no system call in the thread that
// calls. Where others have work for the processors some calls wait so long that they yield: of many batches one without is enough, since
// what each call did would be in all.
func TestShortCallsNeedNoKernel(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("two ranks have less than two processors: who waits has to let the other one run")
	}
	if raced() {
		t.Skip("under the race detector calls take so long that who waits for them yields")
	}
	if err := unix.PtraceDetach(os.Getpid()); err == unix.EPERM || err == unix.ENOSYS { // it finds nothing to detach from where it may look
		t.Skipf("nobody may trace a process here, so its system calls cannot be counted: %v", err)
	}
	var batches []int
	var traced error
	res := cluster.Run(t, cluster.Launch{Job: "bare", Ranks: 2, Env: []string{"GCCL_TRANSPORT=shm"}, Started: func(ps []*os.Process) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			batches, traced = systemCalls(ps[0].Pid, bareThread, bareBatches)
		}()
		<-done
	}})
	require.NoError(t, traced)
	require.Len(t, batches, bareBatches)
	slices.Sort(batches)
	t.Logf("system calls in %d calls: at least %d, mostly %d, at most %d", bareCalls, batches[0], batches[len(batches)/2], batches[len(batches)-1])
	require.Zero(t, batches[0])
	for rank := range 2 {
		n, ok := res.Fact("calls", rank, "allocations")
		require.True(t, ok)
		require.Zero(t, n, "rank %d: allocations in each batch of %d calls", rank, bareCalls)
	}
}
