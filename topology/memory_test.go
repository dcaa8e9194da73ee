package topology

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/topology/topologytest"
)

func TestMemoryOfGroups(t *testing.T) {
	const mib, none = 1 << 20, math.MaxInt64
	for _, tt := range []struct {
		name        string
		cgroup      string
		files       [][]string // folder, name, text, …
		limit, left int64
	}{
		{"none", "0::/", [][]string{{"", "cgroup.controllers", "memory"}}, none, none},
		{"own", "0::/a/b", [][]string{{"a/b", "memory.max", "104857600", "memory.current", "4194304"}}, 100 * mib, 96 * mib},
		{"above", "0::/a/b", [][]string{{"a/b", "memory.max", "max", "memory.current", "1048576"}, {"a", "memory.max", "52428800", "memory.current", "4194304"}}, 50 * mib, 46 * mib},
		{"smaller above", "0::/a/b/c", [][]string{{"a/b/c", "memory.max", "104857600", "memory.current", "0"}, {"a/b", "memory.max", "209715200"}, {"a", "memory.max", "52428800", "memory.current", "0"}},
			50 * mib, 50 * mib},
		{"fuller above", "0::/a/b", [][]string{{"a/b", "memory.max", "52428800", "memory.current", "1048576"}, {"a", "memory.max", "104857600", "memory.current", "94371840"}}, 50 * mib, 10 * mib},
		{"a sister's", "0::/a", [][]string{{"b", "memory.max", "1048576"}, {"a", "memory.max", "max"}}, none, none},
		{"page cache", "0::/a", [][]string{{"a", "memory.max", "104857600", "memory.current", "94371840", "memory.stat",
			"anon 20971520\nfile 73400320\nshmem 10485760\ninactive_file 52428800\nactive_file 10485760\nslab 5"}}, 100 * mib, 70 * mib},
		{"over its limit", "0::/a", [][]string{{"a", "memory.max", "1048576", "memory.current", "2097152"}}, mib, 0},
		{"more cache than use", "0::/a", [][]string{{"a", "memory.max", "1048576", "memory.current", "1", "memory.stat", "inactive_file 2097152"}}, mib, mib},
		{"the container's own is the mount", "0::/kubepods/pod1/x", [][]string{{"", "memory.max", "104857600", "memory.current", "1048576"}}, 100 * mib, 99 * mib},
		{"outside", "0::/../../x", [][]string{{"", "memory.max", "104857600", "memory.current", "0"}}, 100 * mib, 100 * mib},
		{"nonsense", "0::/a", [][]string{{"a", "memory.max", "much", "memory.current", "-1"}, {"", "memory.max", "-5"}}, none, none},
		{"version 1", "4:cpu,cpuacct:/a\n3:memory:/a/b\n1:name=systemd:/", [][]string{
			{"memory/a/b", "memory.limit_in_bytes", "9223372036854771712", "memory.usage_in_bytes", "1048576"},
			{"memory/a", "memory.limit_in_bytes", "104857600", "memory.usage_in_bytes", "94371840", "memory.stat", "inactive_file 1\ntotal_inactive_file 41943040\ntotal_active_file 10485760"},
			{"memory", "memory.limit_in_bytes", "9223372036854771712"}}, 100 * mib, 60 * mib},
		{"version 1 in a container", "3:memory:/docker/0123\n0::/", [][]string{{"memory", "memory.limit_in_bytes", "104857600", "memory.usage_in_bytes", "0"}}, 100 * mib, 100 * mib},
	} {
		root := t.TempDir()
		put := func(dir, name, text string) {
			require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(root, dir, name), []byte(text+"\n"), 0o600))
		}
		put("proc/self", "cgroup", tt.cgroup)
		put("proc", "meminfo", "MemTotal:        8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB")
		for _, f := range tt.files {
			for i := 1; i < len(f); i += 2 {
				put("sys/fs/cgroup/"+f[0], f[i], f[i+1])
			}
		}
		m := ReadMemory(os.DirFS(root))
		require.Equal(t, Known(tt.limit), m.Limit, tt.name)
		require.Equal(t, Known(tt.left), m.Left, tt.name)
		require.Equal(t, Known(min(tt.limit, 8<<30)), m.Most(), tt.name)
		require.Equal(t, Known(min(tt.left, 4<<30)), m.Free(), tt.name)
	}
}

func TestMemoryOfHosts(t *testing.T) {
	m := ReadMemory(topologytest.NewTree())
	for _, f := range []Fact[int64]{m.Most(), m.Free(), m.Total, m.Available} {
		require.Equal(t, "there is no /proc/meminfo", f.Why())
	}
	require.Equal(t, "there is no /sys/fs/cgroup", m.Limit.Why())
	for text, want := range map[string]string{"": "/proc/meminfo has no MemTotal", "MemTotal: x kB": `MemTotal is "x", which is no number`, "MemTotal: 5": "has no MemTotal"} {
		tr := topologytest.NewTree()
		tr.Put("proc", "meminfo", text)
		require.Contains(t, ReadMemory(tr).Total.Why(), want)
	}
	tr := topologytest.NewTree() // the group is known, the host is not
	tr.Put("proc/self", "cgroup", "0::/")
	tr.Put("sys/fs/cgroup", "memory.max", "1048576", "memory.current", "0")
	require.Equal(t, Known[int64](1<<20), ReadMemory(tr).Most())

	h := Discover(tr, Unknown[[]GPUFacts]("no driver"))
	b, err := json.Marshal(h)
	require.NoError(t, err)
	require.Contains(t, string(b), `"memory":{`)
	var again Host
	require.NoError(t, json.Unmarshal(b, &again))
	require.Equal(t, h.Memory, again.Memory)
	require.NoError(t, json.NewDecoder(strings.NewReader(`{}`)).Decode(&again), "of an older report")
}
