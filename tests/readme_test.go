package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The README's program is the example that the tree holds, and it runs as the README says.
func TestReadmeExample(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	module, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	_, version, _ := strings.Cut(string(module), "\ngo ")
	version, _, _ = strings.Cut(version, "\n")
	require.Contains(t, string(readme), "needs Go "+version+" and Linux")

	_, rest, ok := strings.Cut(string(readme), "```go\n")
	require.True(t, ok)
	block, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	example, err := os.ReadFile("../examples/allreduce/main.go")
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(example), block), "README.md and examples/allreduce/main.go differ")

	_, rest, ok = strings.Cut(rest, "```go\n")
	require.True(t, ok)
	block, _, ok = strings.Cut(rest, "```")
	require.True(t, ok)
	example, err = os.ReadFile("../examples/gpu/main.go")
	require.NoError(t, err)
	require.True(t, strings.Contains(string(example), block), "README.md shows what is not in examples/gpu/main.go")

	dir := t.TempDir()
	for _, program := range []string{"./cmd/gccl", "./examples/allreduce"} {
		build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), program)
		build.Dir = ".."
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	out, err := exec.Command(filepath.Join(dir, "gccl"), "run", "-n", "4", "--", filepath.Join(dir, "allreduce")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	require.Equal(t, []string{
		"[0] rank 0 of 4 has [4 8 12]",
		"[1] rank 1 of 4 has [4 8 12]",
		"[2] rank 2 of 4 has [4 8 12]",
		"[3] rank 3 of 4 has [4 8 12]",
	}, lines)
}
