package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// file is the content of a configuration file: its keys in their order, those of tables with dots.
type file struct {
	name    string
	entries []entry
}

type entry struct {
	key   string
	value any // string, int64, bool; table for one that is opened; or what no setting can be
	line  int
}

type table struct{}

// maxFile is the longest file that is read, in bytes; maxDepth how deep tables may stand in it.
const (
	maxFile  = 64 << 10
	maxDepth = 8
)

// read returns the content of a regular file: others may never end.
func read(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes", name, maxFile)
	}
	return b, err
}

// parseFile reads JSON when the first character is a brace, and TOML otherwise. Errors begin with file and line.
func parseFile(name string, text []byte) (file, error) {
	f := file{name: name}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return f, f.json(text)
	}
	return f, f.toml(text)
}

// at is an error at a line of the file.
func (f *file) at(line int, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", f.name, line, fmt.Errorf(format, args...))
}

func (f *file) toml(text []byte) error {
	// The library's decoder knows what TOML allows, its parser where everything stands.
	var values map[string]any
	if err := toml.Unmarshal(text, &values); err != nil {
		var where *toml.DecodeError
		if errors.As(err, &where) {
			line, _ := where.Position()
			return f.at(line, "%s", strings.TrimPrefix(where.Error(), "toml: "))
		}
		return f.at(1, "%w", err)
	}
	p := unstable.Parser{}
	p.Reset(text)
	var under []string
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			keys, line := tomlKey(&p, e)
			under = keys
			value := any(table{})
			if e.Kind == unstable.ArrayTable {
				value = []any{}
			}
			f.entries = append(f.entries, entry{strings.Join(under, "."), value, line})
		case unstable.KeyValue:
			f.tomlPair(&p, e, values, under)
		}
	}
	return p.Error()
}

func tomlKey(p *unstable.Parser, e *unstable.Node) (keys []string, line int) {
	for it := e.Key(); it.Next(); {
		if line == 0 {
			line = p.Shape(it.Node().Raw).Start.Line
		}
		keys = append(keys, string(it.Node().Data))
	}
	return keys, line
}

func (f *file) tomlPair(p *unstable.Parser, e *unstable.Node, values map[string]any, under []string) {
	keys, line := tomlKey(p, e)
	keys = append(under[:len(under):len(under)], keys...)
	f.add(keys, lookUp(values, keys), line)
}

// add puts a value and, when it is an inline table, those in it.
func (f *file) add(keys []string, value any, line int) {
	inner, is := value.(map[string]any)
	if !is {
		f.entries = append(f.entries, entry{strings.Join(keys, "."), value, line})
		return
	}
	f.entries = append(f.entries, entry{strings.Join(keys, "."), table{}, line})
	if len(keys) >= maxDepth {
		return // unknown already
	}
	for _, k := range slices.Sorted(maps.Keys(inner)) {
		f.add(append(keys[:len(keys):len(keys)], k), inner[k], line)
	}
}

// lookUp finds a value by its path; one inside a list of tables is not found, and the list is an error anyway.
func lookUp(values map[string]any, keys []string) any {
	var v any = values
	for _, k := range keys {
		m, is := v.(map[string]any)
		if !is {
			return nil
		}
		v = m[k]
	}
	return v
}

func (f *file) json(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	line := func() int { return 1 + bytes.Count(text[:min(int(d.InputOffset()), len(text))], []byte("\n")) }
	wrong := func(err error) error {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return f.at(1+bytes.Count(text[:min(int(syntax.Offset), len(text))], []byte("\n")), "%w", err)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return f.at(1+bytes.Count(text, []byte("\n")), "the file ends in the middle")
		}
		return f.at(line(), "%w", err)
	}
	if _, err := d.Token(); err != nil { // the brace
		return wrong(err)
	}
	seen := map[string]bool{}
	var object func(under []string) error
	object = func(under []string) error {
		for d.More() {
			t, err := d.Token()
			if err != nil {
				return wrong(err)
			}
			keys := append(under[:len(under):len(under)], t.(string))
			key, at := strings.Join(keys, "."), line()
			if seen[key] {
				return f.at(at, "key %s is there twice", key)
			}
			seen[key] = true
			if t, err = d.Token(); err != nil {
				return wrong(err)
			}
			switch v := t.(type) {
			case json.Delim:
				if v == '[' {
					f.entries = append(f.entries, entry{key, []any{}, at})
					for depth := 1; depth > 0; {
						if t, err = d.Token(); err != nil {
							return wrong(err)
						}
						switch t {
						case json.Delim('['), json.Delim('{'):
							depth++
						case json.Delim(']'), json.Delim('}'):
							depth--
						}
					}
					continue
				}
				if len(keys) >= maxDepth {
					return f.at(at, "tables stand more than %d deep", maxDepth)
				}
				f.entries = append(f.entries, entry{key, table{}, at})
				if err := object(keys); err != nil {
					return err
				}
			case json.Number:
				f.entries = append(f.entries, entry{key, number(v), at})
			default:
				f.entries = append(f.entries, entry{key, v, at})
			}
		}
		if _, err := d.Token(); err != nil { // the closing brace
			return wrong(err)
		}
		return nil
	}
	if err := object(nil); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return f.at(line(), "something stands after the closing brace")
	}
	return nil
}

func number(n json.Number) any {
	if i, err := n.Int64(); err == nil {
		return i
	}
	x, err := n.Float64()
	if err != nil {
		return n.String() // too large for anything
	}
	return x
}
