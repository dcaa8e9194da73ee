//go:build linux

package cluster

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// isolatedVar is set in a process that Isolated started.
const isolatedVar = "GCCL_CLUSTER_ISOLATED"

// unshare puts a process into new namespaces, as root of a user namespace of its own.
func unshare(a *syscall.SysProcAttr, flags uintptr) {
	if flags == 0 {
		return
	}
	a.Cloneflags |= flags | syscall.CLONE_NEWUSER
	a.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
}

// Isolated runs the calling test once more, alone, in a process with a mount namespace of its own, where it may mount what it
// likes. There it reports true; here it reports false when that process has ended, having failed or skipped t as it did:
//
//	if !cluster.Isolated(t) {
//		return
//	}
//
// Where user namespaces are refused the test is skipped. It must be a top-level test.
func Isolated(t *testing.T) bool {
	t.Helper()
	if os.Getenv(isolatedVar) == t.Name() {
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			t.Fatalf("make mounts private: %v", err)
		}
		return true
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run", "^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), isolatedVar+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	unshare(cmd.SysProcAttr, syscall.CLONE_NEWNS)
	runtime.LockOSThread() // the kernel ends it with the thread that started it
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	switch {
	case err == nil && bytes.Contains(out, []byte("--- SKIP: "+t.Name())):
		t.Skipf("in a mount namespace:\n%s", out)
	case err == nil && bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Logf("in a mount namespace:\n%s", out)
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOSPC):
		Lacking(t, "namespaces", "no namespaces of our own here: %v", err)
	case errors.As(err, &ended) || err == nil:
		t.Errorf("in a mount namespace, %v:\n%s", err, out)
	default:
		t.Fatal(err)
	}
	return false
}
