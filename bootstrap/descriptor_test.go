//go:build linux

package bootstrap_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
)

// With 64 open files at most, rank 0 of 32, of which each wants 31 descriptors more for a full mesh, is told before anything starts.
// A soft limit that is too low, though the hard one is not, is raised.
func TestUC26_OpenFiles(t *testing.T) {
	child := func(limits string) string {
		cmd := exec.CommandContext(within(t, patience), "/bin/sh", "-c", limits+`; exec "$0" -test.run='^TestUC26_Child$' -test.v`, os.Args[0])
		cmd.Env = append(os.Environ(), "GCCL_TEST_CHILD=files")
		out, err := cmd.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "TestUC26_Child") {
			t.Skipf("cannot start a child with limits: %v: %s", err, out)
		}
		return string(out)
	}
	out := child("ulimit -n 64")
	require.Contains(t, out, "bootstrap Join as rank 0 of 32: nofile 64 of need about ")
	require.Contains(t, out, "ulimit -n")
	require.NotContains(t, child("ulimit -S -n 64"), "nofile", "the hard limit of this process allows more")
}

func TestUC26_Child(t *testing.T) {
	if os.Getenv("GCCL_TEST_CHILD") != "files" {
		t.Skip("a part of TestUC26_OpenFiles, which starts it in a process of its own")
	}
	// The runtime raised the soft limit at the start; what counts is that Join does, when somebody lowered it again.
	r := syscall.Rlimit{}
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r))
	r.Cur = 64
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &r))
	links, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	require.Less(t, len(links), 30)
	id, err := bootstrap.DeriveID("127.0.0.1:29599", "s")
	require.NoError(t, err)
	_, err = bootstrap.Join(context.Background(), bootstrap.Config{Rank: 0, World: 32, ID: id, Serve: true, Descriptors: 31, Timeout: 50 * time.Millisecond})
	t.Log(err)
}
