package launch

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Variables that a launcher sets for a rank.
const (
	VarRank      = "GCCL_RANK"
	VarSize      = "GCCL_WORLD_SIZE"
	VarLocalRank = "GCCL_LOCAL_RANK"
	VarRoot      = "GCCL_ROOT"
	VarSecret    = "GCCL_SECRET"
)

// replaced are the variables of an outer launcher's that would contradict ours.
var replaced = []string{VarRank, VarSize, VarLocalRank, VarRoot, VarSecret,
	"GCCL_SECRET_FILE", "GCCL_UNIQUE_ID", "GCCL_JOB_ID"}

// Environment is what the ranks of one job on this machine find in theirs. It keeps the port in
// GCCL_ROOT reserved, so that nothing takes it before rank 0 has, or between two communicators.
type Environment struct {
	base   []string
	ranks  int
	root   string
	secret string
	fd     int
}

// NewEnvironment returns the environment of a new job of that many ranks. base is what each rank
// gets besides; nil is this process's own. The caller closes it when the job is over.
func NewEnvironment(base []string, ranks int) (*Environment, error) {
	if base == nil {
		base = os.Environ()
	}
	e := &Environment{ranks: ranks}
	for _, v := range base {
		name, _, _ := strings.Cut(v, "=")
		keep := true
		for _, r := range replaced {
			keep = keep && name != r
		}
		if keep {
			e.base = append(e.base, v)
		}
	}
	var secret [32]byte
	rand.Read(secret[:])
	e.secret = hex.EncodeToString(secret[:])
	var errs []error
	for _, host := range []string{"127.0.0.1", "::1"} { // some hosts and containers have IPv6 alone
		port, fd, err := reserve(netip.MustParseAddr(host))
		if err == nil {
			e.root, e.fd = net.JoinHostPort(host, strconv.Itoa(port)), fd
			return e, nil
		}
		errs = append(errs, fmt.Errorf("at %s: %w", host, err))
		if !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.EAFNOSUPPORT) {
			return nil, fmt.Errorf("launch: reserve a port for GCCL_ROOT: %w", hinted(errors.Join(errs...)))
		}
	}
	return nil, fmt.Errorf("launch: reserve a port for GCCL_ROOT: %w and %w: is the loopback interface up, and has it an address (ip addr show lo)?", errs[0], errs[1])
}

// Rank returns the environment of one rank. The slice is the caller's.
func (e *Environment) Rank(rank int) []string {
	return append(e.base[:len(e.base):len(e.base)],
		VarRank+"="+strconv.Itoa(rank),
		VarSize+"="+strconv.Itoa(e.ranks),
		VarLocalRank+"="+strconv.Itoa(rank),
		VarRoot+"="+e.root,
		VarSecret+"="+e.secret,
	)
}

// Close gives the port back.
func (e *Environment) Close() error { return unix.Close(e.fd) }

// reserve binds a free port of the loopback interface and doesn't listen. The system then hands the
// port to nobody who asks for any port, but a socket that sets SO_REUSEADDR, as Go's listeners do, can
// bind and listen on it by number.
func reserve(at netip.Addr) (port, fd int, err error) {
	family, name := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: at.As16()})
	if at.Is4() {
		family, name = unix.AF_INET, &unix.SockaddrInet4{Addr: at.As4()}
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, -1, os.NewSyscallError("socket", err)
	}
	fail := func(call string, err error) (int, int, error) {
		unix.Close(fd)
		return 0, -1, os.NewSyscallError(call, err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fail("setsockopt", err)
	}
	if err := unix.Bind(fd, name); err != nil {
		return fail("bind", err)
	}
	if name, err = unix.Getsockname(fd); err != nil {
		return fail("getsockname", err)
	}
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		port = name.Port
	case *unix.SockaddrInet6:
		port = name.Port
	}
	return port, fd, nil
}
