package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/comm/settings"
	"github.com/gccl-project/gccl/topology/doctor"
	"github.com/gccl-project/gccl/topology/topologytest"
)

func diagnosis(t *testing.T, text string) *doctor.Report {
	t.Helper()
	var r doctor.Report
	require.NoError(t, json.Unmarshal([]byte(text), &r), "nothing but JSON: %s", text)
	require.Equal(t, doctor.ReportVersion, r.Version)
	return &r
}

// finding returns the first of a check, of a device.
func finding(t *testing.T, r *doctor.Report, id, of string) doctor.Finding {
	t.Helper()
	for _, f := range r.Findings {
		if f.ID == id && f.Of == of {
			return f
		}
	}
	require.Fail(t, "no such finding", "%s %s: %+v", id, of, r.Findings)
	return doctor.Finding{}
}

// recorded is a host's folder: two sockets with RoCE cards, GPUs, and ports that redirect.
func recorded(t *testing.T, edit func(topologytest.Tree)) string {
	tree := topologytest.TwoSockets()
	tree.Put("proc/self", "limits", "Max open files            64                   64                   files\nMax locked memory         65536                65536                bytes")
	if edit != nil {
		edit(tree)
	}
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, tree.MapFS))
	return dir
}

// TestUC65_DoctorOfThisHost: whatever it lacks, there is a report, soon. Whether something fails depends on the host.
func TestUC65_DoctorOfThisHost(t *testing.T) {
	began := time.Now()
	out := command(t, nil, "doctor", "--json")
	took := time.Since(began)
	r := diagnosis(t, out.stdout)
	require.Equal(t, doctor.Count(r.Findings, doctor.Fail) > 0, out.code == 1, out.stdout)
	require.Contains(t, []int{0, 1}, out.code)
	require.Empty(t, out.stderr)
	require.Less(t, took, 20*time.Second) // it takes a tenth of a second here
	finding(t, r, "gpu", "")
	finding(t, r, "rdma", "")
	require.Contains(t, finding(t, r, "transports", "").Seen, "tcp")

	out = command(t, nil, "doctor")
	require.Contains(t, out.stdout, "transports: ")
	require.NotContains(t, out.stdout, "OK      memlock")
	require.Contains(t, command(t, nil, "doctor", "--all").stdout, " ok\n")
}

// hidden is a host that shows nothing of itself.
func hidden(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sys"), 0o755))
	return dir
}

func TestUC65_DoctorOfAHiddenHost(t *testing.T) {
	out := command(t, nil, "doctor", "--root", hidden(t), "--json")
	require.Equal(t, 0, out.code, out.stdout+out.stderr)
	r := diagnosis(t, out.stdout)
	require.Equal(t, doctor.Unknown, finding(t, r, "rdma", "").Level)
	require.Equal(t, doctor.Unknown, finding(t, r, "memlock", "").Level)
	require.Zero(t, r.Summary[doctor.Fail])
}

// TestDoctorLooksWhereRanksMeet: in the directory that GCCL_SHM_DIR names, of this host and of a recorded one.
func TestDoctorLooksWhereRanksMeet(t *testing.T) {
	dir := recorded(t, func(tree topologytest.Tree) {
		tree.Put("proc/self", "mounts", "tmpfs /dev/shm tmpfs rw,size=65536k 0 0\ntmpfs /run/gccl\\040job tmpfs rw,size=1g 0 0")
		tree.Put("dev/shm", "nccl-of-another-place", "x")
		tree.Put("run/gccl job", "gccl-leftover", "x")
	})
	out := command(t, []string{"GCCL_SHM_DIR=/run/gccl job/"}, "doctor", "--root", dir, "--all")
	require.Contains(t, out.stdout, "shm_size: /run/gccl job: 1 GiB; any size will do\n")
	require.Contains(t, out.stdout, "1 file, and it is not known here of which process: gccl-leftover\n")
	require.Contains(t, out.stdout, "rm /run/gccl job/gccl-leftover\n")
	out = command(t, []string{"GCCL_SHM_DIR=/run/none"}, "doctor", "--root", dir, "--all")
	require.Contains(t, out.stdout, "WARN    shm_size: nothing is mounted at /run/none, and there is no /run/none\n")
	require.Contains(t, out.stdout, "OK      transports: verbs between hosts, tcp\n")

	here := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(here, "gccl-leftover"), nil, 0o600))
	out = command(t, []string{"GCCL_SHM_DIR=" + here}, "doctor", "--all")
	require.Regexp(t, "shm_size: "+here+": .* free; any size will do\n", out.stdout)
	require.Contains(t, out.stdout, "gccl-leftover")
	out = command(t, []string{"GCCL_SHM_DIR=shm"}, "doctor")
	require.Equal(t, 2, out.code)
	require.Contains(t, out.stderr, `GCCL_SHM_DIR=shm: "shm"; want an absolute path`)
}

