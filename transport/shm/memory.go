//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// memory returns how many bytes of the host's memory could be had, and how many there are; 0 where it does not say.
func memory() (free, of int64) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 53)
		switch f[0] {
		case "MemTotal:":
			of = kib << 10
		case "MemAvailable:":
			free = kib << 10
		}
	}
	return free, of
}

// memoryError says that the system has no memory for us.
func memoryError(what string, need int64, err error) error {
	e := &SpaceError{For: what, Need: need, Err: fmt.Errorf("the host's memory: %w: free some; or where that is enough raise what bounds it, "+
		"the container's limit (docker run --memory, Kubernetes limits.memory), or with vm.overcommit_memory=2 the host's", err)}
	e.Free, e.Of = memory()
	return e
}
