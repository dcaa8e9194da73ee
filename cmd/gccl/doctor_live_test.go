//go:build linux

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/doctor"
)

// lookedAt runs gccl doctor --json as a command that the words begin and checks what holds wherever it runs: a report and nothing else, an exit
// code that goes with it, and the transports that every host has.
func lookedAt(t *testing.T, cmd *exec.Cmd) *doctor.Report {
	t.Helper()
	cmd.Env = quietEnvironment()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	code := cmd.ProcessState.ExitCode()
	require.Contains(t, []int{0, 1}, code, "%v: %s", err, stderr.String())
	require.Empty(t, stderr.String())
	r := diagnosis(t, string(out))
	require.Equal(t, doctor.Count(r.Findings, doctor.Fail) > 0, code == 1, string(out))
	for _, f := range r.Findings {
		if f.Level == doctor.Fail && !inCI() {
			t.Skipf("this host is not in order, of which doctor says: %s: %s", f.ID, f.Seen)
		}
		require.NotEqual(t, doctor.Fail, f.Level, "%+v", f)
	}
	require.Equal(t, "shm, tcp", finding(t, r, "transports", "").Seen)
	return r
}

// TestDoctorWhereRanksMayNotMeet: a directory to meet in that nobody can write to is none.
func TestDoctorWhereRanksMayNotMeet(t *testing.T) {
	if err := exec.CommandContext(t.Context(), "unshare", "--mount", "mount", "-t", "tmpfs", "-o", "ro", "none", "/dev/shm").Run(); err != nil {
		require.False(t, inCI(), err)
		t.Skipf("unshare --mount: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", `mount -t tmpfs -o ro none /dev/shm && exec "$0" doctor --json`, os.Args[0])
	cmd.Env = quietEnvironment()
	out, _ := cmd.Output()
	r := diagnosis(t, string(out))
	require.NotContains(t, finding(t, r, "transports", "").Seen, "shm")
	f := finding(t, r, "shm_size", "")
	require.Equal(t, doctor.Warn, f.Level)
	require.Contains(t, f.Seen, "/dev/shm: read-only file system")
}

// inCI reports whether the host is known to be a plain one, with namespaces, that is in order.
func inCI() bool { return slices.Contains(strings.Split(os.Getenv("GCCL_REQUIRE"), ","), "namespaces") }

// plain skips where there is more than processors and a network, whose state is not ours to say.
func plain(t *testing.T) {
	t.Helper()
	for _, glob := range []string{"/sys/class/infiniband/*", "/dev/nvidia*", "/proc/driver/nvidia"} {
		if found, _ := filepath.Glob(glob); len(found) > 0 {
			t.Skipf("this host has %s", found[0])
		}
	}
}

// TestUC65_DoctorOfAPlainHost: a host without GPU and RDMA is in order, also for who is not root.
func TestUC65_DoctorOfAPlainHost(t *testing.T) {
	plain(t)
	none := func(t *testing.T, r *doctor.Report) {
		require.Equal(t, "GPU: none", finding(t, r, "gpu", "").Seen)
		require.Equal(t, "RDMA: none", finding(t, r, "rdma", "").Seen)
	}
	t.Run("as we are", func(t *testing.T) {
		none(t, lookedAt(t, exec.CommandContext(t.Context(), os.Args[0], "doctor", "--json")))
	})
	t.Run("as nobody", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("we are somebody without rights already")
		}
		self, err := os.ReadFile(os.Args[0])
		require.NoError(t, err)
		dir, err := os.MkdirTemp("/tmp", "gccl-doctor-") // where everybody may look
		require.NoError(t, err)
		defer func() { require.NoError(t, os.RemoveAll(dir)) }()
		require.NoError(t, os.Chmod(dir, 0o755))
		path := filepath.Join(dir, "gccl")
		require.NoError(t, os.WriteFile(path, self, 0o755))
		cmd := exec.CommandContext(t.Context(), path, "doctor", "--json")
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		none(t, lookedAt(t, cmd))
	})
}

// TestUC65_DoctorWithoutSys: where /sys is hidden it says that it does not know, and why.
func TestUC65_DoctorWithoutSys(t *testing.T) {
	plain(t)
	if err := exec.CommandContext(t.Context(), "unshare", "--mount", "mount", "-t", "tmpfs", "none", "/sys").Run(); err != nil {
		require.False(t, inCI(), err)
		t.Skipf("unshare --mount: %v", err)
	}
	r := lookedAt(t, exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", `mount -t tmpfs none /sys && exec "$0" doctor --json`, os.Args[0]))
	for _, id := range []string{"gpu", "rdma"} {
		f := finding(t, r, id, "")
		require.Equal(t, doctor.Unknown, f.Level, "%+v", f)
		require.NotEmpty(t, f.Seen)
	}
}

// The keys of a report are for other programs to read: they stay.
func TestUC65_KeysOfAReport(t *testing.T) {
	out := command(t, nil, "doctor", "--root", recorded(t, nil), "--json")
	var report map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(out.stdout), &report))
	var findings []map[string]any
	require.NoError(t, json.Unmarshal(report["findings"], &findings))
	require.NotEmpty(t, findings)
	for _, f := range findings {
		for _, key := range []string{"id", "level", "seen", "why"} {
			require.Contains(t, f, key)
		}
		for key := range f {
			require.Contains(t, []string{"id", "of", "level", "seen", "why", "fix"}, key)
		}
	}
}
