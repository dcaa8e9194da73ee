package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/gccl-project/gccl/comm"
)

// member is what a rank tells the others of itself.
type member struct {
	Host       string
	Boot       string // the running kernel's id: two hosts of one name differ in it
	PID        int
	Processors int      // that it may run on
	Transports []string // to each rank
}

func newMember(c *comm.Comm) member {
	m := member{PID: os.Getpid(), Processors: runtime.NumCPU(), Transports: make([]string, c.Size())}
	m.Host, _ = os.Hostname()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	m.Boot = strings.TrimSpace(string(boot))
	for _, p := range c.Paths() {
		m.Transports[p.Rank] = p.Transport
	}
	return m
}

func (m member) sameHost(o member) bool { return m.Host == o.Host && m.Boot == o.Boot }

// hosts returns the number of hosts that the members are on.
func hosts(members []member) int {
	seen := map[string]bool{}
	for _, m := range members {
		seen[m.Host+" "+m.Boot] = true
	}
	return len(seen)
}

// onHostOf returns how many members are on the host of one of them.
func onHostOf(members []member, rank int) int {
	n := 0
	for _, m := range members {
		if m.sameHost(members[rank]) {
			n++
		}
	}
	return n
}

// transports returns the names of the transports between any two members, joined by "+".
func transports(members []member) string {
	var names []string
	for a, m := range members {
		for b, name := range m.Transports {
			if b != a && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, "+")
}

// pairs sums up which ranks use which transport: by name, the pairs, or how many there are if they
// are many.
func pairs(members []member) string {
	const many = 12
	by := map[string][]string{}
	for a, m := range members {
		for b := a + 1; b < len(members); b++ {
			by[m.Transports[b]] = append(by[m.Transports[b]], fmt.Sprintf("%d-%d", a, b))
		}
	}
	var parts []string
	for name, list := range by {
		if len(list) > many {
			parts = append(parts, fmt.Sprintf("%s for %d pairs", name, len(list)))
		} else {
			parts = append(parts, fmt.Sprintf("%s for %s", name, strings.Join(list, " ")))
		}
	}
	slices.Sort(parts)
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
