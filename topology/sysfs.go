package topology

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// sysfs reads a host's /sys, /proc and /dev below a root.
type sysfs struct{ root fs.FS }

// maxAttribute bounds what is read of a file: the largest are /proc/cpuinfo and configuration spaces.
const maxAttribute = 4 << 20

func (s sysfs) bytes(name string) ([]byte, error) {
	f, err := s.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxAttribute))
	if err != nil && len(b) == 0 {
		return nil, withPath(err, name)
	}
	return b, nil // a configuration space may end in an error where others than root may read no more
}

func withPath(err error, name string) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return &fs.PathError{Op: p.Op, Path: name, Err: p.Err}
	}
	return &fs.PathError{Op: "read", Path: name, Err: err}
}

// text is an attribute's text without its line end.
func (s sysfs) text(elem ...string) Fact[string] {
	b, err := s.bytes(path.Join(elem...))
	return factOf(strings.TrimSpace(string(b)), err)
}

// number is an attribute's decimal or 0x number.
func (s sysfs) number(elem ...string) Fact[int] {
	name := path.Join(elem...)
	return then(s.text(name), func(t string) (int, error) {
		n, err := strconv.ParseInt(t, 0, 64)
		if err != nil {
			return 0, fmt.Errorf("/%s holds %q, which is no number", name, shorten(t))
		}
		return int(n), nil
	})
}

// cpus is an attribute in the list form.
func (s sysfs) cpus(elem ...string) Fact[CPUSet] { return then(s.text(elem...), ParseCPUList) }

// list is the names in a folder, sorted as numbers are.
func (s sysfs) list(elem ...string) ([]string, error) {
	entries, err := fs.ReadDir(s.root, path.Join(elem...))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.SortFunc(names, compareNames)
	if len(names) > 0 {
		err = nil
	}
	return names, err
}

// numbered is the numbers n of the entries "prefixN" of a folder, ascending.
func (s sysfs) numbered(prefix string, elem ...string) ([]int, error) {
	names, err := s.list(elem...)
	var all []int
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, prefix)
		if n, bad := strconv.ParseUint(digits, 10, 31); ok && bad == nil {
			all = append(all, int(n))
		}
	}
	slices.Sort(all)
	return all, err
}

// link is where a symbolic link in sysfs leads to, from the root.
func (s sysfs) link(elem ...string) (string, error) {
	name := path.Join(elem...)
	to, err := fs.ReadLink(s.root, name)
	if err != nil {
		return "", withPath(err, name)
	}
	if path.IsAbs(to) {
		return strings.TrimPrefix(path.Clean(to), "/"), nil
	}
	return path.Join(path.Dir(name), to), nil
}

// compareNames puts mlx5_9 before mlx5_10.
func compareNames(a, b string) int {
	for i, j := 0, 0; ; {
		if i == len(a) || j == len(b) {
			return (len(a) - i) - (len(b) - j)
		}
		if isDigit(a[i]) && isDigit(b[j]) {
			m, n := i, j
			for i < len(a) && isDigit(a[i]) {
				i++
			}
			for j < len(b) && isDigit(b[j]) {
				j++
			}
			x, y := strings.TrimLeft(a[m:i], "0"), strings.TrimLeft(b[n:j], "0")
			if len(x) != len(y) {
				return len(x) - len(y)
			}
			if c := strings.Compare(x, y); c != 0 {
				return c
			}
			continue
		}
		if a[i] != b[j] {
			return int(a[i]) - int(b[j])
		}
		i++
		j++
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// shorten keeps a wrong attribute from filling an error.
func shorten(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
