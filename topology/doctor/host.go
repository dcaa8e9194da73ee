package doctor

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gccl-project/gccl/topology"
)

// transports says what ranks on this host can use.
func (x *exam) transports() {
	var can []string
	only := x.w.Transport
	if x.meets() && (only == "" || only == "shm") {
		can = append(can, "shm")
	}
	if x.speaksRDMA() {
		can = append(can, "verbs between hosts")
	}
	if only == "" || only == "tcp" {
		can = append(can, "tcp")
	}
	switch list := strings.Join(can, ", "); {
	case only == "":
		x.add(OK, "transports", "", "", "%s", list)
	case list == "" && only == "verbs" && x.h.RDMA.Why() != "":
		x.unknown("transports", "", "", "whether ranks can use "+only+", all that GCCL_TRANSPORT allows", x.h.RDMA.Why())
	case list == "":
		x.add(Fail, "transports", "", "GCCL_TRANSPORT=auto", "none: GCCL_TRANSPORT=%s allows nothing else, and this host cannot do that", only)
	default:
		x.add(OK, "transports", "", "", "%s; GCCL_TRANSPORT=%s allows nothing else", list, only)
	}
}

func (x *exam) settingFiles() {
	for _, f := range x.w.Files {
		switch {
		case f.Wrong == "":
			x.add(OK, "setting_file", f.From, "", "%s", f.Path)
		case f.Ends:
			x.add(Fail, "setting_file", f.From, f.Fix, "%s", f.Wrong)
		default:
			x.add(Warn, "setting_file", f.From, f.Fix, "%s", f.Wrong)
		}
	}
}

// speaksRDMA reports whether jobs use a port here.
func (x *exam) speaksRDMA() bool {
	return slices.ContainsFunc(x.h.RDMA.Or(nil), func(d topology.RDMAFacts) bool {
		use, _ := topology.ChoosePorts([]topology.RDMAFacts{d}, x.w.RDMA)
		return len(use) > 0 && x.unused(d) == ""
	})
}

func (x *exam) cpuQuota() {
	quota, ok := x.h.CPU.Quota.Get()
	may, known := x.h.CPU.Allowed().Get()
	switch {
	case !ok:
		x.unknown("cpu_quota", "", "", "CPU quota", x.h.CPU.Quota.Why())
	case quota == 0:
		x.add(OK, "cpu_quota", "", "", "no quota; %s", cpus(may, known))
	case known && quota >= float64(may.Len()):
		x.add(OK, "cpu_quota", "", "", "%.4g CPUs' time for %s", quota, cpus(may, known))
	default:
		x.add(Warn, "cpu_quota", "", "give the container as many whole CPUs as it has ranks (Kubernetes: CPU limit none, or equal to an integer request under the static CPU manager; "+
			"docker: --cpuset-cpus instead of --cpus); gccl spins less under a quota",
			"a quota of %.4g CPUs' time, spread over %s", quota, cpus(may, known))
	}
}

func cpus(set topology.CPUSet, known bool) string {
	if !known {
		return "an unknown number of CPUs"
	}
	return fmt.Sprintf("%s (%s)", plural(set.Len(), "CPU"), set)
}

// numa compares where devices hang with where the process may run.
func (x *exam) numa() {
	allowed := x.h.CPU.Allowed()
	may, ok := allowed.Get()
	if !ok {
		x.unknown("numa", "", "", "the CPUs that the process may use", allowed.Why())
		return
	}
	var far []string
	devices := append(x.g.GPUs(), x.g.Nets()...)
	for _, id := range devices {
		c := x.g.CPUOf(id)
		if c == topology.NoNode {
			continue
		}
		near := x.g.Nodes[c].CPU.CPUs
		if near.Len() > 0 && near.And(may).Len() == 0 {
			far = append(far, fmt.Sprintf("%s is near the CPUs %s", x.g.Name(id), near))
		}
		if x.g.Nodes[c].CPU.NUMA < 0 {
			x.add(Info, "numa", x.g.Name(id), "update the firmware, or in a virtual machine give it the host's NUMA nodes", "the firmware does not say which NUMA node it is on")
		}
	}
	switch {
	case len(far) > 0:
		x.add(Warn, "numa", "", "let the job use CPUs of these nodes: the container's cpuset, taskset, the scheduler's binding", "the process may use the CPUs %s alone, and %s", may, strings.Join(far, ", "))
	case len(devices) > 0:
		x.add(OK, "numa", "", "", "the process may use CPUs near each device: %s", may)
	default:
		x.add(OK, "numa", "", "", "%s, no device that is bound to one", plural(len(x.g.CPUs()), "NUMA node"))
	}
}

// meets reports whether there is a directory where ranks can meet, or nothing says that there is none.
func (x *exam) meets() bool {
	s, known := x.s.Shm.Get()
	_, there := x.s.Segments.Get()
	return x.s.ShmRefused == "" && (!known || s.Type != "" || there)
}

func (x *exam) shmSize() {
	dir := x.shmDir()
	s, ok := x.s.Shm.Get()
	if !ok {
		x.unknown("shm_size", "", "", dir, x.s.Shm.Why())
		return
	}
	if !x.meets() {
		if x.s.ShmRefused != "" {
			x.add(Warn, "shm_size", "", "let the job's user write to "+dir+", or set GCCL_SHM_DIR to a directory that all ranks of this host can write to", "%s", x.s.ShmRefused)
			return
		}
		fix := "set GCCL_SHM_DIR to a directory that all ranks of this host can write to"
		if dir == ShmDir {
			fix = "mount -t tmpfs tmpfs /dev/shm, or " + fix
		}
		x.add(Warn, "shm_size", "", fix, "nothing is mounted at %s, and %s", dir, x.s.Segments.Why())
		return
	}
	var state []string
	if size, ok := s.Bytes.Get(); ok {
		state = append(state, bytes(size))
	}
	if free, ok := x.s.ShmFree.Get(); ok {
		state = append(state, bytes(free)+" free")
	}
	size := cmp.Or(strings.Join(state, ", "), "unknown")
	if dir != ShmDir {
		size = dir + ": " + size
	}
	x.add(OK, "shm_size", "", "", "%s; any size will do", size)
}

