package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// CPUFacts is a host's processors, and which of them this process may use.
type CPUFacts struct {
	Arch   Fact[string] `json:"arch"` // x86_64, arm64, ppc64
	Vendor Fact[string] `json:"vendor"`
	Name   Fact[string] `json:"name"`
	Family Fact[int]    `json:"family"`
	Model  Fact[int]    `json:"model"`

	Online   Fact[CPUSet]  `json:"online"`
	Affinity Fact[CPUSet]  `json:"affinity"` // what the process is bound to
	Cpuset   Fact[CPUSet]  `json:"cpuset"`   // what its cgroup may use
	Quota    Fact[float64] `json:"quota"`    // how many CPUs' time its cgroups get; 0 without a limit

	Nodes  Fact[[]NUMAFacts]  `json:"nodes"`
	Caches Fact[[]CacheFacts] `json:"caches"` // each once
}

// NUMAFacts is a NUMA node. One without CPUs is memory alone.
type NUMAFacts struct {
	ID        int          `json:"id"`
	CPUs      Fact[CPUSet] `json:"cpus"`
	Bytes     Fact[int64]  `json:"bytes"`
	Distances Fact[[]int]  `json:"distances"` // to the nodes in order, 10 is local
}

// CacheFacts is one cache.
type CacheFacts struct {
	Level int    `json:"level"`
	Type  string `json:"type"` // Data, Instruction, Unified
	Bytes int64  `json:"bytes"`
	CPUs  CPUSet `json:"cpus"` // that share it
}

// Allowed returns the CPUs that this process may use: those online that its affinity and its cgroup leave it. Unknown only if
// none of the three is known.
func (c CPUFacts) Allowed() Fact[CPUSet] {
	var allowed Fact[CPUSet]
	for _, f := range []Fact[CPUSet]{c.Online, c.Affinity, c.Cpuset} {
		set, ok := f.Get()
		switch {
		case !ok:
		case allowed.known:
			allowed = Known(allowed.value.And(set))
		default:
			allowed = f
		}
	}
	if !allowed.known {
		return Unknown[CPUSet]("%s", c.Online.Why())
	}
	return allowed
}

func (s sysfs) cpuFacts() CPUFacts {
	c := CPUFacts{Online: s.cpus("sys/devices/system/cpu/online"), Nodes: s.numaFacts()}
	s.cpuinfo(&c)
	c.Affinity = then(s.text("proc/self/status"), func(t string) (CPUSet, error) {
		for line := range strings.Lines(t) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				return ParseCPUList(list)
			}
		}
		return nil, errors.New("/proc/self/status has no Cpus_allowed_list")
	})
	cgroups := s.cgroups()
	c.Cpuset, c.Quota = s.cpuset(cgroups), s.quota(cgroups)
	if online, ok := c.Online.Get(); ok {
		c.Caches = s.caches(online)
	} else {
		c.Caches = Unknown[[]CacheFacts]("%s", c.Online.Why())
	}
	return c
}

// cpuinfo reads what /proc/cpuinfo says of the first processor.
func (s sysfs) cpuinfo(c *CPUFacts) {
	text := s.text("proc/cpuinfo")
	value := func(names ...string) Fact[string] {
		return then(text, func(t string) (string, error) {
			for line := range strings.Lines(t) {
				name, v, ok := strings.Cut(line, ":")
				if ok && slices.Contains(names, strings.TrimSpace(name)) {
					return strings.TrimSpace(v), nil
				}
			}
			return "", fmt.Errorf("/proc/cpuinfo has no %q", names[0])
		})
	}
	number := func(name string) Fact[int] {
		return then(value(name), func(t string) (int, error) {
			n, err := strconv.ParseUint(t, 0, 31)
			return int(n), err
		})
	}
	c.Vendor, c.Name = value("vendor_id", "CPU implementer"), value("model name", "cpu")
	c.Family, c.Model = number("cpu family"), number("model")
	c.Arch = then(text, func(t string) (string, error) {
		switch {
		case strings.Contains(t, "vendor_id"):
			return "x86_64", nil
		case strings.Contains(t, "CPU implementer"):
			return "arm64", nil
		case strings.Contains(t, "POWER"):
			return "ppc64", nil
		}
		return "", errors.New("/proc/cpuinfo names no vendor that gccl knows")
	})
}

func (s sysfs) numaFacts() Fact[[]NUMAFacts] {
	ids, err := s.numbered("node", "sys/devices/system/node")
	if err != nil {
		return Unknown[[]NUMAFacts]("%s", reason(err))
	}
	var nodes []NUMAFacts
	for _, id := range ids {
		dir := "sys/devices/system/node/node" + strconv.Itoa(id)
		n := NUMAFacts{ID: id, CPUs: s.cpus(dir, "cpulist")}
		if !n.CPUs.known {
			n.CPUs = then(s.text(dir, "cpumap"), ParseCPUMask)
		}
		n.Bytes = then(s.text(dir, "meminfo"), func(t string) (int64, error) {
			for line := range strings.Lines(t) {
				if f := strings.Fields(line); len(f) == 5 && f[2] == "MemTotal:" {
					kib, err := strconv.ParseInt(f[3], 10, 53)
					return kib << 10, err
				}
			}
			return 0, errors.New("no MemTotal")
		})
		n.Distances = then(s.text(dir, "distance"), func(t string) (list []int, err error) {
			for _, word := range strings.Fields(t) {
				d, err := strconv.Atoi(word)
				if err != nil {
					return nil, fmt.Errorf("/%s/distance holds %q", dir, shorten(t))
				}
				list = append(list, d)
			}
			return list, nil
		})
		nodes = append(nodes, n)
	}
	if len(nodes) == 0 {
		return Unknown[[]NUMAFacts]("/sys/devices/system/node has no nodes")
	}
	return Known(nodes)
}

