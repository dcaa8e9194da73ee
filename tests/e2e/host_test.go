//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// right makes a few calls of several kinds and sizes, on this memory, and checks them.
func right(c *comm.Comm, m memory) error {
	for i, d := range deeds([]kernels.RedOp{kernels.Sum}) {
		if d.algorithm != "" {
			continue
		}
		for _, count := range []int{3, 40_000} {
			s := d.spec(kernels.Int32, count, uint64(i))
			s.memory = m
			g, err := newGround(c, []spec{s})
			if err != nil {
				return err
			}
			if err := s.run(c, g, &cluster.Case{}); err != nil {
				return fmt.Errorf("%v: %w", s, err)
			}
		}
	}
	return nil
}

// smallShm is the job of a rank where there is little or no room in /dev/shm.
func smallShm(r *cluster.Rank) {
	r.Case("right", func(report *cluster.Case) error {
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
		return errors.Join(right(c, sliceMemory), right(c, allocMemory))
	})
}

// TestUC30_SmallDevShmEndToEnd: how large /dev/shm is, and that it is full, makes no difference: ranks share memory and are right.
func TestUC30_SmallDevShmEndToEnd(t *testing.T) {
	if !cluster.Isolated(t) {
		return
	}
	for _, size := range []string{"64k", "1m", "64m", "full"} {
		for _, transport := range []string{"shm", "auto"} {
			for _, ranks := range []int{2, 8} {
				t.Run(fmt.Sprintf("%s/%s/%d", size, transport, ranks), func(t *testing.T) {
					dir := t.TempDir()
					require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+strings.Replace(size, "full", "1m", 1)))
					defer unix.Unmount(dir, unix.MNT_DETACH)
					left := []string{}
					if size == "full" {
						_ = os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600)
						left = []string{filepath.Join(dir, "filler")}
					}
					res := cluster.Run(t, cluster.Launch{Job: "smallShm", Ranks: ranks, ShmDir: dir, Env: []string{"GCCL_TRANSPORT=" + transport}})
					require.Equal(t, []string{"right"}, res.Cases())
					found, err := filepath.Glob(filepath.Join(dir, "*"))
					require.NoError(t, err)
					require.ElementsMatch(t, left, found)
				})
			}
		}
	}
}

// refused is the job of a rank that may not make memory to share.
func refused(r *cluster.Rank) {
	r.Case("tcp or told", func(*cluster.Case) error {
		if err := cluster.Refuse(unix.SYS_MEMFD_CREATE); err != nil {
			return err
		}
		var said strings.Builder
		cfg := r.Config()
		cfg.Logger = slog.New(slog.NewTextHandler(&said, nil))
		c, err := comm.New(background, cfg)
		told := said.String()
		if os.Getenv("GCCL_TRANSPORT") == "shm" {
			if err == nil {
				return errors.Join(errors.New("it shares memory"), c.Close())
			}
			told = err.Error()
		} else if err != nil {
			return err
		} else {
			defer c.Close()
			if n := strings.Count(fmt.Sprint(c.Paths()), " tcp "); n == 0 {
				return fmt.Errorf("nobody is reached by TCP: %v", c.Paths())
			}
			if err := right(c, mixedMemory); err != nil {
				return err
			}
		}
		if !strings.Contains(told, "memfd_create") || !strings.Contains(told, "seccomp") {
			return fmt.Errorf("it says %q, want what is refused and by what", told)
		}
		return nil
	})
}

// TestUC30_NoMemoryToShare: where a profile refuses to make memory that can be shared, ranks say so, and use TCP where they may.
func TestUC30_NoMemoryToShare(t *testing.T) {
	for _, transport := range []string{"shm", "auto"} {
		t.Run(transport, func(t *testing.T) {
			res := cluster.Run(t, cluster.Launch{Job: "refused", Ranks: 2, Env: []string{"GCCL_TRANSPORT=" + transport}})
			require.Equal(t, []string{"tcp or told"}, res.Cases())
		})
	}
}

// endless is the job of a rank that calls until it is killed.
func endless(r *cluster.Rank) {
	c, err := comm.New(background, r.Config())
	for err == nil {
		err = allReduce(c, "", 30_000)
	}
	time.Sleep(time.Minute) // the others were killed first
}

// brief is the job of a rank that does a little and leaves in good order.
func brief(r *cluster.Rank) {
	r.Case("right", func(*cluster.Case) error {
		c, err := comm.New(background, r.Config())
		if err != nil {
			return err
		}
		return errors.Join(right(c, mixedMemory), c.Close())
	})
}

