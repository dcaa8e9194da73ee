//go:build linux

package faults

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"
)

// held is what this process holds beside memory.
type held struct{ goroutines, descriptors, mappings int }

func holding() held {
	entries, _ := os.ReadDir("/proc/self/fd")
	maps, _ := os.ReadFile("/proc/self/maps")
	return held{runtime.NumGoroutine(), len(entries), strings.Count(string(maps), "gccl-")}
}

// baseline is what is held before, with what the Go runtime opens once and keeps.
func baseline() held {
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		l.Close()
	}
	return holding()
}

// settles waits until no more is held than before, give or take slack descriptors.
func settles(before held, slack int) error {
	var now held
	for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(5 * time.Millisecond) {
		if now = holding(); now.goroutines <= before.goroutines && now.descriptors <= before.descriptors+slack && now.mappings <= before.mappings {
			return nil
		}
	}
	var text strings.Builder
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		fmt.Fprintf(&text, "%s → %s\n", e.Name(), to)
	}
	pprof.Lookup("goroutine").WriteTo(&text, 1)
	return fmt.Errorf("left after Close: %+v before, %+v after\n%s", before, now, text.String())
}
