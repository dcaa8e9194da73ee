// Package tests holds what is tested across packages.
package tests

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/gccl-project/gccl"

// may lists for every package of ours which others of ours it may import, and which modules. Whatever it
// imports besides is the standard library's. "x/..." stands for all packages below x too. A package that
// isn't here has no place in the house yet: give it one.
//
// Some rows are for packages that are yet to come; they are part of the plan.
var may = map[string][]string{
	"kernels":        {},
	"topology":       {},
	"bootstrap/auth": {},

	"bootstrap/handover": {},

	"collective": {},
	"bootstrap":  {"bootstrap/auth", "golang.org/x/sys", "golang.org/x/sync"},

	"bootstrap/bootstraptest": {"bootstrap", "bootstrap/auth"},

	"topology/topologytest": {},

	"topology/doctor":     {"topology"},
	"topology/nvml":       {"topology"},
	"kernels/cpu":         {"kernels", "golang.org/x/sys", "github.com/klauspost/cpuid"},
	"kernels/kernelstest": {"kernels"},
	"kernels/cuda":        {"kernels", "kernels/cuda/internal/cu"},
	"transport":           {"kernels"},

	"transport/transporttest":   {"kernels", "transport", "golang.org/x/sys", "github.com/stretchr/testify"},
	"transport/faulty":          {"kernels", "transport"},
	"transport/mem":             {"kernels", "transport"},
	"transport/spin":            {},
	"transport/shm":             {"kernels", "kernels/cpu", "transport", "transport/spin", "golang.org/x/sys"}, // copies past the caches, asks for lines ahead
	"transport/tcp":             {"kernels", "transport", "bootstrap/auth", "golang.org/x/sys"},
	"transport/verbs":           {"kernels", "transport", "transport/verbs/...", "bootstrap/auth", "golang.org/x/sys"},
	"transport/p2p":             {"kernels", "transport", "kernels/cuda", "golang.org/x/sys"},
	"collective/sim":            {"collective", "topology"},
	"collective/tune":           {"collective", "collective/sim", "topology"},
	"collective/engine":         {"collective", "transport", "transport/spin", "kernels", "kernels/cpu", "golang.org/x/sys"},
	"collective/gpu":            {"collective", "kernels", "kernels/cuda"},
	"transport/verbs/internal/": {},
	"kernels/cuda/internal/":    {},
	"kernels/cuda/cudatest":     {"kernels", "kernels/cuda", "kernels/cuda/internal/cu", "github.com/stretchr/testify"},

	"comm/settings": {"github.com/pelletier/go-toml"},

	"comm":    {"comm/settings", "kernels/...", "topology/...", "bootstrap/...", "collective/...", "transport/...", "golang.org/x/sys", "golang.org/x/sync"},
	"comm/kv": {"comm", "kernels/...", "topology/...", "bootstrap/...", "collective/...", "transport/...", "golang.org/x/sys", "golang.org/x/sync"},

	"examples/":          {"comm", "kernels"},
	"examples/gpu":       {"bootstrap", "comm", "kernels", "kernels/cuda", "golang.org/x/sync"},
	"cmd/gccl":           {"...", "github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/sys"},
	"cmd/gccl/bench":     {"...", "golang.org/x/sys", "golang.org/x/sync"},
	"cmd/gccl/launch":    {"golang.org/x/sys"},
	"cmd/gccl/recorder":  {"comm", "collective/engine"},
	"cmd/gccl/topo":      {"topology"},
	"cmd/gccl/reference": {"kernels"}, // shares the words, not the arithmetic, with what it checks
	"cmd/libnccl":        {"..."},
	"tests":              {"...", "golang.org/x/sys"},
	"tests/":             {"...", "golang.org/x/sys"},
	"tests/peers":        {"cmd/gccl/bench", "gonum.org/v1/plot", "golang.org/x/sys"}, // runs gccl as its users do, as a process; from bench are the words for sizes
}

