//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestUC30_SmallDevShm runs two ranks whose directory is on file systems of many sizes, full ones among them, in a process of its own: SIGBUS would
// end it. Every message arrives right, since what they share is not there.
func TestUC30_SmallDevShm(t *testing.T) {
	dir := segmentDir(t)
	c := start(t, "small", unix.CLONE_NEWNS, dirEnv+"="+dir, mountEnv+"=size=4k") // the role mounts more
	passed := 0
	for line := c.line(t); line != "done"; line = c.line(t) {
		t.Log(line)
		require.Contains(t, line, ": 22 passed, 0 refused")
		passed++
	}
	require.Greater(t, passed, 10)
}

func small() error {
	dir := os.Getenv(dirEnv)
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 64 << 20} {
		for _, full := range []bool{false, true} {
			for _, inodes := range []int{0, 4} { // 0: no bound; 4: the directory, two sockets, and the filler
				if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,nr_inodes=%d", size, inodes)); err != nil {
					return err
				}
				if full {
					_ = os.WriteFile(filepath.Join(dir, "filler"), make([]byte, size), 0o600)
				}
				text, err := crowd(&filler{}, Config{Dir: dir})
				if err != nil {
					return fmt.Errorf("%d bytes, full %v: %w", size, full, err)
				}
				_ = os.Remove(filepath.Join(dir, "filler"))
				var fs unix.Statfs_t
				left, err := os.ReadDir(dir)
				if err != nil || len(left) > 0 || unix.Statfs(dir, &fs) != nil || fs.Bfree != fs.Blocks {
					return fmt.Errorf("%d bytes, full %v: left behind: %v, %d blocks, %v", size, full, left, fs.Blocks-fs.Bfree, err)
				}
				fmt.Printf("%d bytes, full %v, %d inodes: %s\n", size, full, inodes, text)
				if err := unix.Unmount(dir, 0); err != nil {
					return err
				}
			}
		}
	}
	fmt.Println("done")
	return nil
}

// TestUC30_FullSegment: two ranks whose segments are filled up to a few pages at every point of a run. Every message arrives right, or is an ErrSpace at
// both ends.
func TestUC30_FullSegment(t *testing.T) {
	dir := segmentDir(t)
	refused, passed := 0, 0
	for _, pages := range []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 32, 48, 64} {
		for _, when := range []string{"open", "connected", "traffic"} {
			text, err := crowd(&filler{when: when, spare: pages}, Config{Dir: dir, SegmentSize: leastSize})
			require.NoError(t, err, "filled %s but for %d pages", when, pages)
			t.Logf("filled %s but for %d pages: %s", when, pages, text)
			var p, r int
			_, err = fmt.Sscanf(text, "%d passed, %d refused", &p, &r)
			require.NoError(t, err)
			passed, refused = passed+p, refused+r
		}
	}
	require.Greater(t, refused, 200)
	require.Greater(t, passed, 200)
}

// filler takes all the room of the segments at a certain point of a run, but for some pages.
type filler struct {
	when  string
	spare int64
}

