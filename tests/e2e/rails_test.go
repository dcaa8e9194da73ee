//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

// meetVar is where rank 0 writes the id of the root that it serves inside its network.
const meetVar = "GCCL_E2E_MEET"

const railPatience = time.Minute

// railed is the job of a rank that has a network namespace of its own and two interfaces in it.
func railed(r *cluster.Rank) {
	r.Case("sum", func(report *cluster.Case) error {
		for i := range 2 {
			if err := plug(fmt.Sprintf("eth%d", i), fmt.Sprintf("10.9%d.0.%d/24", i, 1+r.Rank)); err != nil {
				return err
			}
		}
		cfg := r.Config()
		var err error
		if cfg.ID, err = meet(r.Rank); err != nil {
			return err
		}
		c, err := comm.New(background, cfg)
		if err != nil {
			return err
		}
		defer c.Close()
		src, dst := make([]float32, 4<<20), make([]float32, 4<<20)
		for i := range src {
			src[i] = float32(i%1000 + r.Rank)
		}
		before := sent()
		if err := comm.AllReduce(background, c, dst, src, kernels.Sum); err != nil {
			return err
		}
		for i := range dst {
			if want := float32(2*(i%1000) + 1); dst[i] != want {
				return fmt.Errorf("element %d is %v, want %v", i, dst[i], want)
			}
		}
		for name, bytes := range sent() {
			report.Fact(name, bytes-before[name])
		}
		return c.Barrier(background)
	})
}

// plug sets up an interface that the test puts into our namespace, and waits for its other end.
func plug(name, address string) error {
	configured := false
	for start := time.Now(); time.Since(start) < railPatience; time.Sleep(5 * time.Millisecond) {
		i, err := net.InterfaceByName(name)
		switch {
		case err != nil: // not there yet
		case !configured:
			for _, args := range [][]string{{"link", "set", "lo", "up"}, {"addr", "add", address, "dev", name}, {"link", "set", name, "up"}} {
				if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
					return fmt.Errorf("ip %v: %w %s", args, err, out)
				}
			}
			configured = true
		case i.Flags&net.FlagRunning != 0:
			return nil
		}
	}
	return fmt.Errorf("no interface %s came, or nothing is at its other end", name)
}

// meet returns the id of a root that rank 0 serves until its process ends.
func meet(rank int) (bootstrap.ID, error) {
	path := os.Getenv(meetVar)
	if rank == 0 {
		root, err := bootstrap.ListenRoot(background, bootstrap.RootConfig{Address: "10.90.0.1:0", Timeout: railPatience})
		if err == nil {
			err = os.WriteFile(path+"~", []byte(root.ID().String()), 0o600)
		}
		if err != nil {
			return bootstrap.ID{}, err
		}
		return root.ID(), os.Rename(path+"~", path)
	}
	for start := time.Now(); time.Since(start) < railPatience; time.Sleep(5 * time.Millisecond) {
		if b, err := os.ReadFile(path); err == nil {
			return bootstrap.ParseID(string(b))
		}
	}
	return bootstrap.ID{}, errors.New("rank 0 did not say where to meet")
}

// sent is how many bytes each interface of our namespace has sent.
func sent() map[string]int64 {
	all := map[string]int64{}
	b, _ := os.ReadFile("/proc/self/net/dev")
	for line := range strings.Lines(string(b)) {
		name, rest, ok := strings.Cut(line, ":")
		if fields := strings.Fields(rest); ok && len(fields) > 8 {
			var n int64
			fmt.Sscan(fields[8], &n)
			all[strings.TrimSpace(name)] = n
		}
	}
	return all
}

// TestUC53_RailsCarryTheirShare: between hosts with two networks in common connections go over both, or over those that a filter names.
func TestUC53_RailsCarryTheirShare(t *testing.T) {
	needVeth(t)
	for _, filter := range []string{"", "=eth0", "=eth0,eth1"} {
		t.Run("filter "+filter, func(t *testing.T) {
			env := []string{"GCCL_TRANSPORT=tcp", meetVar + "=" + filepath.Join(t.TempDir(), "id")}
			if filter != "" {
				env = append(env, "GCCL_SOCKET_IFNAME="+filter)
			}
			res := cluster.Run(t, cluster.Launch{Job: "railed", Ranks: 2, Env: env,
				Namespaces: func(int) uintptr { return unix.CLONE_NEWNET },
				Started: func(ps []*os.Process) {
					for i := range 2 {
						link := fmt.Sprintf("link add name eth%d netns %d type veth peer name eth%d netns %d", i, ps[0].Pid, i, ps[1].Pid)
						if out, err := exec.Command("ip", strings.Fields(link)...).CombinedOutput(); err != nil {
							t.Errorf("ip %s: %v %s", link, err, out)
						}
					}
				}})
			for rank := range 2 {
				first, ok := res.Fact("sum", rank, "eth0")
				require.True(t, ok)
				second, _ := res.Fact("sum", rank, "eth1")
				t.Logf("rank %d sent %d bytes on eth0 and %d on eth1", rank, first, second)
				require.Greater(t, first+second, int64(16<<20), "a rank sends half of each of two blocks")
				if filter == "=eth0" {
					require.Less(t, second, int64(10_000))
					continue
				}
				require.Greater(t, min(first, second), (first+second)/8)
			}
		})
	}
}

// needVeth skips a test that cannot make networks.
func needVeth(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		cluster.Lacking(t, "namespaces", "network namespaces and veth need root")
	}
	name := fmt.Sprintf("gp%d", os.Getpid())
	if out, err := exec.Command("ip", "link", "add", "name", name, "type", "veth").CombinedOutput(); err != nil {
		cluster.Lacking(t, "namespaces", "no veth devices here: %v %s", err, out)
	}
	exec.Command("ip", "link", "del", name).Run()
}