// TestDoctorTriesTheFilesThatSettingsName: as ranks would, and changes none.
func TestDoctorTriesTheFilesThatSettingsName(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"garbage": "garbage", "empty": "\n", "secret": "s3cret"} {
		require.NoError(t, os.WriteFile(in(name), []byte(text), 0o600))
	}
	require.NoError(t, os.WriteFile(in("open"), []byte("s3cret"), 0o600))
	require.NoError(t, os.Chmod(in("open"), 0o644))
	require.NoError(t, os.WriteFile(in("gccl.toml"), []byte("recorder = \""+in("gone")+"\"\n"), 0o600))
	before, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, c := range []struct{ env, level, says string }{
		{"GCCL_TOPO_FILE=" + in("gone"), "FAIL", "open " + in("gone") + ": no such file"},
		{"GCCL_TOPO_FILE=" + in("garbage"), "FAIL", in("garbage") + ": read topology"},
		{"GCCL_TOPO_FILE=" + dir, "FAIL", "is a directory"},
		{"NCCL_TOPO_FILE=" + in("gone"), "WARN", "no such file"}, // not said to us
		{"GCCL_TOPO_FILE=../../topology/testdata/topo-xml/h100x8-9nic-nvswitch.xml", "WARN", "names no GPU or network card of this host"},
		{"GCCL_TOPO_DUMP_FILE=" + in("gone/host.xml"), "WARN", "stat " + in("gone") + ": no such file"},
		{"GCCL_TOPO_DUMP_FILE=" + dir, "WARN", "is a directory"},
		{"GCCL_TOPO_DUMP_FILE=" + in("host.xml"), "OK", in("host.xml")},
		{"GCCL_RECORDER=" + in("gone"), "WARN", "no such file"},
		{"GCCL_RECORDER=" + in("garbage"), "WARN", "is no directory"},
		{"GCCL_RECORDER=" + dir, "OK", dir},
		{"GCCL_CONFIG=" + in("gccl.toml"), "WARN", "stat " + in("gone") + ": no such file"},
		{"GCCL_SECRET_FILE=" + in("gone"), "FAIL", "GCCL_SECRET_FILE: open " + in("gone") + ": no such file"},
		{"GCCL_SECRET_FILE=" + in("empty"), "FAIL", "the file is empty"},
		{"GCCL_SECRET_FILE=" + dir, "FAIL", "is a directory"},
		{"GCCL_SECRET=x GCCL_SECRET_FILE=" + in("secret"), "FAIL", "both set"},
		{"GCCL_SECRET_FILE=" + in("open"), "WARN", "others than its owner may read or change the secret"},
		{"GCCL_SECRET_FILE=" + in("secret"), "OK", in("secret")},
	} {
		out := command(t, strings.Fields(c.env), "doctor", "--all")
		var found string
		for line := range strings.Lines(out.stdout) {
			if strings.Contains(line, "setting_file") {
				found += line
			}
		}
		require.Equal(t, 1, strings.Count(found, "\n"), "%s: %s", c.env, found)
		require.True(t, strings.HasPrefix(found, c.level+" "), "%s: %s", c.env, found)
		require.Contains(t, found, c.says, c.env)
		require.NotContains(t, out.stdout, "s3cret")
		if c.level == "FAIL" {
			require.Equal(t, 1, out.code)
		}
	}
	after, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Equal(t, len(before), len(after))
	require.Contains(t, command(t, []string{"GCCL_CONFIG=" + in("gccl.toml")}, "doctor").stdout, "setting_file "+in("gccl.toml")+":1: stat")
	require.NotContains(t, command(t, []string{"GCCL_RECORDER=" + in("gone")}, "doctor", "--root", hidden(t), "--all").stdout, "setting_file", "they are of this host")

	out := command(t, []string{"GCCL_TRANSPORT=shm", "GCCL_SHM_DIR=" + in("garbage")}, "doctor")
	require.Equal(t, 1, out.code)
	require.Contains(t, out.stdout, "WARN    shm_size: ranks of this user can't make a socket in "+in("garbage")+": not a directory\n")
	require.Contains(t, out.stdout, "FAIL    transports: none")
}

