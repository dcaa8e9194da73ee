//go:build linux && (amd64 || arm64)

package shm

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestUC31_KilledRuns(t *testing.T) {
	dir := segmentDir(t)
	for range 20 {
		a := start(t, "echo", 0, dirEnv+"="+dir)
		b := start(t, "echo", 0, dirEnv+"="+dir)
		a.line(t) // an address: the socket is there
		b.line(t)
		a.kill()
		b.kill()
		require.LessOrEqual(t, len(segments(t, dir)), 2, "one run's worth")
		require.NotEmpty(t, segments(t, dir), "nothing to remove: the test is void")
	}
	e := openIn(t, dir)
	require.Equal(t, []string{filepath.Base(e.Path())}, segments(t, dir))
}

func TestUC31_LeftAlone(t *testing.T) {
	dir := segmentDir(t)
	self := name{uid: uint64(os.Getuid()), pidns: pidNamespace(), pid: uint64(os.Getpid())}
	var err error
	self.start, err = startTime(self.pid)
	require.NoError(t, err)
	dead := self
	dead.pid = 1 << 29 // above any pid_max
	reused := self
	reused.start++
	foreign := dead
	foreign.uid += 12345
	other := dead
	other.pidns++ // perhaps it only begins to listen
	write := func(n name) string {
		path := filepath.Join(dir, n.String())
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
		require.NoError(t, err)
		l.SetUnlinkOnClose(false)
		require.NoError(t, l.Close())
		return path
	}
	for _, n := range []name{dead, reused} {
		path := write(n)
		openIn(t, dir)
		require.NoFileExists(t, path)
	}
	dead.random = 1 // no socket
	kept := []string{write(self), write(foreign), write(other), filepath.Join(dir, "gccl-notes.txt"), filepath.Join(dir, dead.String())}
	for _, path := range kept[3:] {
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	if os.Getuid() == 0 {
		dead.random = 2 // named as ours, but another user's file
		path := write(dead)
		require.NoError(t, os.Chown(path, 12345, 12345))
		kept = append(kept, path)
	}
	openIn(t, dir)
	for _, path := range kept {
		require.FileExists(t, path)
	}
}

// TestUC31_OtherPidNamespace: a container's socket stays as long as it runs, and
// goes when it is dead although its pid says nothing here.
func TestUC31_OtherPidNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an ordinary user's pid namespace comes with a user namespace, in which the socket is named for user 0: another's, which is left alone")
	}
	dir := segmentDir(t)
	c := start(t, "echo", unix.CLONE_NEWPID, dirEnv+"="+dir)
	c.line(t)
	require.Len(t, segments(t, dir), 1)
	time.Sleep(settled)
	openIn(t, dir)
	require.Len(t, segments(t, dir), 2)
	c.kill()
	openIn(t, dir)
	require.Len(t, segments(t, dir), 2, "ours and ours")
}

func TestUC31_Unlink(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	require.NoError(t, a.Reach(t.Context(), b.Address()))
	require.NoError(t, b.Reach(t.Context(), a.Address()))
	require.NoError(t, a.Unlink())
	require.NoError(t, a.Unlink())
	require.NoError(t, b.Unlink())
	require.Empty(t, segments(t, dir))
	pass(t, a, b, 8)
	pass(t, a, b, 1<<20)
	require.ErrorContains(t, openIn(t, dir).Reach(t.Context(), a.Address()), "nonce not found")
}

func TestParseStart(t *testing.T) {
	stat := "4711 (a) (b c) S 1 4711 4711 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1"
	n, err := parseStart([]byte(stat))
	require.NoError(t, err)
	require.EqualValues(t, 98765, n)
	_, err = parseStart([]byte("4711 (x) Z 1 4711 4711 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1"))
	require.ErrorIs(t, err, os.ErrNotExist)
	for _, s := range []string{"", "1", "1 (x", "1 (x) S 1 2"} {
		_, err := parseStart([]byte(s))
		require.Error(t, err, "%q", s)
	}
}
