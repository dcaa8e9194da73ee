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

// TestUC21_LargeWorlds: communicators of many ranks, all in this process, are there in seconds, and their first call is right: on many
// hosts, and over shared memory on one, where each of so many ranks maps the memory of each.
func TestUC21_LargeWorlds(t *testing.T) {
	full := os.Getenv("GCCL_TEST_FULL") != ""
	for _, kind := range []string{"mem", "tcp", "auto", "shm"} {
		t.Run(kind, func(t *testing.T) {
			n := 64
			if full && kind != "shm" || kind == "mem" && !testing.Short() {
				n = 512
			}
			var network mem.Network
			begin := time.Now()
			comms := world(t, n, func(r int, c *comm.Config) {
				c.Transport, c.InitTimeout = kind, 5*time.Minute
				c.Logger = slog.New(slog.DiscardHandler) // who dials at once drops attempts
				switch kind {
				case "mem":
					c.Memory = &network
				case "tcp", "auto":
					c.HostID = fmt.Sprint(r / 8)
				}
			})
			t.Logf("%d ranks over %s: New %v", n, kind, time.Since(begin))
			require.Less(t, time.Since(begin), 4*time.Minute)
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
