package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MaxRanks is the most ranks that one launcher starts on one machine.
const MaxRanks = 4096

// DefaultGrace is how long ranks have to end after SIGTERM before they are killed.
const DefaultGrace = 5 * time.Second

// pipeDelay is how long a rank's output is still read after the rank has ended, for the sake of
// processes that it left behind with its pipes.
const pipeDelay = 2 * time.Second

// Job says what to start. The zero values of all fields but Ranks and Program are useful.
type Job struct {
	Ranks   int      // processes to start, 1…MaxRanks
	Program string   // path, or a name to look for in PATH
	Args    []string // without the program's name
	Env     []string // "KEY=value"; nil: this process's. A launcher's earlier GCCL_ settings in it are replaced

	// CPUs are the numbers of those that each rank, and what it starts, may run on, by rank; nil, or of a rank an empty list: all
	// that this process may.
	CPUs [][]int

	// Output returns where a rank's output goes, asked once for each rank; nil: to this process's own.
	// A writer that is an *os.File is handed to the process as it is. Writers of a Lines are closed
	// when the rank has ended and its output was read.
	Output func(rank int) (stdout, stderr io.Writer)

	// Signals brings signals to pass on. SIGTSTP stops the ranks and then this process, SIGCONT wakes
	// them. After a second one of SIGINT, SIGTERM, SIGHUP and SIGQUIT the job is stopped as if a rank
	// had failed. May be nil.
	Signals <-chan os.Signal

	Grace time.Duration // between SIGTERM and SIGKILL when ranks are stopped; 0: DefaultGrace

	// Records says that the ranks write records of a failure (GCCL_RECORDER). When one has failed the others are then left to find that
	// out and to end by themselves, and get SIGTERM when they haven't after the grace.
	Records bool
}

// ExitError says which rank failed first.
type ExitError struct {
	Rank   int
	PID    int
	Code   int            // its exit status, when no signal ended it
	Signal syscall.Signal // what ended it, or 0
}

func (e *ExitError) Error() string {
	if e.Signal != 0 {
		return fmt.Sprintf("rank %d (pid %d) was ended by signal %d (%v)", e.Rank, e.PID, int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("rank %d (pid %d) ended with exit status %d", e.Rank, e.PID, e.Code)
}

// ExitCode returns the rank's exit status, or as shells do 128 + the signal that ended it.
func (e *ExitError) ExitCode() int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// Run starts the job's ranks and returns when all of them have ended. The error is nil when all
// ended with status 0, an *[ExitError] of the rank seen to fail first, an error wrapping ctx's when
// ctx ended the job, or it says what could not be started, a *[ProgramError] where that is because of
// the program, and then no rank is left running.
//
// The calling goroutine keeps its thread meanwhile: the system ends the ranks with the thread that
// started them.
func Run(ctx context.Context, job Job) error {
	if job.Ranks < 1 || job.Ranks > MaxRanks {
		return fmt.Errorf("launch: %d ranks, want 1…%d", job.Ranks, MaxRanks)
	}
	path, err := find(job.Program)
	if err != nil {
		return err
	}
	env, err := NewEnvironment(job.Env, job.Ranks)
	if err != nil {
		return err
	}
	defer env.Close()

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := &pool{grace: job.Grace, records: job.Records, ended: make(chan exit)}
	if p.grace <= 0 {
		p.grace = DefaultGrace
	}
	var failed error
	for rank := range job.Ranks {
		if failed = p.start(job, path, env, rank); failed != nil {
			p.stop()
			break
		}
	}
	if err := p.wait(ctx, job.Signals); failed == nil {
		failed = err
	}
	return failed
}

// exit is how a rank's process ended.
type exit struct {
	rank int
	err  error
}

// pool is the processes of a job. One goroutine uses it; besides, one for each process waits for
// that to end.
type pool struct {
	grace   time.Duration
	records bool
	running map[int]*exec.Cmd // by rank
	ended   chan exit
	late    <-chan time.Time // for records; set by the first failure
	kill    <-chan time.Time // set by stop
}

// start starts a rank.
func (p *pool) start(job Job, path string, env *Environment, rank int) error {
	cmd := exec.Command(path, job.Args...)
	cmd.Args[0] = job.Program
	cmd.Env = env.Rank(rank)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if job.Output != nil {
		cmd.Stdout, cmd.Stderr = job.Output(rank)
	}
	cmd.WaitDelay = pipeDelay
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // so that a signal reaches what the rank started too, and a terminal's reaches each once
		Pdeathsig: syscall.SIGKILL,
	}
	if err := startOn(job.cpus(rank), cmd); err != nil {
		return startError(rank, job.Program, err)
	}
	if p.running == nil {
		p.running = make(map[int]*exec.Cmd)
	}
	p.running[rank] = cmd
	go func() {
		err := cmd.Wait()
		for _, w := range []io.Writer{cmd.Stdout, cmd.Stderr} {
			if c, ok := w.(*linesWriter); ok {
				c.Close()
			}
		}
		p.ended <- exit{rank, err}
	}()
	return nil
}

func (j Job) cpus(rank int) []int {
	if rank >= len(j.CPUs) {
		return nil
	}
	return j.CPUs[rank]
}

// maxCPUs is how many CPUs any Linux has at most: CONFIG_NR_CPUS ends there. A unix.CPUSet has 1024, and on more the system takes no mask of it.
const maxCPUs = 8192

// startOn starts a process that is bound to CPUs from its first instruction on: it inherits the binding of the thread that starts
// it, which is the caller's own and gets back what it had.
func startOn(cpus []int, cmd *exec.Cmd) error {
	if len(cpus) == 0 {
		return cmd.Start()
	}
	before, set := unix.NewCPUSet(maxCPUs), unix.NewCPUSet(maxCPUs)
	if err := unix.SchedGetaffinityDynamic(0, before); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	for _, n := range cpus {
		set.Set(n)
	}
	if set.Count() < len(cpus) {
		return fmt.Errorf("CPUs %v: want different numbers below %d", cpus, maxCPUs)
	}
	if err := unix.SchedSetaffinityDynamic(0, set); err != nil {
		return fmt.Errorf("run on the CPUs %v: %w", cpus, os.NewSyscallError("sched_setaffinity", err))
	}
	return startThen(cmd, func() error { return os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinityDynamic(0, before)) })
}

