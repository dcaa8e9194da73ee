//go:build linux && cgo

package verbs

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// DeviceLimits asks every RDMA device of this host, by name, or says why it does not tell. Without libibverbs.so.1 the error
// wraps errors.ErrUnsupported; without devices both maps are empty. It makes nothing on the devices; any goroutine may call.
func DeviceLimits() (of map[string]Limits, why map[string]error, err error) {
	names, err := ibv.Devices()
	if err != nil {
		return nil, nil, fmt.Errorf("verbs: %w", err)
	}
	of, why = map[string]Limits{}, map[string]error{}
	for _, name := range names {
		l, err := limitsOf(name)
		if err != nil {
			why[name] = fmt.Errorf("verbs: %s: %w", name, err)
			continue
		}
		of[name] = l
	}
	return of, why, nil
}

func limitsOf(name string) (Limits, error) {
	d, err := ibv.Open(name)
	if err != nil {
		return Limits{}, err
	}
	l, err := d.Limits()
	if closed := d.Close(); err == nil {
		err = closed
	}
	return Limits{l.MaxQP, l.MaxCQE, l.MaxMR}, err
}

// MayPin returns an error wrapping transport.ErrSpace, with the fix, if the system does not let this process pin so many bytes in all. Any
// goroutine may call.
func MayPin(bytes int64) error {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil || limit.Cur >= uint64(bytes) {
		return nil
	}
	var of [2]unix.CapUserData // 64 bits in two words
	const lock = 1 << unix.CAP_IPC_LOCK
	if unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &of[0]) == nil && of[0].Effective&lock != 0 {
		return nil
	}
	return fmt.Errorf("%w: verbs: pin %d bytes: %s", transport.ErrSpace, bytes, memlockFix(limit.Cur))
}

// memlockFix says what is too small and what to do.
func memlockFix(limit uint64) string {
	return fmt.Sprintf("memlock is %d KiB, RDMA pins more: set ulimit -l unlimited, LimitMEMLOCK=infinity (systemd) or --ulimit memlock=-1 (containers)", limit>>10)
}
