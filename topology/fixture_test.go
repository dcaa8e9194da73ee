package topology

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorded returns the path of a recorded machine's file, below the folder that GCCL_FIXTURES names.
func recorded(t *testing.T, path string) string {
	t.Helper()
	root := os.Getenv("GCCL_FIXTURES")
	if root == "" {
		t.Skip("GCCL_FIXTURES names no folder of recorded machines")
	}
	return filepath.Join(root, filepath.FromSlash(path))
}

// files returns the look-alikes below testdata and, where they are, the recorded machines' files that match a pattern.
func files(t *testing.T, pattern string) []string {
	t.Helper()
	ours, err := filepath.Glob(filepath.Join("testdata", filepath.FromSlash(pattern)))
	require.NoError(t, err)
	require.NotEmpty(t, ours)
	if root := os.Getenv("GCCL_FIXTURES"); root != "" {
		theirs, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		require.NoError(t, err)
		require.NotEmpty(t, theirs)
		ours = append(ours, theirs...)
	}
	return ours
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

func parseXML(t testing.TB, path string) *Graph {
	t.Helper()
	g, err := ParseXML(bytes.NewReader(read(t, path)))
	require.NoError(t, err, path)
	return g
}

func parseMatrix(t testing.TB, path string) *Graph {
	t.Helper()
	g, err := ParseMatrix(bytes.NewReader(read(t, path)))
	require.NoError(t, err, path)
	return g
}
