//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ThisHost reads the identity of the host, with the device of the directory dir where ranks meet ("" for /dev/shm). What cannot be read is empty.
func ThisHost(dir string) Identity {
	if dir == "" {
		dir = defaultDir
	}
	var id Identity
	if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		id.BootID = strings.TrimSpace(string(b))
	}
	id.HostName, _ = os.Hostname()
	var st unix.Stat_t
	if unix.Stat(dir, &st) == nil {
		id.ShmDevice = fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	}
	return id
}

// startTime returns when the process was started, in clock ticks since boot. The
// error is fs.ErrNotExist when there is no such process.
func startTime(pid uint64) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrNotExist
	}
	if err != nil {
		return 0, err
	}
	return parseStart(b)
}

// The second field is the command in parentheses and may hold anything.
func parseStart(stat []byte) (uint64, error) {
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 20 {
		return 0, fmt.Errorf("%d fields behind the command in a process's stat, want 20 at least", len(f))
	}
	if len(f[0]) == 1 && (f[0][0] == 'Z' || f[0][0] == 'X') {
		return 0, os.ErrNotExist // dead, only not waited for
	}
	start, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("when a process began, in its stat: %w", err)
	}
	return start, nil
}

func pidNamespace() uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) != nil {
		return 0
	}
	return st.Ino
}

// locked reports whether another open file of the segment holds its owner's lock.
func locked(fd int) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Len: 1}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &l); err != nil {
		return false, err
	}
	return l.Type != unix.F_UNLCK, nil
}

// removeStale removes the sockets in dir that dead processes of our user left.
// It leaves alone what it is not sure of, and what it may not remove.
func removeStale(dir string, self name) {
	if self.start == 0 || self.pidns == 0 {
		return // no /proc: nobody can be told dead
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		n, err := parseName(e.Name())
		if err != nil || n.uid != self.uid {
			continue
		}
		path := filepath.Join(dir, e.Name())
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK || uint64(st.Uid) != self.uid {
			continue
		}
		if stale(path, n, self, time.Since(time.Unix(st.Ctim.Unix()))) {
			_ = unix.Unlink(path)
		}
	}
}

func stale(path string, n, self name, age time.Duration) bool {
	if n.pidns == self.pidns {
		start, err := startTime(n.pid)
		return errors.Is(err, os.ErrNotExist) || err == nil && start != n.start
	}
	// Another pid namespace, perhaps one that is no more: the pid says nothing.
	// A new socket has a name just before somebody listens at it.
	if age < settled {
		return false
	}
	c, err := connect(context.Background(), path)
	if err == nil {
		c.Close()
	}
	return err == unix.ECONNREFUSED
}

// settled is the age from which on a socket where nobody listens is a dead process's.
const settled = time.Second
