//go:build linux

package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
)

// Launch says what to start. The zero values of all fields but Job and Ranks are useful.
type Launch struct {
	Job   string // of Jobs
	Ranks int
	Env   []string                // "NAME=value", for all ranks
	Only  func(rank int) []string // more of the kind for one rank; nil: none

	Worlds  int           // how many worlds the ranks can meet in, one after the other or at once; 0: 1
	Timeout time.Duration // 0: two minutes

	// Dies says of ranks that they are ended by this signal; they owe no report.
	Dies map[int]syscall.Signal
	// Started, if not nil, is called once with the processes, in order of rank, while they run; the ranks' end does not wait for it,
	// but Run does.
	Started func(processes []*os.Process)
	// Namespaces, if not nil, says in which new namespaces of its own a rank starts, as clone flags. CLONE_NEWUSER comes with
	// them, and maps the user to root.
	Namespaces func(rank int) uintptr
	// ShmDir is where shared memory lies. Empty: in an empty directory of its own, which must be empty again in the end.
	ShmDir string
}

// process is one rank as the parent sees it.
type process struct {
	rank    int
	cmd     *exec.Cmd
	output  buffer
	reports []report
	done    chan struct{} // closed when it has ended and everything was read
	err     error         // of Wait
	killed  bool          // by us, at the timeout
}

// Run starts the ranks, waits for all of them to end, and makes a subtest of t of each case. What is wrong with a rank as a
// whole fails t itself. Start-up failures end the test.
func Run(t *testing.T, l Launch) *Result {
	t.Helper()
	if l.Timeout == 0 {
		l.Timeout = 2 * time.Minute
	}
	own := l.ShmDir == ""
	if own {
		l.ShmDir = shmDir(t)
	}
	ps, err := l.run(serve(t, max(l.Worlds, 1), l.Timeout))
	if err != nil {
		t.Fatal(err)
	}
	res := collect(l, ps)
	res.judge(t)
	if own {
		res.leftovers(t, l.ShmDir)
	}
	if t.Failed() {
		for _, p := range ps {
			if s := p.output.String(); s != "" {
				t.Logf("rank %d said:\n%s", p.rank, s)
			}
		}
	}
	return res
}

// run starts the ranks and waits until all have ended.
func (l Launch) run(ids string) ([]*process, error) {
	// The kernel ends the ranks with the thread that started them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ps []*process
	for rank := range l.Ranks {
		p, err := l.start(rank, ids)
		if err != nil {
			for _, p := range ps {
				p.cmd.Process.Kill()
				<-p.done
			}
			return nil, fmt.Errorf("start rank %d: %w", rank, err)
		}
		ps = append(ps, p)
	}
	var started sync.WaitGroup
	if l.Started != nil {
		list := make([]*os.Process, len(ps))
		for i, p := range ps {
			list[i] = p.cmd.Process
		}
		started.Go(func() { l.Started(list) })
	}
	await(ps, l.Timeout)
	started.Wait()
	return ps, nil
}

// shmDir makes a directory for shared memory that is gone with the test.
func shmDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cluster-test-")
	if err != nil {
		dir = t.TempDir()
	} else {
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	return dir
}

// serve serves the roots of worlds until the test ends.
func serve(t *testing.T, worlds int, timeout time.Duration) string {
	t.Helper()
	var ids []string
	for range worlds {
		root, err := bootstrap.ListenRoot(context.Background(), bootstrap.RootConfig{Address: "127.0.0.1:0", Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { root.Close() })
		ids = append(ids, root.ID().String())
	}
	return strings.Join(ids, " ")
}

// inherited reports whether a variable of ours reaches the ranks: nothing that would make them members of another job.
func inherited(v string) bool {
	name, _, _ := strings.Cut(v, "=")
	switch name {
	case "GCCL_DEBUG", "GCCL_FIXTURES", "GCCL_TEST_FULL":
		return true
	case "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT":
		return false
	}
	return !strings.HasPrefix(name, "GCCL_")
}

func (l Launch) start(rank int, ids string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer writer.Close()
	p := &process{rank: rank, done: make(chan struct{}), cmd: exec.Command(exe)}
	for _, v := range os.Environ() {
		if inherited(v) {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	first, _, _ := strings.Cut(ids, " ")
	p.cmd.Env = append(p.cmd.Env,
		jobVar+"="+l.Job, idsVar+"="+ids, "GCCL_UNIQUE_ID="+first, "GCCL_SHM_DIR="+l.ShmDir,
		fmt.Sprintf("GCCL_RANK=%d", rank), fmt.Sprintf("GCCL_WORLD_SIZE=%d", l.Ranks), fmt.Sprintf("GCCL_LOCAL_RANK=%d", rank),
		"GOTRACEBACK=all")
	p.cmd.Env = append(p.cmd.Env, l.Env...)
	if l.Only != nil {
		p.cmd.Env = append(p.cmd.Env, l.Only(rank)...)
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.ExtraFiles = []*os.File{writer} // reportFD
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if l.Namespaces != nil {
		unshare(p.cmd.SysProcAttr, l.Namespaces(rank))
	}
	if err := p.cmd.Start(); err != nil {
		reader.Close()
		return nil, err
	}
	go func() {
		defer close(p.done)
		defer reader.Close()
		lines := bufio.NewScanner(reader)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			var r report
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				fmt.Fprintf(&p.output, "cluster: not a report: %q: %v\n", lines.Text(), err)
				continue
			}
			p.reports = append(p.reports, r)
		}
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// await waits for all processes. Who is late is asked for its stacks, and then killed.
func await(ps []*process, timeout time.Duration) {
	limit := time.After(timeout)
	var kill <-chan time.Time
	for _, p := range ps {
		for open := true; open; {
			select {
			case <-p.done:
				open = false
			case <-limit:
				limit = nil
				kill = time.After(5 * time.Second)
				late(ps, syscall.SIGQUIT)
			case <-kill:
				kill = nil
				late(ps, syscall.SIGKILL)
			}
		}
	}
}

func late(ps []*process, sig syscall.Signal) {
	for _, p := range ps {
		select {
		case <-p.done:
		default:
			p.killed = true
			p.cmd.Process.Signal(sig)
		}
	}
}

// buffer keeps what a process says: all of it up to a bound, and after that the end.
type buffer struct {
	mu         sync.Mutex
	head, tail []byte
	dropped    int
}

const keep = 32 << 10 // bytes of each

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(p), keep-len(b.head))
	b.head = append(b.head, p[:n]...)
	b.tail = append(b.tail, p[n:]...)
	if over := len(b.tail) - keep; over > keep {
		b.dropped += over
		b.tail = append([]byte(nil), b.tail[over:]...)
	}
	return len(p), nil
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := string(b.head)
	if b.dropped > 0 {
		s += fmt.Sprintf("\n… %d bytes …\n", b.dropped)
	}
	return s + string(b.tail)
}

// leftovers fails the test for every file that the ranks left.
func (r *Result) leftovers(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("shared memory left behind in %s: %v %v", dir, left, err)
	}
}
