//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestUC30_SmallDevShm runs two ranks on file systems of many sizes, full ones
// among them, in a process of its own: SIGBUS would end it. Every message
// arrives right, or is an ErrSpace at both ends.
func TestUC30_SmallDevShm(t *testing.T) {
	dir := segmentDir(t)
	c := start(t, "full", unix.CLONE_NEWNS, dirEnv+"="+dir, mountEnv+"=size=4k") // the role mounts more
	refused, passed := 0, 0
	for {
		line := c.line(t)
		if line == "done" {
			break
		}
		t.Log(line)
		if strings.Contains(line, "refused") {
			refused++
		}
		if strings.Contains(line, "passed") {
			passed++
		}
	}
	require.Greater(t, refused, 20)
	require.Greater(t, passed, 20)
}

func full() error {
	dir := os.Getenv(dirEnv)
	page := int64(os.Getpagesize())
	sizes := []int64{1 << 20, 16 << 20, 64 << 20}
	for pages := int64(1); pages <= 64; pages++ {
		sizes = append(sizes, pages*page)
	}
	for _, size := range sizes {
		for _, fill := range []string{"never", "before", "open", "connected", "traffic"} {
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
				return err
			}
			f := &filler{dir: dir, when: fill}
			text, err := crowd(f)
			if err != nil {
				return fmt.Errorf("%d bytes, filled %s: %w", size, fill, err)
			}
			if left := leftIn(dir, f.name()); left != "" {
				return fmt.Errorf("%d bytes, filled %s: left behind: %s", size, fill, left)
			}
			fmt.Printf("%d bytes, filled %s: %s\n", size, fill, text)
			if err := unix.Unmount(dir, 0); err != nil {
				return err
			}
		}
	}
	if err := holeInFull(dir); err != nil {
		return err
	}
	fmt.Println("done")
	return nil
}

// filler takes all the room of a file system at a certain point of a run.
type filler struct{ dir, when string }

func (f *filler) name() string { return filepath.Join(f.dir, "filler") }

func (f *filler) at(point string) error {
	if point != f.when {
		return nil
	}
	file, err := os.Create(f.name())
	if err != nil {
		return err
	}
	defer file.Close()
	for block := 1 << 20; block >= 4096; {
		if _, err := file.Write(make([]byte, block)); err != nil {
			block /= 2
		}
	}
	return nil
}

func leftIn(dir, filler string) string {
	_ = os.Remove(filler)
	var fs unix.Statfs_t
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 || unix.Statfs(dir, &fs) != nil || fs.Bfree != fs.Blocks {
		return fmt.Sprint(entries, err, fs.Blocks-fs.Bfree, " blocks")
	}
	return ""
}

// crowd runs two ranks until the file system is full or all is done. A refusal
// must be an ErrSpace that says everything a user needs.
func crowd(f *filler) (text string, err error) {
	var refusals, messages int
	refused := func(err error) error {
		refusals++
		var s *SpaceError
		if !errors.Is(err, transport.ErrSpace) || !errors.As(err, &s) {
			return fmt.Errorf("not a SpaceError: %w", err)
		}
		for _, say := range []string{f.dir, fmt.Sprintf("need %d bytes", s.Need), fmt.Sprintf("%d free of", s.Free), "--shm-size"} {
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
	if err := f.at("before"); err != nil {
		return "", err
	}
	var e [2]*Endpoint
	for i := range e {
		ep, err := Open(Config{Dir: f.dir}, testOptions())
		if err != nil {
			return "", refused(err)
		}
		defer ep.Close()
		e[i] = ep
	}
	if err := f.at("open"); err != nil {
		return "", err
	}
	for i := range e {
		if err := e[i].Reach(context.Background(), e[1-i].Address()); err != nil {
			return "", err
		}
	}
	if err := f.at("connected"); err != nil {
		return "", err
	}
	for k, n := range []int{8, 48, 49, 4096, 5000, 64 << 10, 200_000, 1 << 20, 4 << 20, 8, 64} {
		if k == 3 {
			if err := f.at("traffic"); err != nil {
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
		if !strings.Contains(recv.Error(), "no room") || !strings.Contains(recv.Error(), a.Path()) {
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

// holeInFull points a message at a hole in a full file system, where a read would
// be SIGBUS.
func holeInFull(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		return err
	}
	var e [2]*Endpoint
	for i := range e {
		ep, err := Open(Config{Dir: dir}, testOptions())
		if err != nil {
			return err
		}
		defer ep.Close()
		e[i] = ep
	}
	if unix.Madvise(e[0].seg.bytes(0, headerBytes), unix.MADV_POPULATE_READ) == unix.EINVAL {
		fmt.Println("a hole in a full file system is not tested: the kernel is older than 5.14")
		return nil
	}
	x, err := e[0].Conn(transport.Key{Comm: 1, Self: 0, Peer: 1}, e[1].Address())
	if err != nil {
		return err
	}
	if ok, err := x.Stream(1).Send(1, bufOf(filled(100, 1))); !ok || err != nil {
		return fmt.Errorf("send: %v %w", ok, err)
	}
	if err := (&filler{dir: dir, when: "now"}).at("now"); err != nil {
		return err
	}
	*(*uint64)(unsafe.Add(unsafe.Pointer(x.Stream(1).(*stream).tx.ring.line(0)), inlineAt)) = 8 << 20
	y, err := e[1].Conn(transport.Key{Comm: 1, Self: 1, Peer: 0}, e[0].Address())
	if err != nil {
		return err
	}
	err = poll(e[1], func() (bool, error) {
		p, err := y.Stream(1).View(1, 100)
		return p != nil, err
	})
	if !errors.Is(err, transport.ErrCorrupt) {
		return fmt.Errorf("a message in a hole of a full file system: %v, want %w", err, transport.ErrCorrupt)
	}
	return nil
}