// Tests may import these besides; they stand below what they test as little as it does.
var testsMay = []string{
	"github.com/stretchr/testify", "golang.org/x/sys", "golang.org/x/sync",
	"kernels/...", "transport", "transport/transporttest", "transport/mem", "bootstrap/bootstraptest", "topology/topologytest",
}

// mayC lists the packages that may hold C.
var mayC = []string{"transport/verbs/internal/ibv", "kernels/cuda/internal/cu", "topology/nvml", "cmd/libnccl", "tests/gpu/nccl"}

// mayUnsafe lists the files, and packages with all their files, that may import unsafe. Tests may as well.
var mayUnsafe = []string{
	"cmd/gccl/bench/buffer.go", "cmd/gccl/bench/device.go", "cmd/gccl/bench/link.go", "cmd/gccl/bench/page.go",
	"collective/plan.go", // Sizeof only
	"collective/engine/lane.go", "collective/engine/relay.go", "collective/engine/short.go", "collective/engine/sleep_linux.go", "collective/engine/task.go",
	"examples/gpu/",
	"collective/gpu/", // device addresses, which it adds up and never follows
	"comm/alloc.go", "comm/do.go", "comm/prepare.go", "comm/batch.go", "comm/proxied.go", "comm/proxy.go", "comm/trips.go",
	"topology/nvml/library.go",
	"kernels/mem.go", "kernels/factor.go", "kernels/number.go", "kernels/cpu/", "kernels/kernelstest/",
	"transport/transport.go", "transport/transporttest/",
	"transport/mem/", "transport/shm/", "transport/tcp/",
	"transport/verbs/", "transport/p2p/", "kernels/cuda/", "cmd/libnccl/", "tests/gpu/nccl/",
	"tests/cluster/confine.go",
}

// No folder is called that: the name would not say what is in it.
var badNames = []string{"util", "utils", "helper", "helpers", "common", "misc", "base", "shared", "lib", "types", "pkg"}

// goFile is what the tests want to know of a file, whatever system it is for.
type goFile struct {
	path    string // from the repository's root, with slashes
	pkg     string // its folder
	test    bool
	imports []string
}

// goFiles returns the repository's Go files. Nested modules and what the go command ignores are left out.
func goFiles(t *testing.T) (files []goFile, folders []string) {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(root, "go.mod"))
	set := token.NewFileSet()
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		name := d.Name()
		if d.IsDir() {
			if rel == "." {
				return nil
			}
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "vendor" || rel == "bin" || rel == "build" || nested == nil {
				return fs.SkipDir
			}
			folders = append(folders, rel)
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasPrefix(name, "_") || strings.HasPrefix(name, ".") {
			return nil
		}
		f, err := parser.ParseFile(set, path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		file := goFile{path: rel, pkg: strings.TrimSuffix(strings.TrimSuffix(rel, name), "/"), test: strings.HasSuffix(name, "_test.go")}
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			file.imports = append(file.imports, p)
		}
		files = append(files, file)
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files, folders
}

// rule returns the row of a package: its own, or one of a folder above that ends in a slash.
func rule(pkg string) ([]string, bool) {
	if list, ok := may[pkg]; ok {
		return list, true
	}
	for at := strings.LastIndexByte(pkg, '/'); at >= 0; at = strings.LastIndexByte(pkg[:at], '/') {
		if list, ok := may[pkg[:at+1]]; ok {
			return list, true
		}
	}
	return nil, false
}

// admits reports whether one of the entries stands for an import.
func admits(list []string, path string) bool {
	ours, isOurs := strings.CutPrefix(path, module+"/")
	for _, entry := range list {
		below, all := strings.CutSuffix(entry, "...")
		below = strings.TrimSuffix(below, "/")
		switch {
		case all && isOurs && (below == "" || ours == below || strings.HasPrefix(ours, below+"/")),
			isOurs && ours == entry,
			!isOurs && (path == entry || strings.HasPrefix(path, entry+"/")):
			return true
		}
	}
	return false
}