func (s sysfs) caches(online CPUSet) Fact[[]CacheFacts] {
	seen := map[string]bool{}
	var all []CacheFacts
	var firstErr error
	for cpu := 0; cpu < 64*len(online); cpu++ {
		if !online.Has(cpu) {
			continue
		}
		dir := path.Join("sys/devices/system/cpu", "cpu"+strconv.Itoa(cpu), "cache")
		indexes, err := s.numbered("index", dir)
		if err != nil && firstErr == nil {
			firstErr = err
		}
		for _, i := range indexes {
			at := path.Join(dir, "index"+strconv.Itoa(i))
			level, okLevel := s.number(at, "level").Get()
			cpus, okCPUs := s.cpus(at, "shared_cpu_list").Get()
			kind := s.text(at, "type").Or("")
			key := fmt.Sprint(level, kind, cpus)
			if !okLevel || !okCPUs || seen[key] {
				continue
			}
			seen[key] = true
			all = append(all, CacheFacts{level, kind, parseSize(s.text(at, "size").Or("")), cpus})
		}
	}
	if len(all) == 0 {
		if firstErr == nil {
			firstErr = errors.New("the CPUs list no caches")
		}
		return Unknown[[]CacheFacts]("%s", reason(firstErr))
	}
	return Known(all)
}

// parseSize reads 32K and 8M; 0 is unknown.
func parseSize(s string) int64 {
	shift := 0
	if n := len(s); n > 0 {
		switch s[n-1] {
		case 'K':
			s, shift = s[:n-1], 10
		case 'M':
			s, shift = s[:n-1], 20
		}
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0
	}
	return int64(n) << shift
}

// cgroup is where a controller of this process's cgroup is mounted, and the process's place below.
type cgroup struct {
	mount, path string
	unified     bool
}

// cgroups returns the groups of the controllers cpu, cpuset and memory.
func (s sysfs) cgroups() map[string]cgroup {
	groups := map[string]cgroup{}
	text, _ := s.text("proc/self/cgroup").Get()
	unified := ""
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || !fs.ValidPath(strings.Trim(f[2], "/")) && f[2] != "/" {
			continue
		}
		if f[1] == "" {
			unified = f[2]
			continue
		}
		for controller := range strings.SplitSeq(f[1], ",") {
			groups[controller] = cgroup{"sys/fs/cgroup/" + controller, f[2], false}
		}
	}
	for _, c := range []string{"cpu", "cpuset", "memory"} {
		if _, v1 := groups[c]; !v1 {
			groups[c] = cgroup{"sys/fs/cgroup", unified, true}
		}
	}
	return groups
}

// each visits a group's folder and those above it, up to the mount. Inside a container the group's own folder is often the
// mount itself, and the path leads nowhere.
func (g cgroup) each(visit func(dir string) (goOn bool)) {
	for p := path.Join("/", g.path); ; p = path.Dir(p) {
		if !visit(path.Join(g.mount, p)) || p == "/" {
			return
		}
	}
}

func (s sysfs) cpuset(groups map[string]cgroup) Fact[CPUSet] {
	g := groups["cpuset"]
	names := []string{"cpuset.cpus.effective"}
	if !g.unified {
		names = []string{"cpuset.effective_cpus", "cpuset.cpus"}
	}
	found := Unknown[CPUSet]("there is no /%s/%s", g.mount, names[0])
	g.each(func(dir string) bool {
		for _, name := range names {
			if f := s.cpus(dir, name); f.known && f.value.Len() > 0 {
				found = f
				return false
			}
		}
		return true
	})
	return found
}

// quota is the least that any of the groups above grants.
func (s sysfs) quota(groups map[string]cgroup) Fact[float64] {
	g := groups["cpu"]
	least := Unknown[float64]("there is no CPU controller below /%s", g.mount)
	g.each(func(dir string) bool {
		var quota, period Fact[int]
		if g.unified {
			both := then(s.text(dir, "cpu.max"), func(t string) ([]string, error) {
				if f := strings.Fields(t); len(f) == 2 {
					return f, nil
				}
				return nil, errors.New("not two words")
			})
			if f, ok := both.Get(); ok {
				quota, period = asNumber(f[0]), asNumber(f[1])
				if f[0] == "max" {
					quota = Known(-1)
				}
			}
		} else {
			quota, period = s.number(dir, "cpu.cfs_quota_us"), s.number(dir, "cpu.cfs_period_us")
		}
		q, okQ := quota.Get()
		p, okP := period.Get()
		switch {
		case !okQ || !okP || p <= 0:
		case q <= 0:
			least = Known(least.Or(0))
		default:
			if had := least.Or(0); had == 0 || float64(q)/float64(p) < had {
				least = Known(float64(q) / float64(p))
			}
		}
		return true
	})
	return least
}

func asNumber(s string) Fact[int] { return factOf(strconv.Atoi(s)) }
