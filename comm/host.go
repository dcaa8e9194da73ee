package comm

import (
	"crypto/rand"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// processors returns the numbers of the processors that this process may run on.
func processors() (list []int) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil { // a machine of more processors than the set holds
		for i := range runtime.NumCPU() {
			list = append(list, i)
		}
		return list
	}
	for i := range 64 * len(set) {
		if set.IsSet(i) {
			list = append(list, i)
		}
	}
	return list
}

// crowded reports whether the ranks on one host are more than the processors that they may run on, all together: each may
// be bound to one, and then they are enough; or more than what a CPU quota, which GOMAXPROCS follows, lets run at once.
func crowded(host []hello) bool {
	all := map[int]bool{}
	for _, h := range host {
		for _, p := range h.Processors {
			all[p] = true
		}
		if h.Threads < len(h.Processors) && h.Threads < len(host) {
			return true
		}
	}
	return len(host) > len(all)
}

// process tells this process from all others, on any host.
var process = rand.Text()

// bootID is the kernel's id of this boot of this host.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown " + time.Now().String() // equal to nobody's
	}
	return string(b[:max(0, len(b)-1)])
}
