package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// long is more than any of these tests should take on a machine that is busy.
const long = 2 * time.Minute

func script(t *testing.T, text string) (string, []string) {
	t.Helper()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no shell: ", err)
	}
	return "sh", []string{"-c", text}
}

// runScript runs a script as some ranks and returns what they wrote.
func runScript(t *testing.T, ranks int, text string, change func(*Job)) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var out bytes.Buffer
	lines := NewLines(&out)
	job := Job{Ranks: ranks, Output: func(rank int) (io.Writer, io.Writer) {
		w := lines.Writer(fmt.Sprintf("[%d] ", rank))
		return w, w
	}}
	job.Program, job.Args = script(t, text)
	if change != nil {
		change(&job)
	}
	err := Run(ctx, job)
	return out.String(), err
}

func TestRunSetsEnvironment(t *testing.T) {
	t.Setenv("GCCL_UNIQUE_ID", "of an outer launcher")
	t.Setenv("GCCL_TRANSPORT", "tcp")
	out, err := runScript(t, 3, `echo $GCCL_RANK/$GCCL_WORLD_SIZE/$GCCL_LOCAL_RANK $GCCL_ROOT $GCCL_SECRET "$GCCL_UNIQUE_ID" $GCCL_TRANSPORT`, nil)
	require.NoError(t, err)
	var roots []string
	for rank := range 3 {
		prefix := fmt.Sprintf("[%d] %d/3/%d 127.0.0.1:", rank, rank, rank)
		_, rest, ok := strings.Cut(out, prefix)
		require.True(t, ok, "%q in %q", prefix, out)
		root, _, _ := strings.Cut(rest, "\n")
		roots = append(roots, root)
		fields := strings.Fields(root)
		require.Len(t, fields, 3, "port, secret, and nothing but tcp of what was there: %q", root)
		require.Len(t, fields[1], 64)
		require.Equal(t, "tcp", fields[2])
	}
	require.Equal(t, roots[0], roots[1])
	require.Equal(t, roots[0], roots[2])
}

func TestReservedPortCanBeListenedAtAgainAndAgain(t *testing.T) {
	env, err := NewEnvironment([]string{}, 1)
	require.NoError(t, err)
	defer env.Close()
	var root string
	for _, v := range env.Rank(0) {
		if text, ok := strings.CutPrefix(v, VarRoot+"="); ok {
			root = text
		}
	}
	for range 3 {
		l, err := net.Listen("tcp", root)
		require.NoError(t, err)
		_, err = net.Listen("tcp", root)
		require.ErrorIs(t, err, syscall.EADDRINUSE, "only one at a time")
		require.NoError(t, l.Close())
	}
}

func TestRunReturnsFirstFailureAndStopsOthers(t *testing.T) {
	began := time.Now()
	out, err := runScript(t, 3, `if [ $GCCL_RANK = 1 ]; then exit 7; fi; trap 'echo stopped; exit 0' TERM; sleep 1000 & wait`, nil)
	var exit *ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.Rank)
	require.Equal(t, 7, exit.ExitCode())
	require.Contains(t, err.Error(), "rank 1 (pid ")
	require.Contains(t, err.Error(), "exit status 7")
	require.Less(t, time.Since(began), long)
	require.NotContains(t, out, "[1]")
}

func TestRunKillsWhoIgnoresSIGTERM(t *testing.T) {
	dir := t.TempDir()
	// The rank that fails waits until the others have their traps.
	out, err := runScript(t, 3, `
		if [ $GCCL_RANK = 0 ]; then while [ $(ls `+dir+` | wc -l) -lt 2 ]; do sleep 0.01; done; kill -SEGV $$; fi
		trap '' TERM; touch `+dir+`/$GCCL_RANK; while :; do sleep 0.1; done`,
		func(j *Job) { j.Grace = 200 * time.Millisecond })
	var exit *ExitError
	require.ErrorAs(t, err, &exit, out)
	require.Equal(t, 0, exit.Rank)
	require.Equal(t, syscall.SIGSEGV, exit.Signal)
	require.Equal(t, 128+11, exit.ExitCode())
}

func TestRunPassesSignalsOnToGroups(t *testing.T) {
	signals := make(chan os.Signal, 1)
	ready := make(chan string, 100)
	var out bytes.Buffer
	lines := NewLines(io.MultiWriter(&out, writerFunc(func(p []byte) (int, error) {
		ready <- string(p)
		return len(p), nil
	})))
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	// What the rank has started hears the signal as well, and the rank's own status counts.
	program, args := script(t, `trap 'exit 3' USR1; sh -c "trap 'echo child; exit' USR1; echo ready; while :; do sleep 0.05; done"; exit 3`)
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Job{Ranks: 2, Program: program, Args: args, Signals: signals, Output: func(rank int) (io.Writer, io.Writer) {
			w := lines.Writer(strconv.Itoa(rank) + ":")
			return w, w
		}})
	}()
	for range 2 {
		require.Contains(t, <-ready, "ready")
	}
	signals <- syscall.SIGUSR1
	var exit *ExitError
	require.ErrorAs(t, <-done, &exit)
	require.Equal(t, 3, exit.ExitCode())
	require.Contains(t, out.String(), "child")
}

