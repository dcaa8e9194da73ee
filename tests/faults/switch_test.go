//go:build linux

package faults

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/tests/cluster"
)

// netSwitch is an Ethernet switch with a port for each rank, in a network namespace of its own. What is unplugged hears nothing more, and nobody
// is told: no reset arrives, and the ranks' own interfaces stay up.
type netSwitch struct {
	t      *testing.T
	name   string // of its namespace
	config *exec.Cmd
	in     io.WriteCloser
	page   string
}

// needNamespaces skips a test that cannot make networks.
func needNamespaces(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		cluster.Lacking(t, "namespaces", "network namespaces and veth need root")
	}
	probe := fmt.Sprintf("gccl-probe-%d-%d", os.Getpid(), now()%1_000_000_000)
	if out, err := exec.Command("ip", "netns", "add", probe).CombinedOutput(); err != nil {
		cluster.Lacking(t, "namespaces", "no network namespaces here: ip netns add: %v %s", err, out)
	}
	defer exec.Command("ip", "netns", "del", probe).Run()
	for _, kind := range []string{"bridge", "veth"} {
		if out, err := exec.Command("ip", "-n", probe, "link", "add", "name", "probe-"+kind, "type", kind).CombinedOutput(); err != nil {
			cluster.Lacking(t, "namespaces", "no %s devices here: %v %s", kind, err, out)
		}
	}
}

// newSwitch makes a switch that is gone with the test. The ranks find the id of their root beside the page.
func newSwitch(t *testing.T, ranks int, page string) *netSwitch {
	t.Helper()
	s := &netSwitch{t: t, name: fmt.Sprintf("gccl-%d-%d", os.Getpid(), now()%1_000_000_000), page: page}
	run := func(args ...string) {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v %s", args, err, out)
		}
	}
	run("netns", "add", s.name)
	t.Cleanup(func() { exec.Command("ip", "netns", "del", s.name).Run() })
	run("-n", s.name, "link", "add", "name", "sw0", "type", "bridge")
	run("-n", s.name, "link", "set", "sw0", "up")
	s.config = exec.Command("ip", "-n", s.name, "-force", "-batch", "-") // reads as we write
	var err error
	if s.in, err = s.config.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	s.config.Stdout, s.config.Stderr = &said, &said
	if err := s.config.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() && said.Len() > 0 {
			t.Logf("ip said: %s", said.String())
		}
	})
	return s
}

func (s *netSwitch) do(format string, args ...any) { fmt.Fprintf(s.in, format+"\n", args...) }

// connect gives each rank an interface eth0 on the switch.
func (s *netSwitch) connect(ps []*os.Process) {
	for r, p := range ps {
		s.do("link add name p%d type veth peer name eth0 netns %d", r, p.Pid)
		s.do("link set p%d master sw0 up", r)
	}
}

func (s *netSwitch) unplug(rank int) { s.do("link set p%d nomaster", rank) }
func (s *netSwitch) plug(rank int)   { s.do("link set p%d master sw0", rank) }

// wait ends the configuration of the switch.
func (s *netSwitch) wait() {
	s.in.Close()
	s.config.Wait()
}

// addressOf is a rank's in the network of a switch.
func addressOf(rank int) netip.Addr { return netip.AddrFrom4([4]byte{10, 99, 0, byte(1 + rank)}) }

// meetInNamespaces makes this rank's interface work and lets it find the others by a root that rank 0 serves, which is to be closed.
func meetInNamespaces(r *cluster.Rank, cfg *comm.Config) (io.Closer, error) {
	if err := plugIn(r.Rank); err != nil {
		return nil, err
	}
	path := os.Getenv(pageVar) + ".id"
	if r.Rank == 0 {
		root, err := bootstrap.ListenRoot(background, bootstrap.RootConfig{Address: netip.AddrPortFrom(addressOf(0), 0).String(), Timeout: patience})
		if err != nil {
			return nil, err
		}
		if err = os.WriteFile(path+"~", []byte(root.ID().String()), 0o600); err == nil {
			err = os.Rename(path+"~", path)
		}
		if err != nil {
			root.Close()
			return nil, err
		}
		cfg.ID = root.ID()
		return root, nil
	}
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(path)
		if err == nil {
			cfg.ID, err = bootstrap.ParseID(string(b))
			return io.NopCloser(nil), err
		}
		if time.Since(start) > patience {
			return nil, err
		}
	}
}

// plugIn sets up the interface that the test puts into this process's network namespace.
func plugIn(rank int) error {
	configured := false
	for start := time.Now(); time.Since(start) < patience; time.Sleep(5 * time.Millisecond) {
		eth0, err := net.InterfaceByName("eth0")
		switch {
		case err != nil: // not there yet
		case !configured:
			for _, args := range [][]string{{"link", "set", "lo", "up"}, {"addr", "add", addressOf(rank).String() + "/24", "dev", "eth0"}, {"link", "set", "eth0", "up"}} {
				if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
					return fmt.Errorf("ip %v: %w %s", args, err, out)
				}
			}
			configured = true
		case eth0.Flags&net.FlagRunning != 0: // the other end is up, too
			return nil
		}
	}
	return errors.New("no interface eth0 came, or nothing is at its other end")
}
