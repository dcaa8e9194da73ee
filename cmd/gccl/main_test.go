package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/cmd/gccl/bench"
	"github.com/gccl-project/gccl/comm"
)

// asCommand makes this test binary the command, also for the ranks that it starts of itself.
const asCommand = "GCCL_TEST_AS_COMMAND"

// asRank makes this test binary a rank of a job, where a launcher starts it.
const asRank = "GCCL_TEST_AS_RANK"

func TestMain(m *testing.M) {
	if os.Getenv(asRank) != "" && os.Getenv("GCCL_RANK") != "" {
		os.Exit(rank())
	}
	if os.Getenv(asCommand) != "" {
		os.Exit(gccl(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// rank is a rank of four, of which number 1 ends with 7 in the middle of the job and the last one makes no more calls then.
func rank() int {
	ctx := context.Background()
	c, err := comm.New(ctx, comm.Config{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	for i := 0; ; i++ {
		switch {
		case c.Rank() == 1 && i == 3:
			return 7
		case c.Rank() == 3 && i == 3:
			for files := []string(nil); len(files) == 0; files, _ = filepath.Glob(filepath.Join(os.Getenv("GCCL_RECORDER"), "*-3.json")) {
				time.Sleep(time.Millisecond)
			}
			return 0
		}
		if err := c.Barrier(ctx); err != nil {
			return 1
		}
	}
}

type outcome struct {
	code           int
	stdout, stderr string
}

// command runs gccl as a process, in an environment without any launcher's but what is given.
func command(t *testing.T, env []string, args ...string) outcome {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(quietEnvironment(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	late := time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
	defer late.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func quietEnvironment() []string {
	env := []string{asCommand + "=1"}
	for _, v := range os.Environ() {
		keep := true
		for _, prefix := range []string{"GCCL_", "RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "MASTER_", "OMPI_", "PMI_", "MV2_", "SLURM_", "TORCHELASTIC_"} {
			keep = keep && !strings.HasPrefix(v, prefix)
		}
		if keep {
			env = append(env, v)
		}
	}
	return env
}

func rows(t *testing.T, text string) (all []bench.Row) {
	t.Helper()
	for line := range strings.Lines(text) {
		var row bench.Row
		require.NoError(t, json.Unmarshal([]byte(line), &row), line)
		all = append(all, row)
	}
	return all
}

func TestBenchBetweenProcesses(t *testing.T) {
	for _, c := range []struct {
		name string
		args string
		want func(bench.Row) bool
	}{
		{"auto", "all_reduce -b 8 -e 64K -f 16", func(r bench.Row) bool { return r.Ranks == 2 && r.Memory == "alloc" }},
		{"tcp", "all_gather --transport tcp --ranks 3 -b 1K -e 1K", func(r bench.Row) bool { return r.Ranks == 3 && r.Transport == "tcp" }},
		{"shm", "all_reduce --transport shm -o all -d bf16,int8 -b 1000 -e 1000 --memory slice", func(r bench.Row) bool {
			return r.Transport == "shm" && r.Memory == "slice" && r.Bytes == 1000
		}},
		{"algorithm", "all_reduce --algo ring -b 1M -e 1M --ranks 4 -n 3", func(r bench.Row) bool { return r.Algo == "ring" && r.Iters == 3 }},
		{"sendrecv", "sendrecv -b 8 -e 1M -f 1024", func(r bench.Row) bool { return !r.InPlace }},
		{"barrier", "barrier", func(r bench.Row) bool { return r.Bytes == 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := command(t, nil, append([]string{"bench", "--json", "-"}, strings.Fields(c.args)...)...)
			require.Zero(t, out.code, out.stderr)
			all := rows(t, out.stdout) // and nothing but JSON
			require.NotEmpty(t, all)
			for _, row := range all {
				require.True(t, c.want(row), "%+v", row)
				require.NotNil(t, row.Wrong)
				require.Zero(t, *row.Wrong)
			}
		})
	}
}

func TestBenchTableAndFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.jsonl")
	out := command(t, nil, "bench", "all_reduce", "-b", "1K", "-e", "4K", "-f", "2", "--warmup_iters", "2", "--json", file)
	require.Zero(t, out.code, out.stderr)
	require.Empty(t, out.stderr)
	require.Contains(t, out.stdout, "# gccl bench all_reduce: world 2 ranks, 1 host")
	require.Contains(t, out.stdout, "# Avg bus bandwidth    : ")
	require.NotContains(t, out.stdout, "[1]")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Len(t, rows(t, string(text)), 6)
}

// TestOutputThatIsLostIsAnError: whoever keeps a command's output relies on its status.
func TestOutputThatIsLostIsAnError(t *testing.T) {
	record := filepath.Join(t.TempDir(), "record.json")
	require.NoError(t, os.WriteFile(record, []byte(`{"Comm":"c","Rank":0,"Size":1}`), 0o600))
	for _, args := range []string{
		"version", "config", "config --json", "topo", "topo --format json", "doctor", "doctor --json", "recorder " + record,
		"bench all_reduce -b 8 -e 8", "bench all_reduce -b 8 -e 8 --json -", "bench write_lat --transport tcp -n 1", "bench write_bw --transport tcp -n 1",
		"run -n 1 -- echo lost",
	} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip(err)
		}
		defer full.Close()
		cmd := exec.Command(os.Args[0], strings.Fields(args)...)
		cmd.Env, cmd.Stdout = quietEnvironment(), full
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		err = cmd.Run()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, args)
		require.Equal(t, 1, exit.ExitCode(), args)
		require.Contains(t, stderr.String(), "no space left", args)
	}
}

// TestBenchSeesWrongResults has a fault injected in what the ranks send.
func TestBenchSeesWrongResults(t *testing.T) {
	out := command(t, []string{"GCCL_FAULTS=transport=tcp,min=8000:flip=96"}, "bench", "all_reduce", "-b", "256K", "-e", "256K", "--transport", "tcp", "-n", "2")
	require.Equal(t, 1, out.code, out.stdout+out.stderr)
	require.NotContains(t, out.stdout, "0 OK")
	require.Contains(t, out.stdout, "FAILED")
	require.Contains(t, out.stderr, "rank 0: all_reduce of 256K")
	require.Contains(t, out.stderr, "[1] rank 1: all_reduce of 256K")
	require.Contains(t, out.stderr, "elements were wrong")
}

func TestUC93_LauncherPromisedMore(t *testing.T) {
	for _, promise := range []string{"OMPI_COMM_WORLD_SIZE=4", "SLURM_NTASKS=4", "PMI_SIZE=4"} {
		args := []string{"bench", "all_reduce", "-b", "8", "-e", "8"}
		out := command(t, []string{promise}, args...)
		require.Zero(t, out.code, out.stderr)
		require.Contains(t, out.stderr, "launcher says 4, running with 1")
		require.Contains(t, out.stderr, promise)
		require.Contains(t, out.stdout, "world 1 rank, 1 host")
		require.Contains(t, out.stdout, "a world of 1")

		out = command(t, []string{promise}, append(args, "--strict")...)
		require.Equal(t, 1, out.code)
		require.Contains(t, out.stderr, "launcher says 4, running with 1")

		out = command(t, []string{promise}, append(args, "--ranks", "2")...)
		require.Zero(t, out.code, out.stderr)
		require.Contains(t, out.stderr, "launcher says 4, running with 2")
		require.Contains(t, out.stdout, "world 2 ranks")

		out = command(t, []string{promise}, append(args, "--ranks", "4", "--strict")...)
		require.Zero(t, out.code, out.stderr)
		require.Empty(t, out.stderr)
		require.Contains(t, out.stdout, "world 4 ranks")

		// Of GPU memory all the same, before any GPU is looked for.
		out = command(t, []string{promise}, append(args, "--device", "cuda")...)
		require.Contains(t, out.stderr, "launcher says 4, running with 1")
		out = command(t, []string{promise}, append(args, "--device", "cuda", "--ranks", "2")...)
		require.Contains(t, out.stderr, "launcher says 4, running with 2")
		for _, ranks := range []string{"", "--ranks=2"} {
			out = command(t, []string{promise}, append(args, "--device", "cuda", "--strict", cmp.Or(ranks, "--seed=0"))...)
			require.Equal(t, 1, out.code)
			require.Equal(t, 1, strings.Count(out.stderr, "\n"), "nothing is tried: %s", out.stderr)
			require.Contains(t, out.stderr, "launcher says 4")
		}
	}
}

func TestUC88_BenchOfOne(t *testing.T) {
	out := command(t, nil, "bench", "all_reduce", "-o", "all", "-d", "all", "-b", "1K", "-e", "1K", "--ranks", "1", "--strict")
	require.Zero(t, out.code, out.stderr)
	require.Contains(t, out.stdout, "# a world of 1: nothing leaves the rank")
	require.NotContains(t, out.stdout, "Avg bus")
}

func TestBenchJoinsLauncher(t *testing.T) {
	// `gccl run` starts it, as anything else: it must not start ranks of its own.
	out := command(t, nil, "run", "-n", "3", "--", os.Args[0], "bench", "broadcast", "-b", "64", "-e", "64", "-r", "all")
	require.Zero(t, out.code, out.stderr)
	require.Equal(t, 1, strings.Count(out.stdout, "world 3 ranks"), out.stdout)
	out = command(t, nil, "run", "-n", "2", "--", os.Args[0], "bench", "broadcast", "--ranks", "3")
	require.Equal(t, 2, out.code)
	require.Contains(t, out.stderr, "--ranks 3, but gccl has started 2")
}

func TestUsage(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"bench", "want one of all_reduce"},
		{"bench all_reduce all_gather", "2 kinds given"},
		{"bench all-reduce", `unknown kind "all-reduce"; want one of all_reduce`},
		{"bench all_reduce -b 1KB", `"1KB" is no size; want bytes such as`},
		{"bench all_reduce -b 64M -e 1M", "-e 1M is less than -b 64M"},
		{"bench all_reduce -f 0", "want a whole number from 1"},
		{"bench all_reduce -n 0", "want a whole number from 1"},
		{"bench all_reduce -n 9999999999", "want a whole number from 1"},
		{"bench all_reduce -w -1", "want a whole number from 0"},
		{"bench all_reduce -m x", `invalid argument "x" for "-m, --agg-iters"`},
		{"bench all_reduce -b 8 -e 16 -i 0", "-i 0; want at least 1"},
		{"bench all_reduce -o xor", "want one of sum prod max min avg mulsum"},
		{"bench all_reduce -d float8", "f8e5m2 (float8e5m2, fp8_e5m2, e5m2), or all"},
		{"bench all_reduce -r 2", "-r 2; want 0 to 1"},
		{"bench all_reduce -r -1", "want a rank"},
		{"bench all_reduce --algo zigzag", `--algo "zigzag"; all_reduce has ring`},
		{"bench sendrecv --algo ring", "no algorithms to choose from"},
		{"bench all_reduce --ranks 0", "want a whole number from 1"},
		{"bench all_reduce --ranks 100000", "--ranks 100000; want 1 to 4096"},
		{"bench all_reduce --transport ib", "want one of auto, shm, tcp"},
		{"bench all_reduce --memory gpu", "want alloc or slice"},
		{"bench all_reduce --gpus 0", "--gpus with --device host"},
		{"bench all_reduce --device cuda --gpus -1", "want GPUs by their numbers, from 0, with commas between"},
		{"bench all_reduce --device cuda --gpus ,", "want GPUs by their numbers"},
		{"bench all_reduce --device cuda --gpus 99999999999999", "want GPUs by their numbers"},
		{"bench all_reduce --device cuda --gpus=", "want GPUs by their numbers"},
		{"bench all_reduce --graph --device host", "--graph with --device host"},
		{"bench all_reduce --device cuda --memory slice", "--memory with --device cuda"},
		{"bench all_reduce --device cuda --back_to_back", "--back-to-back with --device cuda"},
		{"bench all_reduce --device cuda --ranks 100000", "--ranks 100000; want 1 to 4096"},
		{"bench all_reduce --device cuda -r 2", "-r 2; want 0 to 1"},
		{"bench all_reduce -d double -b 4 -e 4", "no size from -b 4 to -e 4 holds one element of double; want a size of at least 8"},
		{"bench all_reduce -g 8", "unknown shorthand flag: 'g'"},
		{"bench sendrecv --ranks 1", "needs at least 2 ranks"},
		{"run", "no program to run"},
		{"bench", "barrier, or of one connection atomic_lat, read_bw, send_lat, write_bw, write_lat"},
		{"bench write_bandwidth", "barrier, or of one connection atomic_lat"},
		{"run -- ls", "no -n; want: gccl run -n N -- PROGRAM [ARGS], with 1 to 4096 ranks"},
		{"run -n x -- ls", `invalid argument "x" for "-n, --ranks" flag: want a number of ranks from 1 to 4096`},
		{"run -n 0 -- ls", "want a number of ranks from 1 to 4096"},
		{"run -n 4097 -- ls", "want a number of ranks from 1 to 4096"},
		{"run -n 2 --grace 0s -- ls", `invalid argument "0s" for "--grace" flag: want a duration above 0, such as 5s`},
		{"run -n 2 --grace 5 -- ls", "want a duration above 0, such as 5s"},
		{"version of", `unexpected argument "of"; want none`},
		{"config gccl.toml", `unexpected argument "gccl.toml"; did you mean --file gccl.toml?`},
		{"topo host.xml", `unexpected argument "host.xml"; did you mean --load host.xml?`},
		{"bench write_lat 64K", `unexpected argument "64K"; want none`},
		{"help walk", `unknown command "walk"; want bench, run`},
		{"walk", `unknown command "walk"; want bench, run`},
	} {
		out := command(t, nil, strings.Fields(c.args)...)
		require.Equal(t, 2, out.code, "%s: %s", c.args, out.stderr)
		require.Contains(t, out.stderr, c.says, c.args)
		require.Contains(t, out.stderr, "--help`")
		require.Empty(t, out.stdout)
	}
	for _, env := range []string{"GCCL_RANK=1", "OMPI_COMM_WORLD_SIZE=many", "GCCL_DEBUG=loud"} {
		out := command(t, []string{env}, "bench", "all_reduce", "-b", "8", "-e", "8", "--ranks", "1")
		require.Equal(t, 2, out.code, env)
		name, _, _ := strings.Cut(env, "=")
		require.Contains(t, out.stderr, name)
	}
	out := command(t, []string{"PMI_SIZE=many"}, "bench", "all_reduce", "--device", "cuda")
	require.Equal(t, 2, out.code)
	require.Contains(t, out.stderr, "PMI_SIZE")
}

// TestStatusOfSettings: whatever is set wrongly is said, with the status of what makes no sense, whoever finds it out: the command that starts
// ranks, or one of them, or one that is told of it by another.
func TestStatusOfSettings(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	require.NoError(t, os.WriteFile(garbage, []byte("garbage\n"), 0o600))
	gone := filepath.Join(dir, "gone")
	run := []string{"run", "-n", "2", "--", os.Args[0]}
	bench := []string{"bench", "all_reduce", "-b", "8", "-e", "8", "-n", "1"}
	for _, value := range []string{
		"TOPO_FILE=" + gone, "TOPO_FILE=" + garbage, "TOPO_FILE=" + dir, "CONFIG=" + gone, "CONFIG=" + garbage, "CONFIG=" + dir,
		"SHM_DIR=shm", "HOSTID=" + strings.Repeat("h", 257), "TRANSPORT=ib", "ALGO=zigzag", "SOCKET_IFNAME==", "PORT_RANGE=9-1", "CHECK=md5", "CPU=cray", "INIT_TIMEOUT=0s",
		"CALL_TIMEOUT=1", "WARN_AFTER=-1s", "DEBUG=loud", "RDMA=perhaps", "RDMA_DEVICE==", "GID_INDEX=256", "MTU=1000", "QP_COUNT=0", "P2P_LEVEL=close", "NET_GDR_LEVEL=close", "FAULTS=x", "FIRST_SEQ=x",
	} {
		for _, args := range [][]string{bench, append(slices.Clone(run), bench...)} {
			out := command(t, []string{"GCCL_" + value}, args...)
			require.Equal(t, 2, out.code, "%s %v: %s", value, args, out.stderr)
			name, text, _ := strings.Cut(value, "=")
			if name != "CONFIG" { // an error in a file names the file
				require.Contains(t, out.stderr, "GCCL_"+name)
			}
			require.Contains(t, out.stderr, text[:min(len(text), 80)])
		}
	}
	for _, env := range []string{"GCCL_SECRET_FILE=" + gone, "GCCL_SECRET_FILE=" + dir, "GCCL_SECRET=x GCCL_SECRET_FILE=" + gone, "GCCL_ROOT=host GCCL_SECRET=x", "GCCL_UNIQUE_ID=x GCCL_ROOT="} {
		// Who starts ranks gives them a secret and a root of their own: only a rank that somebody else has numbered reads these.
		out := command(t, append([]string{"GCCL_RANK=0", "GCCL_WORLD_SIZE=2", "GCCL_ROOT=127.0.0.1:9"}, strings.Fields(env)...), bench...)
		require.Equal(t, 2, out.code, "%s: %s", env, out.stderr)
		name, _, _ := strings.Cut(env, "=")
		require.Contains(t, out.stderr, name)
	}
}

// TestLaunchWithoutIPv4: where loopback has an address of IPv6 alone, ranks meet at that; where it is down that is what is said.
func TestLaunchWithoutIPv4(t *testing.T) {
	const alone = `ip link set lo up && ip addr del 127.0.0.1/8 dev lo && ip addr show lo | grep -q ::1`
	if out, err := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-c", alone).CombinedOutput(); err != nil {
		t.Skipf("unshare --net: %v: %s", err, out)
	}
	in := func(script string) outcome {
		cmd := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-c", script, os.Args[0])
		cmd.Env = quietEnvironment()
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	}
	for _, args := range []string{"bench all_reduce -b 8 -e 8", "bench all_reduce -b 8 -e 8 --transport tcp", "bench write_lat --transport tcp -n 1"} {
		out := in(alone + ` && exec "$0" ` + args)
		require.Zero(t, out.code, "%s: %s", args, out.stderr)
	}
	out := in(`ip link set lo up && ip addr del 127.0.0.1/8 dev lo && ip addr del ::1/128 dev lo; exec "$0" bench all_reduce -b 8 -e 8`)
	require.Equal(t, 1, out.code)
	require.Contains(t, out.stderr, "is the loopback interface up, and has it an address")
}

// TestExamples: the command lines that help shows are ones that the commands take.
func TestExamples(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			for _, words := range commandLines(line) {
				cmd, rest, err := newRoot().Find(words)
				require.NoError(t, err, line)
				require.NotEqual(t, "gccl", cmd.Name(), line)
				require.NoError(t, cmd.ParseFlags(rest), line)
				require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
}

// commandLines are the arguments that a line of a shell gives to gccl, and to the gccl that this starts.
func commandLines(line string) (all [][]string) {
	for _, part := range strings.Split(line, "&&") {
		part, _, _ = strings.Cut(part, ">")
		for words := strings.Fields(part); len(words) > 0; words = words[1:] {
			if words[0] == "gccl" {
				all = append(all, words[1:])
			}
		}
	}
	return all
}

// TestColumnsAreExplained: what stands over the table and in a row's JSON is what the help explains, with its unit.
func TestColumnsAreExplained(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.jsonl")
	out := command(t, nil, "bench", "broadcast", "-b", "8", "-e", "8", "-n", "1", "--json", file)
	require.Zero(t, out.code, out.stderr)
	help := command(t, nil, "bench", "--help").stdout
	_, columns, found := strings.Cut(help, "The columns")
	require.True(t, found)
	columns, _, found = strings.Cut(columns, "\n\nUsage:")
	require.True(t, found)
	var heads []string
	for line := range strings.Lines(out.stdout) {
		if strings.HasPrefix(line, "# ") && (strings.Contains(line, "algbw") || strings.Contains(line, "(GB/s)")) && strings.Contains(line, "  ") {
			heads = append(heads, strings.Fields(strings.TrimPrefix(line, "#"))...)
		}
	}
	require.Greater(t, len(heads), 20, out.stdout)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	line, _, _ := strings.Cut(string(text), "\n")
	var row map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &row))
	names := append(heads, slices.Collect(maps.Keys(row))...)
	names = append(names, slices.Collect(maps.Keys(row["time_us"].(map[string]any)))...)
	for _, name := range names {
		require.Regexp(t, `(^|[\s(,.])`+regexp.QuoteMeta(name)+`([\s),.:]|$)`, columns)
	}
}

func TestTooMuchMemoryIsAnError(t *testing.T) {
	for _, device := range []string{"host", "cuda"} {
		out := command(t, nil, "bench", "all_reduce", "-b", "8", "-e", "4194303T", "-f", "2", "--device", device)
		require.Equal(t, 1, out.code)
		require.Contains(t, out.stderr, "-e 4194303T needs ")
		require.NotContains(t, out.stderr, "panic")
		require.NotContains(t, out.stderr, "goroutine ")
	}
}

// TestRunLeavesTimeForRecords: of a job that fails every rank that is still there has its record.
func TestRunLeavesTimeForRecords(t *testing.T) {
	dir := t.TempDir()
	out := command(t, []string{asRank + "=1", "GCCL_RECORDER=" + dir}, "run", "-n", "4", "--grace", "1m", "--", os.Args[0])
	require.NotZero(t, out.code, out.stderr)
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	require.NoError(t, err)
	var numbers []string
	for _, f := range files {
		numbers = append(numbers, f[strings.LastIndex(f, "-")+1:])
	}
	require.Equal(t, []string{"0.json", "2.json", "3.json"}, numbers, out.stderr)
	joined := command(t, nil, append([]string{"recorder"}, files...)...)
	require.Zero(t, joined.code, joined.stderr)
	require.Contains(t, joined.stdout, "the failures name ranks [1]")
}

func TestRunStatus(t *testing.T) {
	out := command(t, nil, "run", "-n", "2", "--", "sh", "-c", "echo out; echo err >&2; exit $((GCCL_RANK * 5))")
	require.Equal(t, 5, out.code)
	require.Contains(t, out.stdout, "[1] out\n")
	require.Contains(t, out.stderr, "[1] err\n")
	require.Contains(t, out.stderr, "rank 1 (pid ")
	require.Equal(t, 128+9, command(t, nil, "run", "-n", "1", "--", "sh", "-c", "kill -9 $$").code)
	out = command(t, nil, "run", "-n", "1", "echo", "-n", "8")
	require.Equal(t, "[0] 8\n", out.stdout, "flags behind the program are its own")
}

// TestRunStatusOfWhatCannotBeRun is the same as a shell's: 127 for what is not there, 126 for what is.
func TestRunStatusOfWhatCannotBeRun(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "gccl-folder"), 0o755))
	require.NoError(t, os.Symlink("gccl-loop", filepath.Join(dir, "gccl-loop")))
	closed := file("gccl-closed", "#!/bin/sh\n", 0o644)
	for _, c := range []struct {
		program string
		code    int
		says    string
	}{
		{"no-such-program-of-gccl", 127, "no-such-program-of-gccl"},
		{dir + "/gccl-nothing", 127, "no such file"},
		{file("gccl-orphan", "#!/no/such/interpreter\n", 0o755), 127, "the program in its first line"},
		{"gccl-folder", 127, "not found"}, // folders in PATH are no programs
		{"", 127, "not found"},
		{dir + "/gccl-folder", 126, "is a directory"},
		{dir, 126, "is a directory"},
		{closed, 126, "permission denied"},
		{"gccl-closed", 126, closed + ": permission denied"},
		{closed + "/x", 126, "not a directory"},
		{file("gccl-garbage", "\x7fELF and so on", 0o755), 126, "exec format error"},
		{"gccl-garbage", 126, "exec format error"},
		{dir + "/gccl-loop", 126, "symbolic links"},
		{dir + "/" + strings.Repeat("a", 300), 126, "too long"},
	} {
		out := command(t, []string{"PATH=" + os.Getenv("PATH") + ":" + dir}, "run", "-n", "2", "--", c.program)
		require.Equal(t, c.code, out.code, "%q: %s", c.program, out.stderr)
		require.Contains(t, out.stderr, c.says)
		require.Equal(t, 1, strings.Count(out.stderr, "\n"), out.stderr)
	}
	here, err := os.Getwd()
	require.NoError(t, err)
	relative, err := filepath.Rel(here, dir)
	require.NoError(t, err)
	out := command(t, []string{"PATH=" + relative}, "run", "-n", "1", "--", "gccl-garbage")
	require.Equal(t, 126, out.code, out.stderr)
	require.Contains(t, out.stderr, "relative to current directory")
}

