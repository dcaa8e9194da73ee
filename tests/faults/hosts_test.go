//go:build linux

package faults

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/tests/cluster"
)

const (
	ownShmVar = "GCCL_FAULTS_OWN_SHM"
	wantVar   = "GCCL_FAULTS_WANT" // one of these transports
	downVar   = "GCCL_FAULTS_DOWN"
)

// apart is the job of a rank in a container of its own.
func apart(r *cluster.Rank) {
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
		c := join(r, nil)
		defer c.Close()
		for _, p := range c.Paths() {
			if want := os.Getenv(wantVar); !strings.Contains(want, p.Transport) || p.Reason == "" {
				return fmt.Errorf("rank %d is reached by %s because %q, want %s", p.Rank, p.Transport, p.Reason, want)
			} else if p.Transport == "tcp" && !strings.Contains(p.Reason, "nonce") && !strings.Contains(p.Reason, "pid") && !strings.Contains(p.Reason, "process") && !strings.Contains(p.Reason, "no such file") {
				return fmt.Errorf("the reason %q does not say what is not shared", p.Reason)
			}
		}
		b, err := newBuffers(c, 1<<20)
		if err != nil {
			return err
		}
		ctx, cancel := within()
		defer cancel()
		return good(ctx, c, b, 1, 50, 1<<20)
	})
}

// TestUC35_ContainersApart: two containers on one host, with one name and one boot id, use TCP where they do not see one /dev/shm, say
// why, and are right, whether or not they see each other's processes.
func TestUC35_ContainersApart(t *testing.T) {
	if !cluster.Isolated(t) { // skips where namespaces are refused
		return
	}
	for _, c := range []struct {
		name, own, want string
		flags           uintptr
	}{
		{"no shared processes", "", "shm tcp", unix.CLONE_NEWPID | unix.CLONE_NEWNS},
		{"no shared memory", "1", "tcp", unix.CLONE_NEWNS},
		{"neither", "1", "tcp", unix.CLONE_NEWPID | unix.CLONE_NEWNS},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster.Run(t, cluster.Launch{Job: "apart", Ranks: 2, Env: []string{"GCCL_TRANSPORT=auto", wantVar + "=" + c.want, ownShmVar + "=" + c.own},
				Namespaces: func(int) uintptr { return c.flags }})
		})
	}
}

// linked is the job of a rank whose network comes up late.
func linked(r *cluster.Rank) {
	r.Case("join", func(report *cluster.Case) error {
		cfg := r.Config()
		cfg.Logger = quiet
		root, err := meetInNamespaces(r, &cfg)
		if err != nil {
			return err
		}
		defer root.Close()
		if r.Rank == 2 && os.Getenv(downVar) != "" {
			up, err := setDown()
			if err != nil {
				return err
			}
			time.AfterFunc(2*time.Second, up)
		}
		ctx, cancel := within()
		defer cancel()
		start := time.Now()
		c, err := comm.New(ctx, cfg)
		if err != nil {
			return err
		}
		defer c.Close()
		report.Fact("ms", time.Since(start).Milliseconds())
		b, err := newBuffers(c, 64<<10)
		if err != nil {
			return err
		}
		return good(ctx, c, b, 1, 20, 64<<10)
	})
}

// setDown takes this rank's interface down.
func setDown() (up func(), err error) {
	out, err := exec.Command("ip", "link", "set", "eth0", "down").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("ip: %w %s", err, out)
	}
	return func() { exec.Command("ip", "link", "set", "eth0", "up").Run() }, nil
}

// TestUC22_LinkThatComesUp: a link that is not there yet, at the root's end or at another's, is waited for.
func TestUC22_LinkThatComesUp(t *testing.T) {
	t.Parallel() // it waits more than it works
	needNamespaces(t)
	for rank, whose := range []string{"the root's", "another's"} {
		t.Run(whose, func(t *testing.T) {
			_, path := newPage(t)
			sw := newSwitch(t, 3, path)
			defer sw.wait()
			res := cluster.Run(t, cluster.Launch{Job: "linked", Ranks: 3, Env: []string{"GCCL_TRANSPORT=auto", pageVar + "=" + path},
				Namespaces: func(int) uintptr { return unix.CLONE_NEWNET },
				Started: func(ps []*os.Process) {
					sw.connect(ps)
					sw.unplug(rank)
					time.Sleep(4 * time.Second)
					sw.plug(rank)
				}})
			ms, ok := res.Fact("join", 2, "ms")
			require.True(t, ok)
			t.Logf("rank 2 joined after %d ms", ms)
			require.Greater(t, ms, int64(1000), "nothing was waited for")
		})
	}
}