// TestUC31_KilledJobsLeaveNoSharedMemory: ranks that are all killed at any moment leave at most one run's files, and the next start
// removes those; what belongs to a live process or to nobody known stays.
func TestUC31_KilledJobsLeaveNoSharedMemory(t *testing.T) {
	dir := shmDirOf(t)
	rng := rand.New(rand.NewPCG(31, 0))
	foreign := filepath.Join(dir, "somebody-elses")
	require.NoError(t, os.WriteFile(foreign, []byte("x"), 0o600))
	most := 0
	for i := range 20 {
		pause := time.Duration(rng.IntN(120)) * time.Millisecond
		cluster.Run(t, cluster.Launch{Job: "endless", Ranks: 3, ShmDir: dir, Env: []string{"GCCL_TRANSPORT=shm"},
			Dies: map[int]syscall.Signal{0: syscall.SIGKILL, 1: syscall.SIGKILL, 2: syscall.SIGKILL},
			Started: func(ranks []*os.Process) {
				if i%2 == 0 {
					time.Sleep(pause)
				} else {
					awaitFile(dir, time.Second) // they have names only while the ranks meet
				}
				for _, p := range ranks {
					p.Kill()
				}
			}})
		left, err := filepath.Glob(filepath.Join(dir, "gccl-*"))
		require.NoError(t, err)
		most = max(most, len(left))
		require.LessOrEqual(t, len(left), 3, "more than one run's files")
	}
	t.Logf("at most %d files after a killed job", most)
	require.Positive(t, most, "no job was killed while its files had names")
	cluster.Run(t, cluster.Launch{Job: "brief", Ranks: 3, ShmDir: dir, Env: []string{"GCCL_TRANSPORT=shm"}})
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{foreign}, left)
}

// awaitFile returns when there is a file of gccl's in the directory, or when it has waited long enough.
func awaitFile(dir string, patience time.Duration) {
	for start := time.Now(); time.Since(start) < patience; {
		if found, _ := filepath.Glob(filepath.Join(dir, "gccl-*")); len(found) > 0 {
			return
		}
	}
}

func shmDirOf(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "e2e-test-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

const (
	hostNameVar = "GCCL_E2E_HOSTNAME" // to take, in a UTS namespace
	ownShmVar   = "GCCL_E2E_OWN_SHM"  // mount another tmpfs where shared memory lies
	wantVar     = "GCCL_E2E_WANT"     // transport that must be used
)

// elsewhere is the job of a rank that looks as if it were on another host, or is.
func elsewhere(r *cluster.Rank) {
	if name := os.Getenv(hostNameVar); name != "" {
		if err := unix.Sethostname([]byte(name)); err != nil {
			r.Fatal(err)
		}
	}
	if os.Getenv(ownShmVar) != "" {
		err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		if err == nil {
			err = unix.Mount("tmpfs", os.Getenv("GCCL_SHM_DIR"), "tmpfs", 0, "size=256m")
		}
		if err != nil {
			r.Fatal(err)
		}
	}
	r.Case("path", func(*cluster.Case) error {
		c, err := comm.New(background, r.Config())
		if err != nil {
			return err
		}
		defer c.Close()
		for _, p := range c.Paths() {
			if want := os.Getenv(wantVar); p.Transport != want {
				return fmt.Errorf("rank %d is reached by %s because %q, want %s", p.Rank, p.Transport, p.Reason, want)
			} else if p.Reason == "" {
				return errors.New("no reason is given")
			}
		}
		return right(c, mixedMemory)
	})
}

// TestUC33_WhoSharesMemory: other host names on one host share memory; one host name on two boots, and one host with two
// /dev/shm, do not, and use the network.
func TestUC33_WhoSharesMemory(t *testing.T) {
	if !cluster.Isolated(t) { // skips where namespaces are refused
		return
	}
	number := strconv.Itoa
	for _, c := range []struct {
		name, want string
		flags      uintptr
		env        func(rank int) []string
	}{
		{"same", "shm", 0, func(int) []string { return nil }},
		{"other host names", "shm", unix.CLONE_NEWUTS, func(r int) []string { return []string{hostNameVar + "=node" + number(r)} }},
		{"names equal up to a dot", "shm", unix.CLONE_NEWUTS, func(r int) []string { return []string{hostNameVar + "=node.domain" + number(r)} }},
		{"other boots", "tcp", unix.CLONE_NEWUTS, func(r int) []string { return []string{hostNameVar + "=node", "GCCL_HOSTID=boot" + number(r)} }},
		{"host names that once clashed", "tcp", 0, func(r int) []string {
			return []string{"GCCL_HOSTID=" + [...]string{"compute00000R", "compute000011"}[r]}
		}},
		{"own shm", "tcp", unix.CLONE_NEWNS, func(int) []string { return []string{ownShmVar + "=1"} }},
		{"own shm, claimed to be one host", "tcp", unix.CLONE_NEWNS, func(int) []string { return []string{ownShmVar + "=1", "GCCL_HOSTID=one"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := cluster.Launch{Job: "elsewhere", Ranks: 2, Env: []string{"GCCL_TRANSPORT=auto", wantVar + "=" + c.want}, Only: c.env}
			if c.flags != 0 {
				l.Namespaces = func(int) uintptr { return c.flags }
			}
			cluster.Run(t, l)
		})
	}
}

// storm sends this process signals until the returned function is called, which returns their number.
func storm() (stop func() int) {
	ctx, cancel := context.WithCancel(background)
	done := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			syscall.Kill(os.Getpid(), []syscall.Signal{syscall.SIGURG, syscall.SIGWINCH, syscall.SIGCHLD}[n%3])
			n++
			time.Sleep(50 * time.Microsecond)
		}
		done <- n
	}()
	return func() int { cancel(); return <-done }
}
