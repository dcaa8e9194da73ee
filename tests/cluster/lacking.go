package cluster

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Required reports whether GCCL_REQUIRE, a list by commas, says that the machine has to have that.
func Required(what string) bool {
	return slices.Contains(strings.Split(os.Getenv("GCCL_REQUIRE"), ","), what)
}

// Lacking ends a test that needs what this machine lacks: it skips it with the reason, or fails it where that is
// Required. In use are "verbs", "cuda", "rdma-vm", "numa" (two nodes) and "namespaces": of mounts, processes and networks, and root to make them.
func Lacking(t testing.TB, what, format string, args ...any) {
	t.Helper()
	if Required(what) {
		t.Fatalf("GCCL_REQUIRE has "+what+": "+format, args...)
	}
	t.Skipf(format, args...)
}
