package cluster

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Lacking ends a test that needs what this machine lacks: it skips it with the reason, or fails it where GCCL_REQUIRE, a list by
// commas, says that the machine has to have that. In use is "namespaces": of mounts, processes and networks, and root to make them.
func Lacking(t testing.TB, what, format string, args ...any) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("GCCL_REQUIRE"), ","), what) {
		t.Fatalf("GCCL_REQUIRE has "+what+": "+format, args...)
	}
	t.Skipf(format, args...)
}
