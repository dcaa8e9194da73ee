package histories

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var plantFlag = flag.String("plant", "", "plant only the bugs whose names match")

// plant is a bug that histories must find: in a file, old becomes new.
type plant struct{ name, file, old, new string }

// plants are bugs of all kinds, each a slip that somebody could make.
var plants = []plant{
	{"a source is overwritten before its reader has read it", "collective/engine/lane.go",
		`if ok := n >= k.sent-o.Behind(); !ok || err != nil {`, `if ok := n >= 0; !ok || err != nil {`},
	{"a call returns before what it sent was read", "collective/engine/lane.go",
		`if n < k.sent || err != nil {`, `if n < 0 || err != nil {`},
	{"a failed call returns while its connections are open", "comm/comm.go",
		"		conn.Close()\n		delete(c.conns, k)", "		_, _ = k, conn"},
	{"lent memory is taken back unseen by its reader", "transport/mem/queue.go",
		`d.data, d.lent, d.back = d.own, false, d.shown`, `d.lent, d.back = false, false`},
	{"a message wakes nobody", "transport/mem/stream.go",
		"	c.endpoint.bytesSent.Add(uint64(b.N))\n	c.peer.wake()", "	c.endpoint.bytesSent.Add(uint64(b.N))"},
	{"the token is offered to nobody", "collective/engine/driver.go",
		"				d.parked[0].poke()\n			}\n			d.mu.Unlock()\n		}\n		if !d.events", "			}\n			d.mu.Unlock()\n		}\n		if !d.events"},
	{"credit leaks", "transport/mem/queue.go",
		"	q.flight -= d.flight\n", ""},
	{"the wrong end of a connection is blamed", "comm/cause.go",
		`c.ranks = []int{int(peer.Key.Peer)}`, `c.ranks = []int{int(peer.Key.Self)}`},
	{"the majority is convicted", "comm/diagnose.go",
		`		if calls[r] == right {`, `		if calls[r] != right {`},
	{"who failed tells nobody", "comm/watch.go",
		"	c.session.Abort(wire{why})\n	c.failPorts()\n	c.dump()\n}\n\n// whoLeft", "	c.failPorts()\n	c.dump()\n}\n\n// whoLeft"},
	{"word of a failure ends no call", "comm/watch.go",
		"	c.fail(why)\n	c.failPorts()", "	c.fail(why)"},
	{"message numbers are not looked at", "transport/mem/stream.go",
		`if d.number != s.received {`, `if d.number > s.received+1<<40 {`},
	{"a truncated message is taken for whole", "transport/mem/stream.go",
		`	if len(d.data) != n {`, `	if d.data = d.data[:n:cap(d.data)]; len(d.data) != n {`},
	{"checksums are not looked at", "transport/mem/stream.go",
		`if c.endpoint.options.Checksum && d.crc`, `if c.endpoint.options.Checksum && n < 0 && d.crc`},
	{"no deadline ends a call", "comm/watch.go",
		"	case k.since >= limits.CallTimeout:\n		c.fail", "	case k.since >= 1000*limits.CallTimeout:\n		c.fail"},
	{"the digest leaves out the reduction", "comm/prepare.go",
		`uint64(p.dtype), uint64(p.redop), `, `uint64(p.dtype), `},
	{"a goroutine is left", "collective/engine/driver.go",
		"				if !rest {\n					return", "				if !rest && d.crowded.Load() {\n					return"},
	{"Close leaves the session open", "comm/comm.go",
		`errors.Join(c.session.Close(), c.leaveGPU(), c.family.drop())`, `errors.Join(c.leaveGPU(), c.family.drop())`},
	{"silence is not noticed", "bootstrap/pulse.go",
		`own-a.heard >= p.limit {`, `own-a.heard >= 10*p.limit {`},
	{"a death fails no call", "comm/watch.go",
		`			c.fail(death)`, `			doom = nil`},
}

// apply returns the text with the plant in it.
func (p plant) apply(text []byte) ([]byte, error) {
	if n := bytes.Count(text, []byte(p.old)); n != 1 {
		return nil, fmt.Errorf("%s: %s has %d places like %q, want 1", p.name, p.file, n, p.old)
	}
	return bytes.Replace(text, []byte(p.old), []byte(p.new), 1), nil
}

const root = "../.."

// The plants fit the code as it is.
func TestPlantsFit(t *testing.T) {
	for _, p := range plants {
		text, err := os.ReadFile(filepath.Join(root, p.file))
		require.NoError(t, err)
		_, err = p.apply(text)
		require.NoError(t, err)
	}
}

var seedText = regexp.MustCompile(`-seed=(\d+) `)

// TestPlants plants each bug in a copy of the module: 2,000 histories must find it, and without the bug the seed that finds it
// must pass.
func TestPlants(t *testing.T) {
	if os.Getenv("GCCL_TEST_FULL") == "" && *plantFlag == "" {
		t.Skip("builds gccl once for each bug: only with GCCL_TEST_FULL=1")
	}
	which, err := regexp.Compile(*plantFlag)
	require.NoError(t, err)
	dir, bin := t.TempDir(), t.TempDir()
	copyModule(t, dir)
	build := func(t *testing.T, name string) string {
		out := filepath.Join(bin, name)
		cmd := exec.Command("go", "test", "-c", "-trimpath", "-vet=off", "-o", out, "./tests/histories")
		cmd.Dir = dir
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", said)
		return out
	}
	histories := func(test string, args ...string) (string, error) {
		cmd := exec.Command(test, append([]string{"-test.run=^TestHistory$", "-test.timeout=10m"}, args...)...)
		cmd.Dir = filepath.Join(dir, "tests/histories")
		said, err := cmd.CombinedOutput()
		return string(said), err
	}
	sound := build(t, "sound")
	for _, p := range plants {
		if !which.MatchString(p.name) {
			continue
		}
		t.Run(strings.ReplaceAll(p.name, " ", "_"), func(t *testing.T) {
			file := filepath.Join(dir, p.file)
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			with, err := p.apply(text)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, with, 0o644))
			defer func() { require.NoError(t, os.WriteFile(file, text, 0o644)) }()
			began := time.Now()
			said, err := histories(build(t, "planted"), "-many=2000")
			require.Error(t, err, "not found in 2,000 histories")
			m := seedText.FindStringSubmatch(said)
			require.NotNil(t, m, "it failed, but named no seed:\n%s", said)
			t.Logf("found by seed %s, %v: %s", m[1], time.Since(began).Round(time.Second), excerpt(said))
			said, err = histories(sound, "-seed="+m[1])
			require.NoError(t, err, "seed %s fails without the bug, too:\n%s", m[1], said)
		})
	}
}

// excerpt is the beginning of what a test said, which is what went wrong.
func excerpt(said string) string {
	lines := strings.Split(said, "\n")
	for i, l := range lines {
		lines[i] = l[:min(len(l), 250)]
	}
	return strings.Join(lines[:min(len(lines), 4)], "\n")
}

// copyModule copies what it takes to build the histories.
func copyModule(t *testing.T, dir string) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, rel)
		switch {
		case d.IsDir() && rel != "." && (strings.HasPrefix(d.Name(), ".") || rel == "bin"):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(to, 0o755)
		case !d.Type().IsRegular() || rel == ".git":
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, b, 0o644)
	})
	require.NoError(t, err)
}
