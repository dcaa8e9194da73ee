package bootstrap

import (
	"fmt"
	"os"
	"syscall"
)

// countDescriptors returns how many are open, as far as /proc tells.
func countDescriptors() int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 3
	}
	return len(names)
}

// raiseDescriptors returns how many the process may open, after it has raised the soft limit towards the hard one if it was below need.
func raiseDescriptors(need int) (int, error) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("limit of open files: %w", os.NewSyscallError("getrlimit", err))
	}
	if r.Cur < uint64(need) && r.Cur < r.Max {
		raised := r
		raised.Cur = min(uint64(need), r.Max)
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised) == nil {
			r = raised
		}
	}
	return int(min(r.Cur, 1<<30)), nil
}
