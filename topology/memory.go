package topology

import (
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
)

// MemoryFacts is how much memory there is for a process, in bytes.
type MemoryFacts struct {
	Total     Fact[int64] `json:"total"`     // the host's
	Available Fact[int64] `json:"available"` // what the host can still give without swapping
	Limit     Fact[int64] `json:"limit"`     // the least that the process's cgroup or one above it allows; math.MaxInt64: none has a limit
	Left      Fact[int64] `json:"left"`      // the least that those allow beyond what they use, page cache apart; math.MaxInt64: none has a limit
}

// Most returns how many bytes a process can have at most, with all others of its cgroup: the host's or the limit of the cgroup.
func (m MemoryFacts) Most() Fact[int64] { return leastOf(m.Total, m.Limit) }

// Free returns how many bytes a process can still get now.
func (m MemoryFacts) Free() Fact[int64] { return leastOf(m.Available, m.Left) }

// leastOf is the host's number or a cgroup's, if that is known and less.
func leastOf(host, group Fact[int64]) Fact[int64] {
	if n, ok := group.Get(); ok && n < host.Or(math.MaxInt64) {
		return group
	}
	return host
}

// ReadMemory reads a host's memory below root, as [Discover] does: /proc/meminfo, and of the control groups of this process, versions 1 and 2,
// those that /proc/self/cgroup names and those above them.
func ReadMemory(root fs.FS) MemoryFacts { return sysfs{root}.memoryFacts() }

func (s sysfs) memoryFacts() MemoryFacts {
	info := s.text("proc/meminfo")
	kib := func(name string) Fact[int64] {
		return then(info, func(t string) (int64, error) {
			for line := range strings.Lines(t) {
				f := strings.Fields(line)
				if len(f) != 3 || f[0] != name+":" || f[2] != "kB" {
					continue
				}
				n, err := strconv.ParseInt(f[1], 10, 53)
				if err != nil || n < 0 {
					return 0, fmt.Errorf("/proc/meminfo: %s is %q, which is no number", name, shorten(f[1]))
				}
				return n << 10, nil
			}
			return 0, fmt.Errorf("/proc/meminfo has no %s", name)
		})
	}
	m := MemoryFacts{Total: kib("MemTotal"), Available: kib("MemAvailable")}
	m.Limit, m.Left = s.memoryLimit(s.cgroups()["memory"])
	return m
}

// memoryLimit is the least of the limits of a group and those above it, and of what each leaves.
func (s sysfs) memoryLimit(g cgroup) (limit, left Fact[int64]) {
	most, used, cache := "memory.max", "memory.current", []string{"inactive_file", "active_file"}
	if !g.unified {
		most, used, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}
	}
	if _, err := fs.Stat(s.root, g.mount); err != nil {
		none := Unknown[int64]("%s", reason(err))
		return none, none
	}
	limit, left = Known[int64](math.MaxInt64), Known[int64](math.MaxInt64)
	g.each(func(dir string) bool {
		n, err := strconv.ParseUint(s.text(dir, most).Or(""), 10, 64)
		if err != nil || n > unlimitedV1 { // "max", or the root, which has no such file
			return true
		}
		limit = leastOf(limit, Known(int64(n)))
		now, err := strconv.ParseUint(s.text(dir, used).Or(""), 10, 63)
		if err != nil {
			return true
		}
		now -= min(now, s.reclaimable(dir, cache))
		left = leastOf(left, Known(int64(n-min(n, now))))
		return true
	})
	return limit, left
}

// unlimitedV1 lies below what version 1 has for no limit, the largest multiple of a page, and above all that a host has.
const unlimitedV1 = 1 << 62

// reclaimable is the page cache that a group is charged for, in bytes: the kernel drops it where processes want the memory. What lies in /dev/shm
// is not among it.
func (s sysfs) reclaimable(dir string, names []string) (sum uint64) {
	for line := range strings.Lines(s.text(dir, "memory.stat").Or("")) {
		for _, name := range names {
			if v, is := strings.CutPrefix(line, name+" "); is {
				n, _ := strconv.ParseUint(strings.TrimSpace(v), 10, 62) // 0 for what is no number: no cache
				sum += n
			}
		}
	}
	return sum
}
