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
	const most = 8192 // of any Linux: CONFIG_NR_CPUS ends there
	set := unix.NewCPUSet(most)
	if err := unix.SchedGetaffinityDynamic(0, set); err != nil {
		for i := range runtime.NumCPU() {
			list = append(list, i)
		}
		return list
	}
	for i := range most {
		if set.IsSet(i) {
			list = append(list, i)
		}
	}
	return list
}

// crowd is how many ranks of one machine there are for each of the processors that they may run on, all together: each may be bound to
// one, and then they are enough; or for each that a CPU quota, which GOMAXPROCS follows, lets run at once.
func crowd(machine []hello) float64 {
	all := map[int]bool{}
	for _, h := range machine {
		for _, p := range h.Processors {
			all[p] = true
		}
	}
	most := float64(len(machine)) / float64(max(1, len(all)))
	for _, h := range machine {
		if h.Threads < len(h.Processors) {
			most = max(most, float64(len(machine))/float64(max(1, h.Threads)))
		}
	}
	return most
}

// crowds is the worst of all machines, with one rank of each process: ranks of one process take turns without the kernel.
func crowds(all []hello) float64 {
	machines, seen := map[string][]hello{}, map[string]bool{}
	for _, h := range all {
		if !seen[h.Process] {
			seen[h.Process] = true
			machines[h.Machine] = append(machines[h.Machine], h)
		}
	}
	most := 0.0
	for _, m := range machines {
		most = max(most, crowd(m))
	}
	return most
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
