//go:build linux && (amd64 || arm64)

package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// door is where peers on this host get our memory: a socket in Config.Dir. Whoever may open it, a process of our user that sees the directory,
// whatever namespaces it is in, is handed descriptors of the segment and of our process. The socket takes no room in the file system.
type door struct {
	path    string
	dir     *os.File // a way to the socket that is short enough for an address, however long the path is
	l       *net.UnixListener
	memory  int // another open file of the segment: its mappings do not keep the lock of the first one
	process int // pidfd of ours, -1 where the kernel has none
	served  chan struct{}

	once sync.Once
	err  error
}

// short is a path to a file in an open directory that fits a socket's address, which has 108 bytes.
func short(dir *os.File, path string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
}

// openDir opens the directory of a socket, as far as it takes to find the socket there.
func openDir(path string) (*os.File, error) {
	return os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
}

// bare is the system's word alone: what package net adds is the short path, which says nothing to people.
func bare(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}

// newDoor makes the socket, which hands out the segment from now on until close.
func newDoor(dir string, n name, segment int) (*door, error) {
	d := &door{memory: -1, process: -1, served: make(chan struct{})}
	n.random = rand.Uint64()
	d.path = filepath.Join(dir, n.String())
	var err error
	if d.dir, err = openDir(d.path); err != nil {
		return nil, fmt.Errorf("%w: ranks of a host meet there: set GCCL_SHM_DIR to a directory that all of them can write to", err)
	}
	if d.memory, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", segment), unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		d.release()
		return nil, fmt.Errorf("open /proc/self/fd/%d again: %w: is /proc mounted?", segment, err)
	}
	// Nobody else may connect: bind takes the mode of the socket.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var refused error
		err := c.Control(func(fd uintptr) { refused = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, refused)
	}}
	l, err := private.Listen(context.Background(), "unixpacket", short(d.dir, d.path))
	if err != nil {
		d.release()
		return nil, fmt.Errorf("make the socket %s, where ranks of this host meet: %w: set GCCL_SHM_DIR to a directory that all of them can write to", d.path, bare(err))
	}
	d.l = l.(*net.UnixListener)
	d.l.SetUnlinkOnClose(false)
	rights := []int{d.memory}
	if d.process, err = unix.PidfdOpen(os.Getpid(), 0); err == nil {
		rights = append(rights, d.process)
	}
	go d.serve(unix.UnixRights(rights...))
	return d, nil
}

func (d *door) serve(rights []byte) {
	defer close(d.served)
	for {
		c, err := d.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(handRetry) // no descriptor is free
			continue
		}
		// It fits the socket, so nobody waits here. Who gets nothing asks again.
		_, _, _ = c.WriteMsgUnix([]byte{1}, rights, nil)
		c.Close()
	}
}

// close removes the socket. When it returns nobody is handed anything any more.
func (d *door) close() error {
	d.once.Do(func() {
		if err := unix.Unlink(d.path); err != nil && err != unix.ENOENT {
			d.err = fmt.Errorf("remove %s: %w", d.path, err)
		}
		d.l.Close()
		<-d.served
		d.release()
	})
	return d.err
}

func (d *door) release() {
	d.dir.Close()
	h := handed{d.memory, d.process}
	h.close()
}

const (
	handPatience = 10 * time.Second // for a peer that is there and does not answer
	handRetry    = time.Millisecond
)

// handed is what a door gave us. Descriptors are -1 where there is none.
type handed struct{ memory, process int }

func (h *handed) close() {
	for _, fd := range []*int{&h.memory, &h.process} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// knock asks at the door with that path. Whether there is nobody behind it (ECONNREFUSED), and whether there is no such door (fs.ErrNotExist)
// is known at once; a peer that does not answer is waited for.
func knock(ctx context.Context, path string) (handed, error) {
	ctx, cancel := context.WithTimeout(ctx, handPatience)
	defer cancel()
	for {
		h, err := ask(ctx, path)
		// Its queue is full, it could not open one more file, or too many descriptors are on their way.
		if err == nil || !errors.Is(err, unix.EAGAIN) && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
			return h, err
		}
		select {
		case <-ctx.Done():
			return h, err
		case <-time.After(handRetry):
		}
	}
}

// connect finds out whether somebody listens.
func connect(ctx context.Context, path string) (*net.UnixConn, error) {
	dir, err := openDir(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", short(dir, path))
	if err != nil {
		return nil, bare(err)
	}
	return c.(*net.UnixConn), nil
}

// ask connects once, and takes what is handed.
func ask(ctx context.Context, path string) (handed, error) {
	got := handed{-1, -1}
	c, err := connect(ctx, path)
	if err != nil {
		return got, err
	}
	defer c.Close()
	until, _ := ctx.Deadline()
	_ = c.SetDeadline(until)
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })()
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(2*4))
	n, on, flags, _, err := c.ReadMsgUnix(b, oob)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return got, fmt.Errorf("it does not answer, perhaps since it is stopped: %w", os.ErrDeadlineExceeded)
	case err != nil:
		return got, bare(err)
	case n == 0:
		return got, io.EOF
	}
	return unpack(oob[:on], flags&unix.MSG_CTRUNC != 0)
}

// unpack takes the descriptors out of a message's control data, of which some may be missing. A peer chooses what and how many they are.
func unpack(oob []byte, missing bool) (handed, error) {
	got := handed{-1, -1}
	messages, _ := unix.ParseSocketControlMessage(oob)
	for _, m := range messages {
		fds, _ := unix.ParseUnixRights(&m)
		for i, to := range []*int{&got.memory, &got.process} {
			if i < len(fds) {
				*to = fds[i]
			}
		}
	}
	switch {
	case got.memory >= 0:
		return got, nil
	case missing:
		return got, fmt.Errorf("take what it hands over: %w: raise ulimit -n", unix.EMFILE)
	}
	return got, fmt.Errorf("it hands over no memory: %w", fs.ErrInvalid)
}
