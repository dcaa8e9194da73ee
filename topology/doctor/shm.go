package doctor

import (
	"cmp"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/gccl-project/gccl/topology"
)

// ShmDir is where ranks of one host meet, if they are not told otherwise.
const ShmDir = "/dev/shm"

// Shm is what is mounted where ranks of one host meet.
type Shm struct {
	Type  string               `json:"type"`  // tmpfs; "" if nothing is mounted there
	Bytes topology.Fact[int64] `json:"bytes"` // how large it may grow
}

// shm looks at a directory. It reads the mount's size from its options. A tmpfs without the option may take half of the memory.
func (f files) shm(dir string) topology.Fact[Shm] {
	return parsed(f.text("proc/self/mounts"), func(t string) (Shm, string) {
		s := Shm{Bytes: topology.Unknown[int64]("nothing is mounted there")}
		for line := range strings.Lines(t) {
			w := strings.Fields(line)
			if len(w) < 4 || mountPoint(w[1]) != dir {
				continue
			}
			s = Shm{w[2], f.half()}
			for option := range strings.SplitSeq(w[3], ",") {
				if size, ok := strings.CutPrefix(option, "size="); ok {
					s.Bytes = parseSize(size)
				}
			}
		}
		return s, ""
	})
}

func (f files) half() topology.Fact[int64] {
	return parsed(f.text("proc/meminfo"), func(t string) (int64, string) {
		v, _ := value(t, "MemTotal:")
		kib, err := strconv.ParseInt(strings.TrimSuffix(v, " kB"), 10, 53)
		if err != nil || kib < 0 {
			return 0, "/proc/meminfo has no MemTotal"
		}
		return kib << 10 / 2, ""
	})
}

// parseSize reads 65536k, 1g and 4096.
func parseSize(s string) topology.Fact[int64] {
	digits, shift := s, 0
	if n := len(s) - 1; n >= 0 {
		if u := strings.IndexByte("kmgt", s[n]|0x20); u >= 0 {
			digits, shift = s[:n], 10*(u+1)
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return topology.Unknown[int64]("the option size=%.40s of the mount is no size", s)
	}
	return topology.Known(n << shift)
}

// mountPoint undoes what the kernel writes for spaces and the like.
func mountPoint(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// Segment is a file where ranks meet that tells of shared memory: a segment of NCCL's, or a socket at which ranks get one of gccl's.
type Segment struct {
	Name  string              `json:"name"`
	Bytes int64               `json:"bytes"` // the file's length, which is more than it takes if it has holes
	Alive topology.Fact[bool] `json:"alive"` // whether the process that made it lives
}

func (f files) segments(dir string) topology.Fact[[]Segment] {
	dir = cmp.Or(strings.TrimPrefix(dir, "/"), ".")
	return parsed(f.names(dir), func(names []string) ([]Segment, string) {
		list := []Segment{}
		for _, name := range names {
			if !strings.HasPrefix(name, "gccl-") && !strings.HasPrefix(name, "nccl-") {
				continue
			}
			s := Segment{Name: name, Alive: f.maker(name)}
			if info, err := fs.Stat(f.root, path.Join(dir, name)); err == nil {
				s.Bytes = info.Size()
			}
			list = append(list, s)
		}
		return list, ""
	})
}

// maker looks for the process that made it: gccl's are called gccl-UID-PIDNAMESPACE-PID-STARTTIME-RANDOM.
func (f files) maker(name string) topology.Fact[bool] {
	w := strings.Split(name, "-")
	if len(w) != 6 || w[0] != "gccl" {
		return topology.Unknown[bool]("the name does not say whose it is")
	}
	pid, err := strconv.ParseUint(w[3], 10, 31)
	if err != nil {
		return topology.Unknown[bool]("the name does not say whose it is")
	}
	switch ours, err := fs.ReadLink(f.root, "proc/self/ns/pid"); {
	case err != nil:
		return unread[bool]("proc/self/ns/pid", err)
	case ours != "pid:["+w[2]+"]":
		return topology.Unknown[bool]("it was made in another PID namespace")
	}
	stat, ok := f.text("proc", fmt.Sprint(pid), "stat").Get()
	if !ok {
		return topology.Known(false)
	}
	// The name in parentheses may hold spaces; the start time is the 20th word behind it.
	after := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	return topology.Known(len(after) >= 20 && after[19] == w[4])
}