func TestUC39_RunPinsRanks(t *testing.T) {
	out := command(t, nil, "run", "-n", "2", "--pin", "--", "sed", "-n", "s/^Cpus_allowed_list:.//p", "/proc/self/status")
	require.Equal(t, 0, out.code, out.stderr)
	for _, rank := range []string{"0", "1"} {
		_, said, ok := strings.Cut(out.stderr, "["+rank+"] CPUs ")
		require.True(t, ok, out.stderr)
		list, why, _ := strings.Cut(said, ": ")
		require.Contains(t, out.stdout, "["+rank+"] "+list+"\n")
		require.Contains(t, why, "of the ranks")
	}
}

// TestStatusOfASignal interrupts commands that would take hours.
func TestStatusOfASignal(t *testing.T) {
	hours := strings.Fields("bench all_reduce -b 1M -e 1M -n 10000000")
	for _, c := range []struct {
		with syscall.Signal
		args []string
	}{
		{syscall.SIGINT, hours},
		{syscall.SIGTERM, hours},
		{syscall.SIGINT, append(slices.Clone(hours), "--ranks", "1")},
		{syscall.SIGINT, append([]string{"run", "-n", "2", "--", os.Args[0]}, hours...)},
		{syscall.SIGINT, strings.Fields("bench write_lat --transport tcp -n 100000000")},
		{syscall.SIGINT, []string{"run", "-n", "2", "--", "sh", "-c", "echo ready; exec sleep 10000"}},
	} {
		cmd := exec.Command(os.Args[0], c.args...)
		cmd.Env = quietEnvironment()
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		header := make([]byte, 64)
		_, err = stdout.Read(header) // the ranks run, or have met
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Signal(c.with))
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case err := <-done:
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, c.args)
			require.Equal(t, 128+int(c.with), exit.ExitCode(), c.args)
		case <-time.After(2 * time.Minute):
			_ = cmd.Process.Kill()
			t.Fatalf("%s: still running two minutes after %v", c.args, c.with)
		}
	}
}

// TestStatusOfFilesThatCannotBeRead is 2, of whatever command: doctor's 1 is what it found.
func TestStatusOfFilesThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	none, wrong := filepath.Join(dir, "none"), filepath.Join(dir, "wrong")
	require.NoError(t, os.WriteFile(wrong, []byte("of none of these kinds\n"), 0o600))
	for _, args := range [][]string{
		{"topo", "--load"}, {"topo", "--root"}, {"doctor", "--root"}, {"doctor", "--against"}, {"doctor", "--file"}, {"config", "--file"}, {"recorder"},
	} {
		for _, file := range []string{none, wrong, dir} {
			out := command(t, nil, append(args, file)...)
			require.Equal(t, 2, out.code, "%s %s: %s", args, file, out.stderr)
			require.Contains(t, out.stderr, file)
			require.Empty(t, out.stdout)
		}
	}
	help := command(t, nil, "help")
	require.Contains(t, help.stdout, exitStatus)
}

func TestVersion(t *testing.T) {
	out := command(t, nil, "version")
	require.Zero(t, out.code)
	require.True(t, strings.HasPrefix(out.stdout, "gccl "))
}