func TestDoctorOfTheTransportAskedFor(t *testing.T) {
	dir := recorded(t, func(tree topologytest.Tree) { tree.Put("proc/self", "mounts", "tmpfs /dev/shm tmpfs rw 0 0") })
	for name, says := range map[string]string{
		"auto": "OK      transports: shm, verbs between hosts, tcp\n", "shm": "OK      transports: shm; GCCL_TRANSPORT=shm allows nothing else\n",
		"tcp": "OK      transports: tcp; GCCL_TRANSPORT=tcp", "verbs": "OK      transports: verbs between hosts; GCCL_TRANSPORT=verbs",
	} {
		require.Contains(t, command(t, []string{"GCCL_TRANSPORT=" + name}, "doctor", "--root", dir).stdout, says)
	}
	out := command(t, []string{"GCCL_TRANSPORT=shm", "GCCL_SHM_DIR=/run/none"}, "doctor", "--root", dir)
	require.Contains(t, out.stdout, "FAIL    transports: none: GCCL_TRANSPORT=shm allows nothing else, and this host cannot do that\n")
	dir = hidden(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "proc", "self"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "proc", "self", "mounts"), nil, 0o600))
	out = command(t, []string{"GCCL_TRANSPORT=shm"}, "doctor", "--root", dir)
	require.Contains(t, out.stdout, "FAIL    transports: none: GCCL_TRANSPORT=shm allows", "what is not known of RDMA has nothing to do with it")
	require.Contains(t, command(t, []string{"GCCL_TRANSPORT=verbs"}, "doctor", "--root", dir).stdout, "UNKNOWN transports: whether ranks can use verbs")
}

func TestDoctorOfARecordedHost(t *testing.T) {
	dir := recorded(t, nil)
	out := command(t, nil, "doctor", "--root", dir)
	require.Equal(t, 1, out.code, out.stderr)
	require.Empty(t, out.stderr)
	for _, want := range []string{
		"FAIL    memlock: memlock 64 KiB, and RDMA needs at least 64 MiB\n        why: ", "\n        fix: set ulimit -l unlimited / LimitMEMLOCK",
		"FAIL    acs 0000:a2:00.0: ACS of the port at 0000:a2:00.0 redirects (ACSCtl 0x001d); below it: 0000:a3:00.0\n",
		"WARN    iommu: ", "OK      rdma: RDMA: mlx5_0, mlx5_1\n", "OK      transports: shm, verbs between hosts, tcp\n",
	} {
		require.Contains(t, out.stdout, want)
	}
	require.NotContains(t, out.stdout, "OK      cpu_quota")
	require.Regexp(t, `\n\d+ fail, \d+ warn, \d+ unknown, \d+ ok\n$`, out.stdout)

	out = command(t, []string{"NCCL_IB_DISABLE=1"}, "doctor", "--root", dir)
	require.Contains(t, out.stdout, "OK      transports: shm, tcp\n")
	require.Contains(t, out.stdout, "INFO    rdma: not used with GCCL_RDMA=false: jobs of several hosts use TCP\n")

	out = command(t, []string{"GCCL_GID_INDEX=0", "GCCL_RDMA_DEVICE==mlx5_0", "GCCL_PORT_RANGE=42000-42003"}, "doctor", "--root", dir, "--json")
	r := diagnosis(t, out.stdout)
	require.Contains(t, finding(t, r, "rdma_gid", "mlx5_0 port 1").Seen, "index 0 was asked for")
	require.Contains(t, finding(t, r, "rdma_port", "mlx5_1 port 1").Seen, "the filter =mlx5_0 does not take it")
	require.Contains(t, finding(t, r, "firewall", "").Seen, "42000-42003")
}