// isStandard reports whether a package is the standard library's: its first element has no dot.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func TestImportsFollowTheHouse(t *testing.T) {
	files, _ := goFiles(t)
	for _, f := range files {
		list, known := rule(f.pkg)
		if !known {
			t.Errorf("%s: package %s has no row in the table of tests/deps_test.go", f.path, f.pkg)
			continue
		}
		if f.test {
			list = append(slices.Clip(list), testsMay...)
			list = append(list, f.pkg) // its external tests
		}
		for _, path := range f.imports {
			if !isStandard(path) && !admits(list, path) {
				t.Errorf("%s imports %s; package %s may import the standard library and %s", f.path, path, f.pkg, strings.Join(list, ", "))
			}
		}
	}
}

// TestTableIsADAG holds the table itself to what it is for.
func TestTableIsADAG(t *testing.T) {
	const started, done = 1, 2
	state := map[string]int{}
	var visit func(pkg string) error
	visit = func(pkg string) error {
		switch state[pkg] {
		case started:
			return fmt.Errorf("the table has a cycle through %s", pkg)
		case done:
			return nil
		}
		state[pkg] = started
		for other := range may {
			// Commands and tests may import everything, themselves apart, and nothing imports them but one another.
			if other != pkg && !strings.HasPrefix(pkg, "cmd/") && !strings.HasPrefix(pkg, "tests") && !strings.HasPrefix(other, pkg+"/internal") &&
				admits(may[pkg], module+"/"+other) {
				if err := visit(other); err != nil {
					return err
				}
			}
		}
		state[pkg] = done
		return nil
	}
	for pkg := range may {
		require.NoError(t, visit(pkg))
	}
}

func TestUnsafeAndCStandWhereTheyMay(t *testing.T) {
	files, _ := goFiles(t)
	for _, f := range files {
		if slices.Contains(f.imports, "C") && !slices.Contains(mayC, f.pkg) {
			t.Errorf("%s imports C; only %s may", f.path, strings.Join(mayC, ", "))
		}
		allowed := f.test || slices.ContainsFunc(mayUnsafe, func(entry string) bool {
			return f.path == entry || strings.HasSuffix(entry, "/") && strings.HasPrefix(f.path, entry)
		})
		if slices.Contains(f.imports, "unsafe") && !allowed {
			t.Errorf("%s imports unsafe; only these files and folders may: %s", f.path, strings.Join(mayUnsafe, ", "))
		}
	}
}

func TestFoldersHaveNames(t *testing.T) {
	_, folders := goFiles(t)
	for _, folder := range folders {
		name := folder[strings.LastIndexByte(folder, '/')+1:]
		require.NotContains(t, badNames, name, "folder %s: say what is in it", folder)
		require.NotEqual(t, "internal", folder, "internal packages stand below the package that they are for")
	}
}

// TestTheRulesCatch shows that the checks above can fail.
func TestTheRulesCatch(t *testing.T) {
	collective, _ := rule("collective")
	require.False(t, admits(collective, module+"/kernels"))
	require.False(t, admits(collective, "golang.org/x/sys/unix"))
	tcp, _ := rule("transport/tcp")
	require.True(t, admits(tcp, module+"/bootstrap/auth"))
	require.False(t, admits(tcp, module+"/bootstrap"))
	require.False(t, admits(tcp, module+"/comm"))
	comm, _ := rule("comm")
	require.True(t, admits(comm, module+"/transport/tcp"))
	require.False(t, admits(comm, module+"/cmd/gccl/bench"))
	require.False(t, admits(comm, module+"/transports"))
	_, known := rule("stuff")
	require.False(t, known)
	_, known = rule("tests/cluster")
	require.True(t, known)
	require.True(t, isStandard("encoding/binary") && !isStandard("golang.org/x/sys/unix") && isStandard("C"))
}