func TestSecondSIGINTStopsRanksThatIgnoreIt(t *testing.T) {
	signals := make(chan os.Signal, 2)
	dir := t.TempDir()
	go func() {
		for {
			if names, _ := filepath.Glob(dir + "/*"); len(names) == 2 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		signals <- syscall.SIGINT
		signals <- syscall.SIGINT
	}()
	_, err := runScript(t, 2, `trap '' INT; touch `+dir+`/$GCCL_RANK; while :; do sleep 0.05; done`, func(j *Job) { j.Signals = signals })
	var exit *ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, syscall.SIGTERM, exit.Signal)
}

func TestRunEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	program, args := script(t, `sleep 1000`)
	time.AfterFunc(100*time.Millisecond, func() { cancel(reason) })
	require.ErrorIs(t, Run(ctx, Job{Ranks: 2, Program: program, Args: args}), reason)
}

func TestRunRefuses(t *testing.T) {
	for _, ranks := range []int{-1, 0, MaxRanks + 1} {
		require.ErrorContains(t, Run(t.Context(), Job{Ranks: ranks, Program: "true"}), strconv.Itoa(ranks))
	}
	err := Run(t.Context(), Job{Ranks: 1, Program: "no-such-program-of-gccl"})
	require.ErrorIs(t, err, exec.ErrNotFound)
	require.ErrorContains(t, err, "no-such-program-of-gccl")
	var program *ProgramError
	require.ErrorAs(t, err, &program)
	require.Equal(t, 127, program.ExitCode())

	err = Run(t.Context(), Job{Ranks: 1, Program: "true", Args: []string{strings.Repeat("a", 1<<20)}})
	require.ErrorAs(t, err, &program)
	require.ErrorContains(t, err, "rank 0")
	require.Equal(t, 126, program.ExitCode())

	// What the system lacks, or refuses us and not the program, is no fault of the program's.
	for _, err := range []error{
		&fs.PathError{Op: "fork/exec", Path: "/bin/true", Err: syscall.EAGAIN},
		&fs.PathError{Op: "fork/exec", Path: "/bin/true", Err: syscall.ENOMEM},
		&fs.PathError{Op: "open", Path: "/dev/null", Err: syscall.ENOENT},
		os.NewSyscallError("sched_setaffinity", syscall.EPERM),
	} {
		got := startError(1, "true", err)
		require.ErrorIs(t, got, err)
		require.False(t, errors.As(got, &program), "%v", got)
		require.ErrorContains(t, got, `rank 1 of "true"`)
	}
	for err, says := range map[error]string{
		&fs.PathError{Op: "fork/exec", Path: "/bin/true", Err: syscall.EAGAIN}: "raise ulimit -u",
		os.NewSyscallError("pipe2", syscall.EMFILE):                            "ulimit -n",
	} {
		require.ErrorContains(t, startError(1, "true", err), says)
	}
}

func TestWorldOfOneAndEmptyOutput(t *testing.T) {
	out, err := runScript(t, 1, `read x; test -z "$x"; printf 'no line end'`, nil)
	require.NoError(t, err)
	require.Equal(t, "[0] no line end\n", out)
}

// TestRanksDieWithLauncher kills a launcher without warning.
func TestRanksDieWithLauncher(t *testing.T) {
	if file := os.Getenv("GCCL_TEST_LAUNCHER"); file != "" {
		program, args := script(t, `echo $$ > `+file+`.$GCCL_RANK.new; mv `+file+`.$GCCL_RANK.new `+file+`.$GCCL_RANK; while :; do sleep 0.1; done`)
		_ = Run(context.Background(), Job{Ranks: 2, Program: program, Args: args})
		return
	}
	file := filepath.Join(t.TempDir(), "pid")
	launcher := exec.Command(os.Args[0], "-test.run=^TestRanksDieWithLauncher$")
	launcher.Env = append(os.Environ(), "GCCL_TEST_LAUNCHER="+file)
	require.NoError(t, launcher.Start())
	var pids []int
	for rank := range 2 {
		require.Eventually(t, func() bool {
			text, err := os.ReadFile(fmt.Sprint(file, ".", rank))
			if err != nil {
				return false
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			pids = append(pids, pid)
			return err == nil
		}, long, 10*time.Millisecond)
	}
	require.NoError(t, launcher.Process.Kill())
	_ = launcher.Wait()
	for _, pid := range pids {
		require.Eventually(t, func() bool { return gone(pid) }, long, 10*time.Millisecond, "rank's process %d lives on", pid)
	}
}

// gone reports whether a process has ended, waited for or not.
func gone(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A channel of signals that is closed brings no more, and costs nothing.
func TestRunWithClosedSignals(t *testing.T) {
	runtime.LockOSThread() // which Run keeps
	defer runtime.UnlockOSThread()
	busy := func() time.Duration {
		var u unix.Rusage
		require.NoError(t, unix.Getrusage(unix.RUSAGE_THREAD, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	signals := make(chan os.Signal)
	close(signals)
	before := busy()
	_, err := runScript(t, 1, "sleep 1", func(j *Job) { j.Signals = signals })
	require.NoError(t, err)
	require.Less(t, busy()-before, 100*time.Millisecond)
}
