//go:build linux

package bootstrap_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
)

// process is a rank in a process of its own.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer // which it waits for at last
	lines chan string
}

// processes starts n ranks that meet, say "joined", wait for the end of another, and do what TestProcess_Child does.
func processes(t *testing.T, n int) []*process {
	ctx := within(t, patience)
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	var all []*process
	for r := range n {
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestProcess_Child$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("GCCL_TEST_CHILD=rank %d %d", r, n), "GCCL_UNIQUE_ID="+root.ID().String())
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		p := &process{cmd, in, make(chan string, 100)}
		all = append(all, p)
		go func() {
			defer close(p.lines)
			for s := bufio.NewScanner(out); s.Scan(); {
				p.lines <- s.Text()
			}
		}()
		t.Cleanup(func() {
			cmd.Process.Kill()
			for range p.lines {
			}
			cmd.Wait()
		})
	}
	for _, p := range all {
		p.says(t, "joined")
	}
	return all
}

// says waits for a line that begins so, and returns the rest.
func (p *process) says(t *testing.T, begin string) string {
	t.Helper()
	for {
		select {
		case line, ok := <-p.lines:
			require.True(t, ok, "it ended and did not say %q", begin)
			if rest, found := strings.CutPrefix(line, begin); found {
				return strings.TrimSpace(rest)
			}
		case <-time.After(patience):
			require.Fail(t, "nothing", "waiting for %q", begin)
		}
	}
}

func TestProcess_Child(t *testing.T) {
	var rank, n int
	if _, err := fmt.Sscanf(os.Getenv("GCCL_TEST_CHILD"), "rank %d %d", &rank, &n); err != nil {
		t.Skip("a part of the tests that start ranks as processes")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	id, err := bootstrap.ParseID(os.Getenv("GCCL_UNIQUE_ID"))
	require.NoError(t, err)
	s, err := bootstrap.Join(ctx, bootstrap.Config{Rank: rank, World: n, ID: id, Heartbeat: 200 * time.Millisecond, SilentAfter: 2 * time.Second})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Barrier(ctx))
	fmt.Println("joined")
	select {
	case f := <-s.Fates():
		fmt.Printf("fate %d %s %s at %d\n", f.Rank, f.Status, f.Reason, time.Now().UnixMilli())
	case notice := <-s.Aborted():
		fmt.Println("aborted", notice.Reason)
		_, err := s.Agree(ctx)
		fmt.Println("agree", errors.Is(err, bootstrap.ErrAborted), err)
		return
	case <-ctx.Done():
		return
	}
	sub, alive, err := s.Regroup(ctx)
	require.NoError(t, err)
	fmt.Println("alive", alive)
	for range 30 {
		require.NoError(t, sub.Barrier(ctx))
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Println("done")
	io.Copy(io.Discard, os.Stdin) // the one that was given up may still ask
	sub.Close()
}

// at returns when a fate was known.
func at(t *testing.T, fate string) time.Time {
	_, ms, found := strings.Cut(fate, " at ")
	require.True(t, found, fate)
	n, err := strconv.ParseInt(ms, 10, 64)
	require.NoError(t, err)
	return time.UnixMilli(n)
}

func TestUC04_KilledProcess(t *testing.T) {
	t.Parallel() // with the others here, after all tests that count what is open in this process
	if testing.Short() {
		t.Skip("starts processes, not with -short")
	}
	for _, dead := range []int{0, 2} {
		all := processes(t, 4)
		time.Sleep(300 * time.Millisecond)
		killed := time.Now()
		require.NoError(t, all[dead].cmd.Process.Kill())
		for r, p := range all {
			if r != dead {
				fate := p.says(t, fmt.Sprintf("fate %d dead", dead))
				require.WithinDuration(t, killed, at(t, fate), 5*time.Second, "a second, on a machine with nothing else to do")
				t.Logf("rank %d knew after %v", r, at(t, fate).Sub(killed))
				require.Equal(t, fmt.Sprint(map[int][]int{0: {1, 2, 3}, 2: {0, 1, 3}}[dead]), p.says(t, "alive"))
			}
		}
		for r, p := range all {
			if r != dead {
				p.says(t, "done")
			}
		}
	}
}

// A process that is stopped is given up by the others, which go on; continued, it blames nobody for the time that it was stopped, and
// hears that it was given up.
func TestStoppedProcess(t *testing.T) {
	t.Parallel() // with the others here, after all tests that count what is open in this process
	if testing.Short() {
		t.Skip("starts processes, not with -short")
	}
	all := processes(t, 4)
	const stopped = 1
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, all[stopped].cmd.Process.Signal(syscall.SIGSTOP))
	for r, p := range all {
		if r != stopped {
			require.Contains(t, p.says(t, fmt.Sprintf("fate %d dead", stopped)), "silent for")
			require.Equal(t, "[0 2 3]", p.says(t, "alive"))
		}
	}
	time.Sleep(time.Second)
	require.NoError(t, all[stopped].cmd.Process.Signal(syscall.SIGCONT))
	require.Contains(t, all[stopped].says(t, "aborted"), "it gave this rank up: silent for")
	require.Contains(t, all[stopped].says(t, "agree"), "true")
	for r, p := range all {
		if r != stopped {
			p.says(t, "done")
			p.stdin.Close()
			p.says(t, "PASS")
		}
	}
}

// A process that is stopped for less than the limit is missed by nobody.
func TestPausedProcess(t *testing.T) {
	t.Parallel() // with the others here, after all tests that count what is open in this process
	if testing.Short() {
		t.Skip("starts processes, not with -short")
	}
	for tries, paused := 1, false; !paused && !t.Failed(); tries++ {
		t.Run(fmt.Sprint(tries), func(t *testing.T) {
			all := processes(t, 3)
			start := time.Now()
			require.NoError(t, all[1].cmd.Process.Signal(syscall.SIGSTOP))
			time.Sleep(time.Second)
			require.NoError(t, all[1].cmd.Process.Signal(syscall.SIGCONT))
			if took := time.Since(start); took > 1500*time.Millisecond && tries < 10 {
				t.Logf("this process was late itself: the other was stopped for %v", took)
				return
			}
			paused = true
			time.Sleep(3 * time.Second)
			for r, p := range all {
				select {
				case line := <-p.lines:
					require.Fail(t, line, "rank %d", r)
				default:
				}
			}
		})
	}
}