// TestUC22_OwnLinkThatComesUp: so is a rank's own, which it cannot listen on before.
func TestUC22_OwnLinkThatComesUp(t *testing.T) {
	t.Parallel() // it waits more than it works
	needNamespaces(t)
	_, path := newPage(t)
	sw := newSwitch(t, 3, path)
	defer sw.wait()
	res := cluster.Run(t, cluster.Launch{Job: "linked", Ranks: 3, Env: []string{"GCCL_TRANSPORT=auto", pageVar + "=" + path, downVar + "=1"},
		Namespaces: func(int) uintptr { return unix.CLONE_NEWNET }, Started: sw.connect})
	ms, ok := res.Fact("join", 2, "ms")
	require.True(t, ok)
	require.Greater(t, ms, int64(1000), "nothing was waited for")
}

// listening are the TCP ports at which a process listens.
func listening(pid int) (addrs []string) {
	own := map[string]bool{}
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	for _, e := range entries {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
		if inode, ok := strings.CutPrefix(to, "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != "0A" || !own[f[9]] {
			continue
		}
		host, port, _ := strings.Cut(f[1], ":")
		h, _ := strconv.ParseUint(host, 16, 32)
		p, _ := strconv.ParseUint(port, 16, 16)
		addrs = append(addrs, fmt.Sprintf("%s:%d", net.IPv4(byte(h), byte(h>>8), byte(h>>16), byte(h>>24)), p))
	}
	return addrs
}

// ranged is the job of a rank that may listen at some ports only.
func ranged(r *cluster.Rank) {
	r.Case("ports", func(report *cluster.Case) error {
		cfg := r.Config()
		cfg.Logger, cfg.InitTimeout = quiet, 5*time.Second
		ctx, cancel := within()
		defer cancel()
		c, err := comm.New(ctx, cfg)
		if err != nil {
			if n := int(cfg.Ports.High-cfg.Ports.Low) + 1; strings.Contains(err.Error(), fmt.Sprintf("range has %d ports, need", n)) {
				report.Fact("too few", 1)
			}
			return nil // the test knows which it should be
		}
		defer c.Close()
		report.Fact("joined", 1)
		b, err := newBuffers(c, 64<<10)
		if err != nil {
			return err
		}
		if err := good(ctx, c, b, 1, 30, 64<<10); err != nil {
			return err
		}
		listeners := listening(os.Getpid())
		report.Fact("listeners", int64(len(listeners)))
		for _, a := range listeners {
			_, port, _ := net.SplitHostPort(a)
			if p, _ := strconv.Atoi(port); p < int(cfg.Ports.Low) || p > int(cfg.Ports.High) {
				return fmt.Errorf("listens at %s, outside of %v", a, cfg.Ports)
			}
		}
		return c.Barrier(ctx)
	})
}

// TestUC25_PortRangeOfAJob: all listeners of a job, for meeting and for data, keep to the range; too few ports are an error that says how many
// are needed. A rank listens at one port to meet others, and over TCP at one more for data; the root is the launch's own here. So four
// ports do for four ranks in shared memory, and eight over TCP.
func TestUC25_PortRangeOfAJob(t *testing.T) {
	t.Parallel() // it waits more than it works
	low := 20_000 + rand.IntN(10_000)
	for _, c := range []struct {
		over         string
		ranks, ports int
		enough       bool
	}{{"shm", 4, 4, true}, {"tcp", 4, 8, true}, {"shm", 8, 4, false}, {"tcp", 4, 7, false}, {"tcp", 8, 4, false}} {
		t.Run(fmt.Sprintf("%s %d ranks %d ports", c.over, c.ranks, c.ports), func(t *testing.T) {
			res := cluster.Run(t, cluster.Launch{Job: "ranged", Ranks: c.ranks, Env: []string{"GCCL_TRANSPORT=" + c.over, fmt.Sprintf("GCCL_PORT_RANGE=%d-%d", low, low+c.ports-1)}})
			low += c.ports
			var joined, few, listeners int64
			for rank := range c.ranks {
				n, _ := res.Fact("ports", rank, "joined")
				joined += n
				n, _ = res.Fact("ports", rank, "too few")
				few += n
				n, _ = res.Fact("ports", rank, "listeners")
				listeners += n
			}
			if c.enough {
				require.Equal(t, int64(c.ranks), joined)
				require.Equal(t, int64(c.ports), listeners, "every port is needed")
			} else {
				require.Zero(t, joined)
				require.Positive(t, few, "nobody said that there are too few ports")
			}
		})
	}
}

