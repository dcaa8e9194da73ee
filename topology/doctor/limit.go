package doctor

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gccl-project/gccl/topology"
)

// Limit is one of a process's resource limits. math.MaxInt64 is no limit.
type Limit struct {
	Soft int64 `json:"soft"`
	Hard int64 `json:"hard"`
}

const unlimited = math.MaxInt64

// limit reads a line such as "Max open files   1024   4096   files" of /proc/self/limits.
func (f files) limit(name string) topology.Fact[Limit] {
	return parsed(f.text("proc/self/limits"), func(t string) (l Limit, wrong string) {
		rest, ok := value(t, name)
		words := strings.Fields(rest)
		if !ok || len(words) < 2 {
			return l, fmt.Sprintf("/proc/self/limits has no %q", name)
		}
		for i, to := range []*int64{&l.Soft, &l.Hard} {
			n, err := strconv.ParseUint(words[i], 10, 64)
			if words[i] == "unlimited" || err == nil && n > unlimited {
				n, err = unlimited, nil
			}
			if err != nil {
				return l, fmt.Sprintf("/proc/self/limits: %q of %q is no number", words[i], name)
			}
			*to = int64(n)
		}
		return l, ""
	})
}

const capIPCLock = 14

// ipcLock reports whether the process may lock what it likes. The capability counts in the first user namespace alone.
func (f files) ipcLock() topology.Fact[bool] {
	return parsed(f.text("proc/self/status"), func(t string) (bool, string) {
		word, _ := value(t, "CapEff:")
		set, err := strconv.ParseUint(word, 16, 64)
		if err != nil {
			return false, "/proc/self/status has no CapEff"
		}
		ids, ok := f.text("proc/self/uid_map").Get()
		first := !ok || strings.Join(strings.Fields(ids), " ") == "0 0 4294967295"
		return set>>capIPCLock&1 == 1 && first, ""
	})
}

// bytes writes a size as ulimit and docker do.
func bytes(n int64) string {
	if n == unlimited {
		return "unlimited"
	}
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	f, u := float64(n), 0
	for ; f >= 1024 && u < len(units)-1; u++ {
		f /= 1024
	}
	return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64) + " " + units[u]
}