func TestUC26_DoctorPlans(t *testing.T) {
	out := command(t, []string{"GCCL_TRANSPORT=tcp"}, "doctor", "--root", recorded(t, func(tree topologytest.Tree) {
		tree.Put("proc/self", "limits", "Max open files            64                   4096                   files")
	}), "--plan", "64")
	require.Contains(t, out.stdout, "INFO    plan_qps: none: RDMA is not used with GCCL_TRANSPORT=tcp; with RDMA 63 queue pairs per rank")
	require.Contains(t, out.stdout, "OK      plan_open_files: 160 open files on rank 0", "what was asked for is said where it is all right, too")
	out = command(t, []string{"GCCL_QP_COUNT=4"}, "doctor", "--root", recorded(t, nil), "--plan", "1024", "--json")
	require.Equal(t, 1, out.code, out.stderr)
	r := diagnosis(t, out.stdout)
	require.Equal(t, int64(4*1023), r.Plan.Totals.QPs)
	require.Contains(t, finding(t, r, "plan_qps", "").Seen, "4092 queue pairs per rank = (1024 - 1) peers × 4")
	f := finding(t, r, "plan_open_files", "")
	require.Equal(t, doctor.Fail, f.Level)
	require.Contains(t, f.Seen, "nofile 64 of need about 2080")
}

func TestDoctorAgainstAnotherHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "other.json")
	out := command(t, nil, "doctor", "--json", "--root", recorded(t, func(tree topologytest.Tree) {
		for name, f := range tree.MapFS {
			if filepath.Base(name) == "mtu" && filepath.Base(filepath.Dir(name)) == "eth0" {
				f.Data = []byte("1500\n")
			}
		}
	}))
	require.NoError(t, os.WriteFile(file, []byte(out.stdout), 0o600))
	out = command(t, nil, "doctor", "--root", recorded(t, nil), "--against", file)
	require.Contains(t, out.stdout, "WARN    against_rdma_mtu mlx5_0 port 1: active MTU 4096 here, 1024 there: connections use 1024")
}

func TestDoctorUsage(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.json")
	require.NoError(t, os.WriteFile(empty, []byte("{}"), 0o600))
	for says, args := range map[string][]string{
		`"-1" for "--plan" flag: want a number of ranks from 1 to 16777216`:    {"doctor", "--plan", "-1"},
		`"0" for "--plan" flag: want a number of ranks`:                        {"doctor", "--plan", "0"},
		`"many" for "--plan" flag: want a number of ranks`:                     {"doctor", "--plan", "many"},
		`unexpected argument "other.json"; did you mean --against other.json?`: {"doctor", "other.json"},
		"want the output of gccl doctor --json":                                {"doctor", "--against", empty},
		"--against /nonexistent":                                               {"doctor", "--against", "/nonexistent"},
		"no such file or directory":                                            {"doctor", "--root", filepath.Join(t.TempDir(), "none")},
		"unknown flag":                                                         {"doctor", "--jason"},
	} {
		out := command(t, nil, args...)
		require.Equal(t, 2, out.code, args)
		require.Contains(t, out.stderr, says)
		require.Empty(t, out.stdout)
	}
	out := command(t, []string{"GCCL_GID_INDEX=many"}, "doctor")
	require.Equal(t, 2, out.code)
	require.Contains(t, out.stderr, "GCCL_GID_INDEX")
}

func TestDoctorWants(t *testing.T) {
	for environ, want := range map[string]doctor.Wants{
		"":                                     {},
		"GCCL_TRANSPORT=verbs":                 {Software: true, Transport: "verbs"},
		"GCCL_TRANSPORT=auto":                  {},
		"GCCL_TRANSPORT=tcp":                   {NoRDMA: "not used with GCCL_TRANSPORT=tcp", Transport: "tcp"},
		"GCCL_RDMA=false":                      {NoRDMA: "not used with GCCL_RDMA=false"},
		"NCCL_IB_DISABLE=1":                    {NoRDMA: "not used with GCCL_RDMA=false"},
		"GCCL_RDMA=false GCCL_TRANSPORT=verbs": {Software: true, Transport: "verbs"},
	} {
		_, set, err := comm.LoadConfig(settings.Sources{Environ: strings.Fields(environ)})
		require.NoError(t, err)
		got, err := doctorWants(set)
		require.NoError(t, err)
		require.Equal(t, want, got, environ)
	}
}