// scanned is the job of a rank that strangers connect to.
func scanned(r *cluster.Rank) {
	p, err := openPage(os.Getenv(pageVar))
	if err != nil {
		r.Fatal(err)
	}
	before := baseline()
	var log lineCounter
	var c *comm.Comm
	r.Case("right", func(report *cluster.Case) error {
		cfg := r.Config()
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		if r.Rank == 3 {
			time.Sleep(3 * time.Second)
		}
		ctx, cancel := within()
		defer cancel()
		start := time.Now()
		var err error
		if c, err = comm.New(ctx, cfg); err != nil {
			return err
		}
		report.Fact("join ms", time.Since(start).Milliseconds())
		p.put(of(r.Rank, wordStage), looping)
		b, err := newBuffers(c, 256<<10)
		if err != nil {
			return err
		}
		if err := good(ctx, c, b, 1, 20, 256<<10); err != nil {
			return err
		}
		for start := time.Now(); ; { // no rank ends it by its own clock: others may have begun another turn
			if err := good(ctx, c, b, 2, 20, 256<<10); err != nil {
				return err
			}
			x := []int64{int64(time.Since(start) / (5 * time.Second))} // all stop together
			if err := comm.AllReduce(ctx, c, x, x, 0); err != nil || x[0] > 0 {
				return err
			}
		}
	})
	p.put(of(r.Rank, wordStage), finished)
	r.Case("close", func(report *cluster.Case) error {
		c.Close()
		_, now := weight()
		report.Fact("resident KiB", now>>10)
		report.Fact("log lines", int64(log.lines()))
		return settles(before, 0)
	})
}

// lineCounter counts the lines that a log gets.
type lineCounter struct {
	mu sync.Mutex
	n  int
}

func (l *lineCounter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	return len(b), nil
}

func (l *lineCounter) lines() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// strangers does to a port what scanners do. It leaves ten silent connections there.
func strangers(addr string, silent *silences) {
	hello := append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, make([]byte, 508)...)
	for _, what := range [][]byte{nil, {0x47}, {1, 2, 3, 4, 5, 6, 7, 8}, []byte("GET / HTTP/1.0\r\n\r\n"), make([]byte, 1<<20), hello} {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			continue
		}
		c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		if what == nil {
			c.(*net.TCPConn).SetLinger(0) // a reset
		} else {
			c.Write(what)
		}
		c.Close()
	}
	for range 10 {
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			silent.keep(c)
		}
	}
}

// silences are connections on which nobody says anything, until the other end hangs up.
type silences struct {
	open    sync.WaitGroup
	mu      sync.Mutex
	now     int
	most    int           // at once
	longest time.Duration // that one was let be
}

func (s *silences) keep(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now >= 800 {
		c.Close()
		return
	}
	s.now++
	s.most = max(s.most, s.now)
	s.open.Go(func() {
		began := time.Now()
		c.SetReadDeadline(began.Add(patience))
		c.Read(make([]byte, 1))
		c.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.longest = max(s.longest, time.Since(began))
		s.now--
	})
}

// TestUC19_ScannedJob: scanners at every port of a job, while it meets and while it works, disturb nothing: the last rank joins in less than a
// second, silent connections are hung up on after five, and each kind of stranger is one line in ten seconds.
func TestUC19_ScannedJob(t *testing.T) {
	p, path := newPage(t)
	var silent silences
	scans, ports := 0, map[string]bool{}
	res := cluster.Run(t, cluster.Launch{Job: "scanned", Ranks: 4, Env: []string{"GCCL_TRANSPORT=tcp", pageVar + "=" + path},
		Started: func(ps []*os.Process) {
			for !p.awaitStage(finished, 20*time.Millisecond, 0, 1, 2, 3) && scans < 3000 {
				for _, rank := range ps {
					for _, a := range listening(rank.Pid) {
						strangers(a, &silent)
						scans++
						ports[a] = true
					}
				}
			}
			silent.open.Wait()
		}})
	t.Logf("%d scans of %d ports; up to %d silent connections at once, for at most %v", scans, len(ports), silent.most, silent.longest)
	require.GreaterOrEqual(t, len(ports), 8, "each rank listens for meeting and for data")
	require.Greater(t, scans, 20)
	require.Greater(t, silent.most, 200)
	require.Less(t, silent.longest, 7*time.Second, "5 s, on a machine that is not loaded")
	for rank := range 4 {
		ms, _ := res.Fact("right", rank, "join ms")
		lines, _ := res.Fact("close", rank, "log lines")
		kib, _ := res.Fact("close", rank, "resident KiB")
		t.Logf("rank %d: joined in %d ms, %d lines in its log, %d MiB resident", rank, ms, lines, kib>>10)
		if rank == 3 { // for which the others wait, three seconds
			require.Less(t, ms, int64(1000))
		}
		require.Less(t, ms, int64(6000))
		require.Positive(t, lines)
		require.LessOrEqual(t, lines, int64(2*4*3), "two ports, four kinds of strangers, and not much more than ten seconds")
		require.Less(t, kib, int64(128<<10))
	}
}
