//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestUC33_OtherHostName(t *testing.T) {
	dir := segmentDir(t)
	e := openIn(t, dir)
	c := start(t, "echo", unix.CLONE_NEWUTS, dirEnv+"="+dir, hostEnv+"=another-container")
	address, answer := c.meet(t, e)
	require.Equal(t, "yes", answer)
	conn := talk(t, e, address, 100)
	require.Contains(t, conn.Peer(), "another-container")
}

func TestUC33_OwnDevShm(t *testing.T) {
	dir := segmentDir(t)
	e := openIn(t, dir)
	c := start(t, "echo", unix.CLONE_NEWNS, dirEnv+"="+dir, mountEnv+"=size=16m")
	address, answer := c.meet(t, e)
	require.Contains(t, answer, "no shared "+dir+" (nonce not found)")
	require.ErrorContains(t, e.Reach(t.Context(), address), "no shared "+dir+" (nonce not found)")
	_, err := e.Conn(transport.Key{Comm: 1, Self: 0, Peer: 1}, address)
	require.ErrorContains(t, err, "nonce not found")
}

// TestUC35_OtherPidNamespace: containers that share /dev/shm use it, whatever
// their pids; those that do not get a reason.
func TestUC35_OtherPidNamespace(t *testing.T) {
	dir := segmentDir(t)
	e := openIn(t, dir)
	c := start(t, "echo", unix.CLONE_NEWPID, dirEnv+"="+dir)
	address, answer := c.meet(t, e)
	require.Equal(t, "yes", answer)
	conn := talk(t, e, address, 100)
	require.NotEqual(t, -1, e.peers[string(address)].pidfd)
	c.kill()
	var err error
	for i := uint64(0); err == nil; i++ {
		err = say(e, conn, i)
	}
	require.ErrorIs(t, err, transport.ErrGone)

	c = start(t, "echo", unix.CLONE_NEWPID|unix.CLONE_NEWNS, dirEnv+"="+dir, mountEnv+"=size=16m")
	_, answer = c.meet(t, e)
	require.Contains(t, answer, "no shared "+dir+" (nonce not found)")
}

// TestOldKernel: where there are no pidfds, the lock on a segment tells that its owner is dead.
func TestOldKernel(t *testing.T) {
	dir := segmentDir(t)
	for _, namespaces := range []uintptr{0, unix.CLONE_NEWPID} {
		t.Run(fmt.Sprintf("%#x", namespaces), func(t *testing.T) {
			e := openIn(t, dir)
			c := start(t, "echo", namespaces, dirEnv+"="+dir, oldEnv+"=1")
			address, answer := c.meet(t, e)
			require.Equal(t, "yes", answer)
			conn := talk(t, e, address, 100)
			require.Equal(t, -1, e.peers[string(address)].pidfd)
			require.NotEqual(t, -1, e.peers[string(address)].fd)
			time.Sleep(2 * liveness)
			require.NoError(t, say(e, conn, 1))
			c.kill()
			var err error
			for i := uint64(0); err == nil; i++ {
				err = say(e, conn, i)
			}
			require.ErrorIs(t, err, transport.ErrGone)
		})
	}
}

// TestReachStopped: a peer that is stopped is waited for as long as the context says, and others are reached meanwhile.
func TestReachStopped(t *testing.T) {
	dir := segmentDir(t)
	e := openIn(t, dir)
	c := start(t, "echo", 0, dirEnv+"="+dir)
	address, answer := c.meet(t, e)
	require.Equal(t, "yes", answer)
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool { // all its threads
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", c.cmd.Process.Pid))
		return err == nil && !slices.ContainsFunc(tasks, func(path string) bool {
			stat, err := os.ReadFile(path)
			return err != nil || !bytes.Contains(stat, []byte(") T "))
		})
	}, patience, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	other := make(chan error)
	go func() { other <- e.Reach(ctx, address) }()
	require.NoError(t, e.Reach(ctx, openIn(t, dir).Address()))
	err := <-other
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorContains(t, err, fmt.Sprintf("ask process %d for its memory at %s", c.cmd.Process.Pid, dir))
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGCONT))
	require.NoError(t, e.Reach(t.Context(), address))
}

// TestUC33_OtherNonce: a host with the same boot id, or a file that took the
// name of the peer's segment, is found out by the nonce.
func TestUC33_OtherNonce(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	forged := *b.address
	forged.nonce[3]++
	encoded, err := forged.marshal()
	require.NoError(t, err)
	require.ErrorContains(t, a.Reach(t.Context(), encoded), "no shared "+dir+" (nonce not found)")
	require.NoError(t, a.Reach(t.Context(), b.Address()))
}

func TestUC33_OtherBoot(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	other := *b.address
	other.identity.BootID = "00000000-0000-0000-0000-000000000000"
	encoded, err := other.marshal()
	require.NoError(t, err)
	require.ErrorContains(t, a.Reach(t.Context(), encoded), "other host (boot id 00000000-0000-0000-0000-000000000000")
}

func TestUC33_HostID(t *testing.T) {
	dir := segmentDir(t)
	open := func(id string) *Endpoint {
		e, err := Open(Config{Dir: dir, HostID: id}, testOptions())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		return e
	}
	a, b, c := open("x"), open("x"), open("y")
	require.NoError(t, a.Reach(t.Context(), b.Address()))
	require.ErrorContains(t, a.Reach(t.Context(), c.Address()), `other host (host id "x" here, "y" there)`)
}