func (f *filler) at(point string, endpoints ...*Endpoint) error {
	if point != f.when {
		return nil
	}
	for _, e := range endpoints {
		var spare []unsafe.Pointer
		for range f.spare {
			p, err := e.Alloc(e.seg.page)
			if err != nil {
				return err
			}
			spare = append(spare, p)
		}
		for n := e.seg.size / 2; n >= e.seg.page; {
			if _, err := e.Alloc(n); errors.Is(err, transport.ErrSpace) {
				n /= 2
			} else if err != nil {
				return err
			}
		}
		for _, p := range spare {
			if err := e.Free(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// crowd runs two ranks until there is no room or all is done. A refusal must be an
// ErrSpace that says everything a user needs.
func crowd(f *filler, config Config) (text string, err error) {
	var refusals, messages int
	refused := func(err error) error {
		refusals++
		var s *SpaceError
		if !errors.Is(err, transport.ErrSpace) || !errors.As(err, &s) {
			return fmt.Errorf("not a SpaceError: %w", err)
		}
		for _, say := range []string{fmt.Sprintf("need %d bytes", s.Need), fmt.Sprintf("%d free of", s.Free), "raise"} {
			if !strings.Contains(err.Error(), say) {
				return fmt.Errorf("%q is missing in: %w", say, err)
			}
		}
		if s.Need <= 0 {
			return fmt.Errorf("need %d: %w", s.Need, err)
		}
		return nil
	}
	defer func() { text = fmt.Sprintf("%d passed, %d refused", messages, refusals) }()
	var e [2]*Endpoint
	for i := range e {
		ep, err := Open(config, testOptions())
		if err != nil {
			return "", refused(err)
		}
		defer ep.Close()
		e[i] = ep
	}
	if err := f.at("open", e[:]...); err != nil {
		return "", err
	}
	for i := range e {
		if err := e[i].Reach(context.Background(), e[1-i].Address()); err != nil {
			return "", err
		}
	}
	if err := f.at("connected", e[:]...); err != nil {
		return "", err
	}
	for k, n := range []int{8, 48, 49, 4096, 5000, 64 << 10, 200_000, 1 << 20, 4 << 20, 8, 64} {
		if k == 3 {
			if err := f.at("traffic", e[:]...); err != nil {
				return "", err
			}
		}
		for from := range 2 {
			ok, err := one(e[from], e[1-from], uint64(10*k+from), n)
			if err != nil {
				return "", err
			}
			if !ok {
				refusals++
			} else {
				messages++
			}
		}
		p, err := e[0].Alloc(int64(n))
		if err != nil {
			if err := refused(err); err != nil {
				return "", err
			}
			continue
		}
		b := unsafe.Slice((*byte)(p), n)
		copy(b, filled(n, 3))
		if err := e[0].Free(p); err != nil {
			return "", err
		}
	}
	return "", nil
}

// one passes a message on a conn of its own, or says false when there was no room
// and both ends were told.
func one(a, b *Endpoint, comm uint64, n int) (bool, error) {
	x, err := a.Conn(transport.Key{Comm: comm, Self: 0, Peer: 1}, b.Address())
	if errors.Is(err, transport.ErrSpace) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer x.Close()
	y, err := b.Conn(transport.Key{Comm: comm, Self: 1, Peer: 0}, a.Address())
	if errors.Is(err, transport.ErrSpace) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer y.Close()
	out, in := filled(n, byte(comm)), make([]byte, n)
	err = poll(a, func() (bool, error) { return x.Stream(0).Send(1, bufOf(out)) })
	recv := poll(b, func() (bool, error) { return y.Stream(0).Recv(1, bufOf(in)) })
	switch {
	case errors.Is(err, transport.ErrSpace) && errors.Is(recv, transport.ErrSpace):
		if !strings.Contains(recv.Error(), "no room") || !strings.Contains(recv.Error(), "process ") {
			return false, fmt.Errorf("the receiver is told: %w", recv)
		}
		return false, nil
	case err != nil || recv != nil:
		return false, fmt.Errorf("%d bytes: sender %v, receiver %v", n, err, recv)
	case !bytes.Equal(out, in):
		return false, fmt.Errorf("%d bytes: wrong data", n)
	}
	return true, nil
}

// TestUC30_ShortOfMemory: where a container's limit leaves no memory, an Alloc is an ErrSpace that says so and holds nothing, and messages pass. A limit whose
// excess kills, as is usual, kills by the kernel's choice, and is no matter of ours.
func TestUC30_ShortOfMemory(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector needs memory for every access, and waits for ever where there is none")
	}
	group := filepath.Join("/sys/fs/cgroup/memory", fmt.Sprintf("gccl-test-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("no limit of memory can be set here that refuses and does not kill, as cgroups of version 1 have: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, os.Remove(group)) })
	c := start(t, "tight", 0, dirEnv+"="+segmentDir(t))
	for file, text := range map[string]string{"memory.limit_in_bytes": "96M", "memory.oom_control": "1", "cgroup.procs": fmt.Sprint(c.cmd.Process.Pid)} {
		require.NoError(t, os.WriteFile(filepath.Join(group, file), []byte(text), 0o644))
	}
	_, err := fmt.Fprintln(c.in, "go")
	require.NoError(t, err)
	t.Log(c.line(t))
	require.Equal(t, "22 passed, 0 refused", c.line(t))
	c.kill()
}

func tight() error {
	var word string
	if _, err := fmt.Scan(&word); err != nil {
		return err
	}
	config := Config{Dir: os.Getenv(dirEnv)}
	e, err := Open(config, testOptions())
	if err != nil {
		return err
	}
	held := e.Stats()
	for _, n := range []int64{200 << 20, 150<<20 + 4096} {
		_, err = e.Alloc(n)
		var s *SpaceError
		if !errors.As(err, &s) || s.Need != n || s.Free <= 0 || s.Of < s.Free || !strings.Contains(err.Error(), "--memory") {
			return fmt.Errorf("Alloc of %d bytes: %w", n, err)
		}
		if e.Stats() != held {
			return fmt.Errorf("after a refused Alloc: %+v, before %+v", e.Stats(), held)
		}
	}
	fmt.Println(err)
	if err := e.Close(); err != nil {
		return err
	}
	text, err := crowd(&filler{}, config)
	fmt.Println(text)
	return err
}
