package comm_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport/mem"
)

// TestUC21_LargeWorlds: communicators of many ranks on many hosts, all in this process, are there in seconds, and right.
func TestUC21_LargeWorlds(t *testing.T) {
	n := 64
	if os.Getenv("GCCL_TEST_FULL") != "" {
		n = 512
	}
	for _, kind := range []string{"mem", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			var network mem.Network
			begin := time.Now()
			comms := world(t, n, func(r int, c *comm.Config) {
				c.Transport, c.HostID, c.InitTimeout = kind, fmt.Sprint(r/8), 5*time.Minute
				c.Logger = slog.New(slog.DiscardHandler) // who dials at once drops attempts
				if kind == "mem" {
					c.Memory = &network
				}
			})
			t.Logf("%d ranks over %s: New %v", n, kind, time.Since(begin))
			require.Less(t, time.Since(begin), 4*time.Minute)
			if n > 64 { // that all choose an algorithm at once, each playing all ranks' parts, is no rank's lot but of a process that is all of them
				return
			}
			begin = time.Now()
			each(n, func(r int) {
				x := []int64{1}
				if err := comm.AllReduce(context.Background(), comms[r], x, x, kernels.Sum); err != nil || x[0] != int64(n) {
					t.Errorf("rank %d: %v %v", r, x, err)
				}
			})
			t.Logf("%d ranks over %s: first call %v", n, kind, time.Since(begin))
		})
	}
}