// TestReachOtherMountPoint: one file system under two paths.
func TestReachOtherMountPoint(t *testing.T) {
	dir := segmentDir(t)
	other := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, other))
	a, b := openIn(t, dir), openIn(t, other)
	absent := *a.address
	absent.path = "/nowhere/" + filepath.Base(a.address.path)
	encoded, err := absent.marshal()
	require.NoError(t, err)
	require.NoError(t, b.Reach(t.Context(), encoded))
	require.NoError(t, a.Reach(t.Context(), b.Address()))
}

func TestReachRefused(t *testing.T) {
	dir := segmentDir(t)
	a := openIn(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, a.Reach(ctx, a.Address()), context.Canceled)
	require.Error(t, a.Reach(t.Context(), nil))
	require.Error(t, a.Reach(t.Context(), make([]byte, 2000)))
	for _, c := range []struct {
		change func(*transport.Options)
		field  string
	}{
		{func(o *transport.Options) { o.Streams = 3 }, "Options.Streams is 2 here and 3 at the peer"},
		{func(o *transport.Options) { o.MaxMessage = 64 }, "Options.MaxMessage is 4194304 here and 64"},
		{func(o *transport.Options) { o.Checksum = true }, "Options.Checksum is 0 here and 1"},
		{func(o *transport.Options) { o.FirstSeq = 9 }, "Options.FirstSeq is 0 here and 9"},
	} {
		o := testOptions()
		c.change(&o)
		b, err := Open(Config{Dir: dir}, o)
		require.NoError(t, err)
		err = a.Reach(t.Context(), b.Address())
		require.ErrorIs(t, err, transport.ErrMismatch)
		require.ErrorContains(t, err, c.field)
		require.NoError(t, b.Close())
	}
}

// TestReachOtherUser: a file that we may not open is a reason, not a crash.
func TestReachOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir := segmentDir(t)
	require.NoError(t, os.Chmod(dir, 0o777))
	e := openIn(t, dir)
	c := start(t, "echo", 0, dirEnv+"="+dir, userEnv+"=12345")
	_, answer := c.meet(t, e)
	require.Contains(t, answer, "permission denied: connect to "+e.Path()+" as user 12345")
	require.FileExists(t, e.Path())
}

// TestPrivate: whatever the umask is, others may not connect.
func TestPrivate(t *testing.T) {
	old := unix.Umask(0)
	e := openIn(t, segmentDir(t))
	unix.Umask(old)
	info, err := os.Stat(e.Path())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// TestReachAsksAgain: a peer that cannot hand its memory over at once, having too few descriptors, is asked again.
func TestReachAsksAgain(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	busy := *b.address
	busy.path = filepath.Join(dir, name{uid: 1, pidns: 2, pid: 3, start: 4, random: 5}.String())
	encoded, err := busy.marshal()
	require.NoError(t, err)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: busy.path, Net: "unixpacket"})
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for i := range 4 {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			if i == 3 {
				_, _, _ = c.WriteMsgUnix([]byte{1}, unix.UnixRights(b.door.memory), nil)
			}
			c.Close()
		}
	}()
	require.NoError(t, a.Reach(t.Context(), encoded))
}

// TestReachDead: the peer died before we reached it, in either kind of namespace.
func TestReachDead(t *testing.T) {
	dir := segmentDir(t)
	e := openIn(t, dir)
	for _, namespaces := range []uintptr{0, unix.CLONE_NEWPID} {
		t.Run(fmt.Sprintf("%#x", namespaces), func(t *testing.T) {
			c := start(t, "echo", namespaces, dirEnv+"="+dir)
			address, _ := c.meet(t, e)
			c.kill()
			err := e.Reach(t.Context(), address)
			require.ErrorIs(t, err, transport.ErrGone)
			require.ErrorContains(t, err, "is dead")
		})
	}
}

// TestReachClosed: the peer had closed its endpoint before we reached it.
func TestReachClosed(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	require.NoError(t, b.Close())
	err := a.Reach(t.Context(), b.Address())
	require.ErrorContains(t, err, fmt.Sprintf("process %d is not at %s any more", os.Getpid(), b.Path()))
	require.ErrorContains(t, err, "has closed its endpoint")
}

// TestPeerKilled: SIGKILL in the middle of traffic is ErrGone, naming the pid and
// the rank, for those who wait to receive, to send, and for lent memory.
func TestPeerKilled(t *testing.T) {
	dir := segmentDir(t)
	e := openIn(t, dir)
	c := start(t, "echo", 0, dirEnv+"="+dir)
	address, answer := c.meet(t, e)
	require.Equal(t, "yes", answer)
	conn := talk(t, e, address, 100)
	p, err := e.Alloc(1 << 20)
	require.NoError(t, err)
	ok, err := conn.Stream(1).Send(1, transport.Buf{Ptr: p, N: 1 << 20, Shared: true})
	require.True(t, ok)
	require.NoError(t, err)
	n, err := conn.Stream(1).Sent()
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGKILL))
	for i := uint64(0); err == nil; i++ {
		err = say(e, conn, i)
	}
	require.ErrorIs(t, err, transport.ErrGone)
	require.ErrorContains(t, err, "rank 1")
	require.ErrorContains(t, err, fmt.Sprint(c.cmd.Process.Pid))
	_, err = conn.Stream(1).Sent()
	require.ErrorIs(t, err, transport.ErrGone)
	_, err = conn.Stream(1).Send(1, transport.Buf{Ptr: p, N: 8})
	require.ErrorIs(t, err, transport.ErrGone)
	require.NoError(t, conn.Close())
	require.Zero(t, e.Stats().Conns)
}
