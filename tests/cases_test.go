package tests

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var updateCases = flag.Bool("update-cases", false, "write the names of tests into cases.md")

// caseRow is a row of cases.md: a user's case, what it is in a line, and its tests.
type caseRow struct {
	id, line string
	tests    []string // "package/folder.TestName"
}

var caseTest = regexp.MustCompile(`^TestUC(\d+)_`)

// TestCases: every test of a user's case stands in cases.md, and every test that cases.md names exists. With -update-cases the names
// are written; a new case still needs its line.
func TestCases(t *testing.T) {
	head, rows := readCases(t, "cases.md")
	found := caseTests(t, "..")
	if *updateCases {
		var b strings.Builder
		b.WriteString(head)
		lines := map[string]string{}
		for _, r := range rows {
			lines[r.id] = r.line
		}
		var ids []string
		for id := range found {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		for _, id := range ids {
			b.WriteString("| " + id + " | " + lines[id] + " | `" + strings.Join(found[id], "` `") + "` |\n")
		}
		require.NoError(t, os.WriteFile("cases.md", []byte(b.String()), 0o644))
		_, rows = readCases(t, "cases.md")
	}
	named := map[string]bool{}
	for i, r := range rows {
		if i > 0 && r.id <= rows[i-1].id {
			t.Errorf("%s stands behind %s", r.id, rows[i-1].id)
		}
		if len(r.line) < 10 {
			t.Errorf("%s: says nothing about the case", r.id)
		}
		if len(r.tests) == 0 {
			t.Errorf("%s: names no test", r.id)
		}
		for _, name := range r.tests {
			named[name] = true
			if !slices.Contains(found[r.id], name) {
				t.Errorf("%s: there is no test %s of that case", r.id, name)
			}
		}
	}
	for id, names := range found {
		for _, name := range names {
			if !named[name] {
				t.Errorf("%s: %s is not in cases.md; run go test ./tests -run TestCases -update-cases", id, name)
			}
		}
	}
}

// readCases returns what stands before the rows, and the rows.
func readCases(t *testing.T, file string) (head string, rows []caseRow) {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(line, "|")
		if len(cells) < 2 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "UC-") {
			head += line
			continue
		}
		require.Len(t, cells, 5, "row %q", line)
		r := caseRow{id: strings.TrimSpace(cells[1]), line: strings.TrimSpace(cells[2])}
		for _, name := range strings.Fields(cells[3]) {
			r.tests = append(r.tests, strings.Trim(name, "`"))
		}
		rows = append(rows, r)
	}
	return head, rows
}

// caseTests finds the tests of cases below a folder, by case.
func caseTests(t *testing.T, root string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil {
				continue
			}
			if m := caseTest.FindStringSubmatch(f.Name.Name); m != nil {
				id := "UC-" + m[1]
				found[id] = append(found[id], filepath.ToSlash(folder)+"."+f.Name.Name)
			}
		}
		return nil
	})
	require.NoError(t, err)
	for _, names := range found {
		slices.Sort(names)
	}
	require.NotEmpty(t, found)
	return found
}
