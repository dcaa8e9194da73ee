//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// processor is where rank r of every peer runs where there is one for each: the allowed ones in order, those that share a core with an
// earlier one last.
func processor(r int) string {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return strconv.Itoa(r)
	}
	var may []int
	for cpu := range len(allowed) * 64 {
		if allowed.IsSet(cpu) {
			may = append(may, cpu)
		}
	}
	order := coresFirst("/sys/devices/system/cpu", may)
	return strconv.Itoa(order[r%len(order)])
}

// coresFirst has the processors that may be used, one of each core first. Where the kernel does not say who shares a core, each has its own.
func coresFirst(system string, may []int) (order []int) {
	seen := map[string]bool{}
	var siblings []int
	for _, cpu := range may {
		core := strconv.Itoa(cpu)
		if list, err := os.ReadFile(filepath.Join(system, fmt.Sprintf("cpu%d/topology/thread_siblings_list", cpu))); err == nil {
			core = strings.TrimSpace(string(list))
		}
		if seen[core] {
			siblings = append(siblings, cpu)
			continue
		}
		seen[core] = true
		order = append(order, cpu)
	}
	return append(order, siblings...)
}

// pinned puts a command's process on the processor of its rank, or leaves it where ranks outnumber processors.
func (m mode) pinned(rank int, args []string) []string {
	if m.crowded() {
		return args
	}
	return append([]string{"taskset", "-c", processor(rank)}, args...)
}