// startThen starts a process, and after that does what has to follow. If either fails there is no process.
func startThen(cmd *exec.Cmd, after func() error) error {
	started := cmd.Start()
	err := after()
	if started != nil || err == nil {
		return started
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it fails only where the process has ended, as Wait, which tells how
	_ = cmd.Wait()
	return err
}

// wait looks after the processes until all have ended, and returns the first failure.
func (p *pool) wait(ctx context.Context, signals <-chan os.Signal) error {
	var failed error
	endings := 0 // signals that ask to end
	for len(p.running) > 0 {
		select {
		case e := <-p.ended:
			cmd := p.running[e.rank]
			delete(p.running, e.rank)
			if err := exitError(e, cmd); err != nil && failed == nil {
				failed = err
				if p.records {
					p.late = time.After(p.grace)
				} else {
					p.stop()
				}
			}
		case <-p.late:
			p.stop()
		case <-ctx.Done():
			if failed == nil {
				failed = fmt.Errorf("launch: %d ranks still ran: %w", len(p.running), context.Cause(ctx))
			}
			p.stop()
			ctx = context.WithoutCancel(ctx)
		case s, ok := <-signals:
			if !ok { // there will be no more
				signals = nil
				continue
			}
			p.pass(s)
			switch s {
			case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
				if endings++; endings == 2 {
					p.stop()
				}
			case syscall.SIGTSTP:
				// Stopping ourselves is the only failure-free way to tell the shell.
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			}
		case <-p.kill:
			p.pass(syscall.SIGKILL)
		}
	}
	return failed
}

// stop asks all ranks to end, and has them killed when they haven't after the grace.
func (p *pool) stop() {
	if p.kill != nil {
		return
	}
	p.kill = time.After(p.grace)
	p.pass(syscall.SIGTERM)
	p.pass(syscall.SIGCONT) // a stopped process doesn't see SIGTERM
}

// pass sends a signal to the running ranks and what they started.
func (p *pool) pass(s os.Signal) {
	n, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	for _, cmd := range p.running {
		// It fails only when the group has just ended, which its wait will tell.
		_ = syscall.Kill(-cmd.Process.Pid, n)
	}
}

// exitError returns nil for a process that ended with status 0.
func exitError(e exit, cmd *exec.Cmd) error {
	state := cmd.ProcessState
	if e.err == nil || state != nil && state.Success() && errors.Is(e.err, exec.ErrWaitDelay) {
		return nil
	}
	if state == nil || state.Success() {
		return fmt.Errorf("launch: rank %d (pid %d): %w", e.rank, cmd.Process.Pid, e.err)
	}
	x := &ExitError{Rank: e.rank, PID: cmd.Process.Pid, Code: state.ExitCode()}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		x.Signal, x.Code = status.Signal(), 0
	}
	return x
}
