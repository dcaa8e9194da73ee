//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// forbid makes the kernel refuse system calls to this process, in all its threads, as a container's profile does.
func forbid(calls ...uint32) error {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	program := []unix.SockFilter{load(0)} // the number of the call
	for i, nr := range calls {
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jt: uint8(len(calls) - i)})
	}
	const allow, refuse = 0x7fff0000, 0x00050000
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: allow}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: refuse | uint32(unix.EPERM)})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	const setFilter, allThreads = 1, 1
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, setFilter, allThreads, uintptr(unsafe.Pointer(&filter))); errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}

// confined is the job of a rank that may not look into other processes.
func confined(r *cluster.Rank) {
	r.Case("right", func(*cluster.Case) error {
		if err := forbid(unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PTRACE, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD); err != nil {
			return err
		}
		var word [8]byte
		here := []unix.Iovec{{Base: &word[0], Len: 8}}
		if _, err := unix.ProcessVMReadv(os.Getpid(), here, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&word)), Len: 8}}, 0); err != unix.EPERM {
			return fmt.Errorf("process_vm_readv says %v, want EPERM: the filter does nothing", err)
		}
		c, err := comm.New(background, r.Config())
		if err != nil {
			return err
		}
		defer c.Close()
		for _, p := range c.Paths() {
			if p.Rank != c.Rank() && p.Transport != "shm" {
				return fmt.Errorf("rank %d is reached by %s (%s), want shm", p.Rank, p.Transport, p.Reason)
			}
		}
		for _, m := range []memory{sliceMemory, mixedMemory} {
			if err := right(c, m); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestUC36_ForbiddenToLookIntoPeers: where a filter forbids process_vm_readv and the like, ranks of a host share memory all the same and all
// calls are right.
func TestUC36_ForbiddenToLookIntoPeers(t *testing.T) {
	res := cluster.Run(t, cluster.Launch{Job: "confined", Ranks: 3, Env: []string{"GCCL_TRANSPORT=auto"}})
	require.Equal(t, []string{"right"}, res.Cases())
}

// crowded is the job of a rank that shares one processor with all others.
func crowded(r *cluster.Rank) {
	var one unix.CPUSet
	one.Set(0)
	threads, err := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		if e := unix.SchedSetaffinity(id, &one); e != nil && e != unix.ESRCH {
			err = e
		}
	}
	r.Case("calls", func(report *cluster.Case) error {
		if err != nil {
			return err
		}
		c, err := comm.New(background, r.Config())
		if err != nil {
			return err
		}
		defer c.Close()
		var calls, yields []time.Duration
		src, dst := make([]float32, 256), make([]float32, 256)
		for i := range 1000 {
			for j := range src {
				src[j] = float32(i + j + c.Rank())
			}
			start := time.Now()
			if err := comm.AllReduce(context.Background(), c, dst, src, kernels.Sum); err != nil {
				return err
			}
			calls = append(calls, time.Since(start))
			for j := range dst {
				if want := float32(4*(i+j) + 6); dst[j] != want {
					return fmt.Errorf("call %d: element %d is %v, want %v", i, j, dst[j], want)
				}
			}
			start = time.Now()
			_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			yields = append(yields, time.Since(start))
		}
		slices.Sort(calls)
		slices.Sort(yields)
		report.Fact("call", int64(calls[500]))
		report.Fact("yield", int64(yields[900]))

		if err := c.Barrier(background); err != nil {
			return err
		}
		var before, after unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
		time.Sleep(time.Second)
		_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
		report.Fact("idle", after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano())
		return nil
	})
}

// TestUC38_FourRanksOnOneProcessor: ranks that share one processor let each other run: a short call takes less than 2 ms, which is half a slice of
// the scheduler's, or what some yields of the processor take where others compute on it too; and a communicator without calls takes no processor.
func TestUC38_FourRanksOnOneProcessor(t *testing.T) {
	res := cluster.Run(t, cluster.Launch{Job: "crowded", Ranks: 4, Env: []string{"GCCL_TRANSPORT=shm"}})
	for rank := range 4 {
		fact := func(name string) time.Duration {
			n, ok := res.Fact("calls", rank, name)
			require.True(t, ok)
			return time.Duration(n)
		}
		t.Logf("rank %d: a call takes %v, a yield %v, a second without calls %v of the processor", rank, fact("call"), fact("yield"), fact("idle"))
		require.Less(t, fact("call"), 2*time.Millisecond+20*fact("yield"))
		require.Less(t, fact("idle"), 50*time.Millisecond)
	}
}
