package launch

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
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
	port, fd, err := reserve()
	if err != nil {
		return nil, fmt.Errorf("launch: reserve a port of 127.0.0.1 for GCCL_ROOT: %w", err)
	}
	e.fd = fd
	e.root = "127.0.0.1:" + strconv.Itoa(port)
	return e, nil
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
func reserve() (port, fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
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
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return fail("bind", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return fail("getsockname", err)
	}
	return name.(*unix.SockaddrInet4).Port, fd, nil
}
