//go:build linux && (amd64 || arm64)

package shm

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// patience bounds every wait of these tests.
const patience = 60 * time.Second

const (
	roleEnv  = "GCCL_SHM_TEST_ROLE" // echo, writer, small, tight, limits
	dirEnv   = "GCCL_SHM_TEST_DIR"
	mountEnv = "GCCL_SHM_TEST_MOUNT" // options of a tmpfs over the directory
	hostEnv  = "GCCL_SHM_TEST_HOST"  // host name to take
	userEnv  = "GCCL_SHM_TEST_USER"  // user id to become
	oldEnv   = "GCCL_SHM_TEST_OLD"   // have no pidfds, as kernels before 5.3
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	err := prepare()
	if err == nil {
		err = map[string]func() error{"echo": echo, "writer": echo, "small": small, "tight": tight, "limits": limits}[role]()
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// prepare changes the namespaces that the child was started in.
func prepare() error {
	if name := os.Getenv(hostEnv); name != "" {
		if err := unix.Sethostname([]byte(name)); err != nil {
			return err
		}
	}
	if options := os.Getenv(mountEnv); options != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := unix.Mount("tmpfs", os.Getenv(dirEnv), "tmpfs", 0, options); err != nil {
			return fmt.Errorf("mount tmpfs: %w", err)
		}
	}
	if os.Getenv(oldEnv) != "" {
		return refusePidfds()
	}
	if user := os.Getenv(userEnv); user != "" {
		id, err := strconv.Atoi(user)
		if err == nil {
			err = errors.Join(syscall.Setgid(id), syscall.Setuid(id))
		}
		return err
	}
	return nil
}

// refusePidfds makes the kernel say that it knows no pidfd_open, to all threads.
func refusePidfds() error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PIDFD_OPEN, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	const setFilter, allThreads = 1, 1
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, setFilter, allThreads, uintptr(unsafe.Pointer(&filter))); errno != 0 {
		return fmt.Errorf("set a filter of system calls: %w", errno)
	}
	return nil
}

func testOptions() transport.Options { return transport.Options{Streams: 2, MaxMessage: 4 << 20} }

// echo is a rank that sends back every 8-byte message. It says its address, then
// takes the peer's, says whether it reaches it, and ends with the reason.
func echo() error {
	e, err := Open(Config{Dir: os.Getenv(dirEnv)}, testOptions())
	if err != nil {
		return err
	}
	defer e.Close()
	fmt.Println(hex.EncodeToString(e.Address()))
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	peer, err := hex.DecodeString(in.Text())
	if err != nil || len(peer) == 0 {
		return fmt.Errorf("peer's address %q: %v", in.Text(), err)
	}
	if err := e.Reach(context.Background(), peer); err != nil {
		fmt.Println("no:", err)
		return nil
	}
	fmt.Println("yes")
	c, err := e.Conn(transport.Key{Comm: 1, Self: 1, Peer: 0}, peer)
	if err != nil {
		return err
	}
	var word uint64
	b := transport.Buf{Ptr: unsafe.Pointer(&word), N: 8}
	for err == nil {
		if err = poll(e, func() (bool, error) { return c.Stream(0).Recv(1, b) }); err == nil {
			err = poll(e, func() (bool, error) { return c.Stream(0).Send(1, b) })
		}
		if os.Getenv(roleEnv) == "writer" && err == nil {
			write(c.Stream(0).(transport.Lander))
		}
	}
	fmt.Println("end:", err)
	return nil
}

// write fills the place that the peer has for the next message again and again, if there is one, and never sends it.
func write(s transport.Lander) {
	to := s.Landing(fieldBytes)
	if to == nil {
		return
	}
	block := make([]byte, fieldBytes)
	for round := 1; ; round++ {
		for i := range block {
			block[i] = byte(round)
		}
		s.Fill(to, unsafe.Pointer(&block[0]), len(block))
		if round%100 == 0 {
			fmt.Println("written")
		}
	}
}

// poll repeats f until it is done or fails.
func poll(e *Endpoint, f func() (bool, error)) error {
	for start := time.Now(); ; {
		for range 100 {
			if ok, err := f(); ok || err != nil {
				return err
			}
		}
		e.Progress()
		unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		if time.Since(start) > patience {
			return fmt.Errorf("nothing came for %v", patience)
		}
	}
}

// child is a process of this test binary.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// start runs the test binary in a role and in new namespaces. It skips the test
// where those are not allowed.
func start(t testing.TB, role string, namespaces uintptr, env ...string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), roleEnv+"="+role), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: namespaces}
	if namespaces != 0 && os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	if err := cmd.Start(); err != nil {
		if namespaces != 0 {
			t.Skipf("namespaces %#x are not allowed here: %v", namespaces, err)
		}
		require.NoError(t, err)
	}
	c := &child{cmd: cmd, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func (c *child) line(t testing.TB) string {
	t.Helper()
	timer := time.AfterFunc(patience, func() { _ = c.cmd.Process.Kill() })
	defer timer.Stop()
	require.True(t, c.out.Scan(), "the child process ended")
	require.NotContains(t, c.out.Text(), "failed:")
	return c.out.Text()
}

// meet exchanges addresses with an echo child, and returns the child's and what
// it says about reaching us.
func (c *child) meet(t testing.TB, e *Endpoint) (address []byte, answer string) {
	t.Helper()
	address, err := hex.DecodeString(c.line(t))
	require.NoError(t, err)
	_, err = fmt.Fprintln(c.in, hex.EncodeToString(e.Address()))
	require.NoError(t, err)
	return address, c.line(t)
}

// talk exchanges n words with an echo child.
func talk(t testing.TB, e *Endpoint, address []byte, n int) transport.Conn {
	t.Helper()
	require.NoError(t, e.Reach(t.Context(), address))
	c, err := e.Conn(transport.Key{Comm: 1, Self: 0, Peer: 1}, address)
	require.NoError(t, err)
	for i := range uint64(n) {
		require.NoError(t, say(e, c, i))
	}
	return c
}

// say sends a word and waits for it to come back.
func say(e *Endpoint, c transport.Conn, word uint64) error {
	var back uint64
	err := poll(e, func() (bool, error) {
		return c.Stream(0).Send(1, transport.Buf{Ptr: unsafe.Pointer(&word), N: 8})
	})
	if err == nil {
		err = poll(e, func() (bool, error) {
			return c.Stream(0).Recv(1, transport.Buf{Ptr: unsafe.Pointer(&back), N: 8})
		})
	}
	if err == nil && back != word {
		err = fmt.Errorf("%x came back for %x", back, word)
	}
	return err
}

// segmentDir makes a directory on the file system of /dev/shm.
func segmentDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(defaultDir, "gccl-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func openIn(t testing.TB, dir string) *Endpoint {
	t.Helper()
	e, err := Open(Config{Dir: dir}, testOptions())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// segments lists the sockets of segments in dir.
func segments(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), namePrefix) {
			names = append(names, e.Name())
		}
	}
	return names
}
