//go:build linux

// Package faults breaks jobs of real processes over shared memory and TCP, and over RDMA devices where those are asked for: it kills
// ranks, stops them and lets them go on, cuts them off without a reset, has them make different calls, and lets strangers at their ports.
// What it asserts: nothing hangs, no result is wrong, all who are left name the culprit in bounded time, nothing is left behind, and the
// survivors go on.
//
// GCCL_TEST_FULL=1 strikes 200 times in each way instead of ten. GCCL_TEST_SEED=n begins with other moments.
package faults

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"testing"

	"github.com/gccl-project/gccl/tests/cluster"
)

func TestMain(m *testing.M) {
	cluster.Main(m, cluster.Jobs{
		"struck": struck, "differ": differ, "shape": shape,
		"again": again, "coming": coming, "leaving": leaving,
		"absentee": absentee, "early": early, "twice": twice, "reset": reset, "crossed": crossed, "splits": splits, "extra": extra,
		"recorded": recorded, "apart": apart, "linked": linked, "ranged": ranged, "fenced": fenced, "scanned": scanned, "paused": paused, "flipped": flipped, "onGPU": onGPU,
	})
}

var (
	background = context.Background()
	full       = os.Getenv("GCCL_TEST_FULL") == "1"
	quiet      = slog.New(slog.DiscardHandler) // for ranks whose warnings are expected
)

// transports are what jobs are broken over: shared memory and TCP, and where GCCL_REQUIRE asks for RDMA devices those alone.
func transports() []string {
	if cluster.Required("verbs") {
		return []string{"verbs"}
	}
	return []string{"shm", "tcp"}
}

// firstSeed is where the seeds of this run begin.
func firstSeed(t *testing.T) uint64 {
	s := os.Getenv("GCCL_TEST_SEED")
	if s == "" {
		return 1
	}
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		t.Fatalf("GCCL_TEST_SEED=%q is not a number", s)
	}
	return n
}