func (x *exam) shmDir() string { return cmp.Or(x.s.ShmDir, ShmDir) }

func (x *exam) shmLeftovers() {
	dir := x.shmDir()
	all, ok := x.s.Segments.Get()
	if !ok {
		x.unknown("shm_leftovers", "", "", "what is in "+dir, x.s.Segments.Why())
		return
	}
	var dead, live, others []string
	for _, s := range all {
		switch alive, known := s.Alive.Get(); {
		case known && alive:
			live = append(live, s.Name)
		case known:
			dead = append(dead, s.Name)
		default:
			others = append(others, s.Name)
		}
	}
	if len(dead) > 0 {
		x.add(Info, "shm_leftovers", "", "the next job of the same user removes them; or rm "+paths(dir, dead), "%s of processes that are gone: %s", plural(len(dead), "file"), some(dead))
	}
	if len(others) > 0 {
		x.add(Info, "shm_leftovers", "", "if no job runs that uses them (fuser "+dir+"/*): rm "+paths(dir, others), "%s, and it is not known here of which process: %s", plural(len(others), "file"), some(others))
	}
	if len(dead)+len(others) == 0 {
		x.add(OK, "shm_leftovers", "", "", "none; files in use: %d", len(live))
	}
}

// some are the first few of many names.
func some(names []string) string {
	const most = 4
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

func paths(dir string, names []string) string {
	names = slices.Clone(names)
	for i, n := range names {
		names[i] = path.Join(dir, n)
	}
	if len(names) > 4 {
		names = append(names[:4], "…")
	}
	return strings.Join(names, " ")
}

// filesWant is a limit that jobs of some hundred ranks fit in.
const filesWant = 1024

const filesFix = "ulimit -n 65536; LimitNOFILE=65536 in the service's unit; docker run --ulimit nofile=65536:65536; /etc/security/limits.conf for logins"

func (x *exam) openFiles() {
	l, ok := x.s.OpenFiles.Get()
	switch {
	case !ok:
		x.unknown("open_files", "", "", "the limit of open files", x.s.OpenFiles.Why())
	case l.Hard < filesWant:
		x.add(Warn, "open_files", "", filesFix, "nofile %d, at most %d; jobs of a few hundred ranks need more (gccl doctor --plan N)", l.Soft, l.Hard)
	default:
		x.add(OK, "open_files", "", "", "nofile %s; gccl raises it to %s by itself when it needs to", count(l.Soft), count(l.Hard))
	}
}

func count(n int64) string {
	if n == unlimited {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

func (x *exam) hugePages() {
	h, ok := x.s.HugePages.Get()
	switch {
	case !ok:
		x.unknown("huge_pages", "", "", "huge pages", x.s.HugePages.Why())
	case h.Total == 0:
		x.add(Info, "huge_pages", "", "only for RDMA with memory.hugepage: sysctl vm.nr_hugepages=1024", "none are reserved")
	default:
		x.add(OK, "huge_pages", "", "", "%d of %d free, %s each", h.Free, h.Total, bytes(h.Bytes))
	}
}

func (x *exam) ptrace() {
	scope, ok := x.s.Ptrace.Get()
	switch {
	case !ok:
		x.unknown("ptrace", "", "", "the ptrace scope", x.s.Ptrace.Why())
	case scope == 0:
		x.add(OK, "ptrace", "", "", "ptrace scope 0: processes of one user may read each other's memory")
	default:
		x.add(Info, "ptrace", "", "sysctl kernel.yama.ptrace_scope=0, if copies through shared memory are too slow",
			"ptrace scope %d: ranks may not read each other's memory in place, and copy through shared memory", scope)
	}
}

// memlock is a failure only where something locks memory: where RDMA is not used a low limit harms nobody.
func (x *exam) memlock() {
	const fix = "set ulimit -l unlimited / LimitMEMLOCK=infinity in the service's unit (of slurmd, kubelet or docker too) / docker run --ulimit memlock=-1 or --cap-add IPC_LOCK"
	l, ok := x.s.Memlock.Get()
	idle := x.noRDMA()
	switch {
	case !ok:
		x.unknown("memlock", "", "ulimit -l", "memlock", x.s.Memlock.Why())
	case l.Soft == unlimited:
		x.add(OK, "memlock", "", "", "memlock unlimited")
	case x.s.IPCLock.Or(false):
		x.add(OK, "memlock", "", "", "memlock %s, but the process has CAP_IPC_LOCK, for which it is no limit", bytes(l.Soft))
	case idle != "":
		x.add(Info, "memlock", "", "", "memlock %s; it would matter with RDMA, and %s; then %s", bytes(l.Soft), idle, fix)
	case l.Soft < memlockWant:
		x.add(Fail, "memlock", "", fix, "memlock %s, and RDMA needs at least %s", bytes(l.Soft), bytes(memlockWant))
	default:
		x.add(Warn, "memlock", "", fix, "memlock %s: it is enough for small jobs (gccl doctor --plan N)", bytes(l.Soft))
	}
}

// memlockWant lies above the limits that distributions set, 64 KiB and 8 MiB, and is what 16 connections of [DefaultDemand] lock.
const memlockWant = 64 << 20

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
