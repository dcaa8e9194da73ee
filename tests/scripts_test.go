package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A pattern that selects nothing passes: each alternative of those in scripts selects some test.
func TestScriptsSelectTests(t *testing.T) {
	root := ".."
	var names, scripts []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && path != root && strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci" {
				return filepath.SkipDir
			}
			return err
		}
		if strings.HasSuffix(path, "_test.go") {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w+)`).FindAllSubmatch(text, -1) {
				names = append(names, string(m[1]))
			}
		}
		if strings.HasSuffix(path, ".sh") || d.Name() == "Makefile" || d.Name() == "run" {
			scripts = append(scripts, path)
		}
		return nil
	}))
	all := strings.Join(names, "\n")
	found := 0
	for _, path := range scripts {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`-(?:test\.)?(?:run|skip)[ =]'?([\w$^|.]+)`).FindAllSubmatch(text, -1) {
			for _, one := range strings.Split(string(m[1]), "|") {
				if one == "^$$" || one == "." {
					continue // none, or all
				}
				found++
				if !regexp.MustCompile("(?m)" + one).MatchString(all) {
					t.Errorf("%s asks for %s: no test is called %s", path, m[1], one)
				}
			}
		}
	}
	require.Greater(t, found, 20)
}
