//go:build linux

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/tests/cluster"
)

// deaf is the job of a rank whose RDMA port no packet reaches.
func deaf(r *cluster.Rank) {
	r.Case("right", func(*cluster.Case) error {
		var log bytes.Buffer // slog's handler guards it
		cfg := r.Config()
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c, err := comm.New(background, cfg)
		if err != nil {
			return err
		}
		if p := c.Paths()[0]; p.Transport != "verbs" {
			c.Close()
			return fmt.Errorf("rank %d is reached by %s (%s), want verbs", p.Rank, p.Transport, p.Reason)
		}
		err = errors.Join(right(c, sliceMemory), right(c, allocMemory), c.Close())
		if n := strings.Count(log.String(), "its traffic goes by TCP"); n == 0 {
			err = errors.Join(err, fmt.Errorf("no line says that TCP is used: %s", log.String()))
		}
		return err
	})
}

// TestDeafPortsOverRDMA: auto takes RDMA between hosts by what their topologies say; where no packet arrives, as between networks that are
// not connected, connections go by TCP after their retries, and a line says so at each end.
func TestDeafPortsOverRDMA(t *testing.T) {
	if os.Getenv("GCCL_RDMA_VM") == "" {
		cluster.Lacking(t, "rdma-vm", "it breaks the paths of the RDMA virtual machine; make test-rdma has one")
	}
	ip := func(arguments string) {
		out, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput()
		require.NoError(t, err, "ip %s: %s", arguments, out)
	}
	for i, dev := range []string{"veth0", "veth1"} {
		address, err := os.ReadFile("/sys/class/net/veth" + string(rune('1'-i)) + "/address")
		require.NoError(t, err)
		peer := "neigh replace 10.78.0." + string(rune('2'-i)) + " nud permanent dev " + dev + " lladdr "
		ip(peer + "02:00:00:00:00:99")
		defer ip(peer + strings.TrimSpace(string(address)))
	}
	res := cluster.Run(t, cluster.Launch{
		Job: "deaf", Ranks: 2, Env: []string{"GCCL_TRANSPORT=auto", "GCCL_INIT_TIMEOUT=5m", "GCCL_IB_TIMEOUT=14", "GCCL_IB_RETRY_CNT=2"},
		Only: func(rank int) []string {
			return []string{fmt.Sprint("GCCL_HOSTID=host", rank), fmt.Sprint("GCCL_RDMA_DEVICE==rxe", rank+1)}
		},
	})
	require.Equal(t, []string{"right"}, res.Cases())
}
