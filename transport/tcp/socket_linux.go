package tcp

import (
	"fmt"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the hot path never block, and are raw: the scheduler is not
// told, which a call that takes microseconds is not worth. What bounds a call is
// the megabyte it moves at most. The collector can stop the caller between calls,
// because our functions are ordinary ones.

func sendmsg(fd int, m *unix.Msghdr) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(m)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// send and recv are sendmsg and readv of one piece of memory, which saves the kernel the vector: 0.3 µs each, measured.
func send(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func recv(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func readv(fd int, v []unix.Iovec) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&v[0])), uintptr(len(v)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// unacknowledged is the number of bytes that the peer's kernel does not have yet.
func unacknowledged(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// twin is a socket with a descriptor of ours besides the runtime's. It is made before the peer is told that there is a connection, for there may be no
// descriptor left: then there is none, and the peer, who is not to take that for our death, asks again.
type twin struct {
	net.Conn
	fd int // -1: none any more
}

func newTwin(c net.Conn) (*twin, error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	t := &twin{Conn: c, fd: -1}
	var failed error
	if err := raw.Control(func(theirs uintptr) {
		t.fd, failed = unix.FcntlInt(theirs, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, fmt.Errorf("duplicate a descriptor: %w", failed)
	}
	return t, nil
}

// release takes the socket out of the runtime's hands, where it does not block.
func (t *twin) release() int {
	fd := t.fd
	t.fd = -1
	t.Conn.Close()
	return fd
}

// part closes a socket of a connection that our user closed before it was there, while its peer may already take it to be: that is to know that it is
// no death. The runtime's descriptor may be closed already, by the context of the search that is over.
func (t *twin) part() {
	var b [headerSize]byte
	(&header{kind: kindBye}).put(&b)
	unix.SendmsgN(t.fd, b[:], nil, nil, unix.MSG_NOSIGNAL) // it fails where the peer is gone
	t.Close()
}

func (t *twin) Close() error {
	if t.fd >= 0 {
		unix.Close(t.fd)
		t.fd = -1
	}
	return t.Conn.Close()
}

// unpace has a socket send as fast as its peer reads. On the loopback device there is no network to be careful of and nothing is lost, and BBR, which
// some hosts begin with, measures and paces: exchanges of 1 to 16 MiB took it 15 to 25 % longer. Between network namespaces packets are lost, and what
// Reno gains there without, it loses with them. Every kernel has Reno and lets everybody have it; if not, the socket is only slower.
func unpace(fd int) {
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
}

// point makes v describe b, which is not empty.
func point(v *unix.Iovec, b []byte) {
	v.Base = &b[0]
	v.SetLen(len(b))
}

// aligned returns n bytes that start on a cache line.
func aligned(n int) []byte {
	b := make([]byte, n+unit-1)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (unit - 1)
	return b[skip : skip+n : skip+n]
}
