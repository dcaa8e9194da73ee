package doctor

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// FuzzRead fills the files that are parsed here with anything: there is a report, and reading it again gives the same findings.
func FuzzRead(f *testing.F) {
	f.Add(limits("65536", "unlimited", "1024", "18446744073709551615"), "tmpfs /dev/shm tmpfs rw,size=64m 0 0", "MemTotal: 1 kB\nHugePages_Total: 1\nHugePages_Free: 1\nHugepagesize: 2048 kB",
		"CapEff:\t0000000000004000", "0 0 4294967295", "gccl-0-4026531836-4242-777-00000000000000aa", "4242 (a) b) S 1", "1\n", "layer2 0")
	f.Add("", "/dev/shm /dev/shm tmpfs size=", "MemTotal: -1 kB", "CapEff:", "", "nccl-", ")", "x", "")
	f.Fuzz(func(t *testing.T, limits, mounts, meminfo, status, ids, segment, stat, counter, policy string) {
		tree := bare() // the fake tree is slow where it is large
		tree.Put("proc/self", "limits", limits, "mounts", mounts, "status", status, "uid_map", ids)
		tree.Put("proc", "meminfo", meminfo, "4242/stat", stat, "modules", policy, "driver/nvidia/version", counter)
		tree.Put("proc/sys", "kernel/osrelease", ids, "kernel/yama/ptrace_scope", counter, "net/ipv4/ip_local_port_range", counter)
		if !strings.ContainsAny(segment, "/\x00") && segment != "" && segment != "." && segment != ".." {
			tree.MapFS["dev/shm/"+segment] = &fstest.MapFile{Data: []byte(counter)}
		}
		tree.NetDevice("", "bond0", "up", counter, "1500")
		tree.Put("sys/devices/virtual/net/bond0/bonding", "mode", policy, "xmit_hash_policy", policy, "slaves", policy)
		tree.MapFS["proc/self/ns/pid"] = &fstest.MapFile{Data: []byte("pid:[4026531836]"), Mode: 0o777 | fs.ModeSymlink}
		h, s := look(tree, noDriver)
		r := &Report{Version: ReportVersion, Host: h, System: s}
		r.Add(Examine(h, s, Wants{})...)
		_, findings := Estimate(h, s, Wants{}, DefaultDemand(1024), 1024)
		r.Add(findings...)
		for _, f := range r.Findings {
			require.NotEmpty(t, f.Why)
			require.Contains(t, Levels(), f.Level)
		}
		var b strings.Builder
		require.NoError(t, r.Write(&b))
		again, err := ReadReport(strings.NewReader(b.String()))
		require.NoError(t, err)
		require.Len(t, again.Findings, len(r.Findings))
	})
}

// FuzzReadReport: a stranger's report is an error or a report that can be examined and compared.
func FuzzReadReport(f *testing.F) {
	var b strings.Builder
	require.NoError(f, report(sound()).Write(&b))
	f.Add(b.String())
	f.Add(`{"version":1,"host":{"gpus":[{"bus":"0000:01:00.0","p2p":{"x":"OK"}}],"rdma":[{"ports":[{"number":-1}]}]},"system":{"rdma_limits":{"x":{}}}}`)
	for _, bad := range []string{"", "{", `{"version":2}`, `{"version":1}`, `{"version":1,"host":{}}`, `{"version":"x"}`} {
		f.Add(bad)
	}
	ours := report(bare())
	f.Fuzz(func(t *testing.T, text string) {
		theirs, err := ReadReport(strings.NewReader(text))
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		Examine(theirs.Host, theirs.System, Wants{})
		Estimate(theirs.Host, theirs.System, Wants{}, DefaultDemand(64), 64)
		Compare(ours, theirs, Wants{})
		Compare(theirs, ours, Wants{})
		theirs.Add(theirs.Findings...)
		require.NoError(t, theirs.Write(&strings.Builder{}))
	})
}
