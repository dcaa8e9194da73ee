// Package settings finds out what a program has been told by files and environment variables: it reads each source, checks every
// value, and says of every setting what holds and where that came from. It knows no setting itself; package comm gives
// it the table.
//
// Sources, the nearest first; the first that sets a value wins:
//
//	variables of our own    GCCL_TRANSPORT=shm
//	the configuration file  TOML or JSON, named by the caller or by GCCL_CONFIG
//	variables of NCCL's     NCCL_SOCKET_IFNAME=eth0, where NCCL's name means something here
//	~/.nccl.conf            or the file that NCCL_CONF_FILE names
//	/etc/nccl.conf
//
// A variable of NCCL's hides the same one in files, and one in the user's file that in the system's, also where it is empty, asks for the
// default (NCCL_IB_GID_INDEX=-1) or makes no sense: NCCL reads the files into an environment that it does not overwrite. An empty variable of
// our own says nothing.
//
// What is said to gccl must make sense: an unknown key, a wrong type or an impossible value is an error, with file and
// line, or the variable, and the nearest name that exists. What is said to NCCL was not meant for us and never is an error: a value that
// means something is taken, the rest is left, and Set says which.
//
//	set, err := settings.Resolve(table, others, reasons, settings.Process())
//	if err != nil {
//		return err // a line for each mistake
//	}
//	for _, v := range set.Values {
//		fmt.Println(v.Setting.Name, v.Text, v.Source)
//	}
//
// A table must have each name once. Nothing here keeps state; any goroutine may call anything.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Sources is where to look.
type Sources struct {
	Environ []string // NAME=value, as os.Environ has them; of doubles the last counts
	File    string   // the configuration file; "": the one that GCCL_CONFIG names, or none
	System  string   // NCCL's file for the whole system; "": none
}

// Process returns the sources of this process.
func Process() Sources { return Sources{Environ: os.Environ(), System: "/etc/nccl.conf"} }

// A Value is what holds of a setting.
type Value struct {
	Setting *Setting // of the table that Resolve was given
	Text    string   // as it is always written; "": not set, Setting.Default holds
	Source  string   // "GCCL_ALGO", "gccl.toml:3", "NCCL_ALGO", "/etc/nccl.conf:1"; "": not set
	Foreign bool     // it was said to NCCL
}

// A Set is all that was found.
type Set struct {
	Values []Value // in the table's order

	Honoured []string // NCCL's names that set something here: a note for each
	Ignored  []string // NCCL's variables that mean nothing here, with the reason where there is one to tell
	Warnings []string // what looks like a mistake but stops nothing
}

// ConfigVariable names the configuration file.
const ConfigVariable = "GCCL_CONFIG"

// variable is a name and value from the environment or from nccl.conf, and where it stands.
type variable struct{ name, value, source string }

// Resolve reads the sources. Others are variables of ours that are no settings, such as GCCL_RANK: a name that
// looks like a misspelt one of ours gets a warning. Reasons say why a variable of NCCL's is ignored.
//
// The error joins all mistakes in what was said to gccl, in the order of the lines; there is then no Set.
func Resolve(settings []Setting, others []string, reasons map[string]string, from Sources) (*Set, error) {
	r := resolver{settings: settings, others: append(slices.Clip(others), ConfigVariable), reasons: reasons, set: &Set{}}
	r.decided = make([]string, len(settings))
	for i := range settings {
		r.set.Values = append(r.set.Values, Value{Setting: &settings[i]})
	}
	env := environment(from.Environ)
	r.ours(env)
	file := cmp.Or(from.File, lookup(env, ConfigVariable))
	if file != "" {
		r.file(file)
	}
	if err := errors.Join(r.errs...); err != nil {
		return nil, err
	}
	for i, v := range r.set.Values {
		r.decided[i] = v.Source
	}
	r.nccl(env)
	for _, name := range []string{userConf(env), from.System} {
		if name != "" {
			r.conf(name)
		}
	}
	r.unused()
	return r.set, nil
}

// unused warns of what was set and is obeyed by nothing: a line for each reason.
func (r *resolver) unused() {
	var reasons []string
	of := map[string][]string{}
	for _, v := range r.set.Values {
		why := v.Setting.Unused
		if v.Source == "" || why == "" {
			continue
		}
		if of[why] == nil {
			reasons = append(reasons, why)
		}
		of[why] = append(of[why], fmt.Sprintf("%s (%s)", v.Setting.Name, v.Source))
	}
	for _, why := range reasons {
		r.set.Warnings = append(r.set.Warnings, fmt.Sprintf("not used in this build, %s: %s", why, strings.Join(of[why], ", ")))
	}
}

// Of returns the value of a setting by its name. It panics for a name that the table has not.
func (s *Set) Of(name string) Value {
	i := slices.IndexFunc(s.Values, func(v Value) bool { return v.Setting.Name == name })
	return s.Values[i]
}

// environment returns the variables that are set, each once, in the order of their names.
func environment(environ []string) []variable {
	last := map[string]string{}
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok {
			last[name] = value
		}
	}
	var env []variable
	for name, value := range last {
		env = append(env, variable{name, value, name})
	}
	slices.SortFunc(env, func(a, b variable) int { return strings.Compare(a.name, b.name) })
	return env
}

func lookup(env []variable, name string) string {
	for _, v := range env {
		if v.name == name {
			return v.value
		}
	}
	return ""
}

// userConf is the user's own nccl.conf.
func userConf(env []variable) string {
	if name := lookup(env, "NCCL_CONF_FILE"); name != "" {
		return name
	}
	if home := lookup(env, "HOME"); home != "" {
		return filepath.Join(home, ".nccl.conf")
	}
	return ""
}

type resolver struct {
	settings []Setting
	others   []string
	reasons  map[string]string
	set      *Set
	decided  []string // what decides each setting, so that NCCL's sources farther away do not; "": nothing yet
	errs     []error
}

// ours takes gccl's own variables.
func (r *resolver) ours(env []variable) {
	var names []string
	for _, s := range r.settings {
		names = append(names, s.Env)
	}
	names = append(names, r.others...)
	for _, v := range env {
		if v.value == "" || !strings.HasPrefix(v.name, "GCCL_") || slices.Contains(r.others, v.name) {
			continue
		}
		i := slices.IndexFunc(r.settings, func(s Setting) bool { return s.Env == v.name })
		if i < 0 {
			if n := nearest(v.name, names); n.far <= 2 {
				r.set.Warnings = append(r.set.Warnings, fmt.Sprintf("%s is no variable of gccl's and is ignored; did you mean %s?", v.name, n.word))
			}
			continue
		}
		text, err := r.settings[i].parse(v.value)
		if err != nil {
			r.errs = append(r.errs, fmt.Errorf("%s=%.80s: %w", v.name, v.value, err))
			continue
		}
		r.set.Values[i].Text, r.set.Values[i].Source = text, v.source
	}
}

// file takes the configuration file.
func (r *resolver) file(name string) {
	b, err := read(name)
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("read the configuration file: %w", err))
		return
	}
	f, err := parseFile(name, b)
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	var names []string
	for _, s := range r.settings {
		if !s.EnvOnly {
			names = append(names, s.Name)
		}
	}
	lines := map[string]int{}
	for _, e := range f.entries {
		if err := r.entry(&f, e, names, lines); err != nil {
			r.errs = append(r.errs, err)
		}
	}
}

// entry takes one key of the file. Lines are of the keys before it.
func (r *resolver) entry(f *file, e entry, names []string, lines map[string]int) error {
	var inside []string // the settings of a table of that name
	for _, n := range names {
		if rest, ok := strings.CutPrefix(n, e.key+"."); ok {
			inside = append(inside, rest)
		}
	}
	_, isTable := e.value.(table)
	switch {
	case inside != nil && isTable:
		return nil
	case inside != nil:
		return f.at(e.line, "%s is %s; want a table with %s", e.key, describe(e.value), strings.Join(inside, ", "))
	case !slices.Contains(names, e.key):
		return f.at(e.line, "unknown key %.80q; %s", e.key, suggest(e.key, names))
	}
	if before, twice := lines[e.key]; twice {
		return f.at(e.line, "key %s stands in line %d already", e.key, before)
	}
	lines[e.key] = e.line
	i := slices.IndexFunc(r.settings, func(s Setting) bool { return s.Name == e.key })
	text, err := r.settings[i].take(e.value)
	if err != nil {
		return f.at(e.line, "%s: %w", e.key, err)
	}
	if v := &r.set.Values[i]; v.Source == "" && text != "" {
		v.Text, v.Source = text, fmt.Sprintf("%s:%d", f.name, e.line)
	}
	return nil
}

// nccl takes NCCL's variables.
func (r *resolver) nccl(env []variable) {
	for _, v := range env {
		// NCCL_VERSION is which NCCL a container image has; it asks for nothing.
		if strings.HasPrefix(v.name, "NCCL_") && v.name != "NCCL_CONF_FILE" && v.name != "NCCL_VERSION" {
			r.foreign(v)
		}
	}
}

// conf takes a file of NCCL's, if it is there.
func (r *resolver) conf(name string) {
	b, err := read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		r.set.Warnings = append(r.set.Warnings, fmt.Sprintf("NCCL's configuration file is ignored: %v", err))
		return
	}
	c := parseConf(name, b)
	for _, text := range c.broken {
		r.set.Warnings = append(r.set.Warnings, text+"; the line is ignored")
	}
	for _, l := range c.lines {
		at := fmt.Sprintf("%s:%d", name, l.line)
		if !strings.HasPrefix(l.name, "NCCL_") {
			r.set.Warnings = append(r.set.Warnings, fmt.Sprintf("%s: %.60s is no variable of NCCL's and is ignored", at, l.name))
			continue
		}
		r.foreign(variable{l.name, l.value, at})
	}
}

// foreign takes what was said to NCCL, unless something nearer has decided the setting.
func (r *resolver) foreign(v variable) {
	said := fmt.Sprintf("%s=%.80s", v.name, v.value)
	if v.source != v.name {
		said = v.source + ": " + said
	}
	i := slices.IndexFunc(r.settings, func(s Setting) bool { return s.NCCL == v.name })
	if i < 0 {
		if v.value != "" {
			r.ignore(v, said)
		}
		return
	}
	s := &r.settings[i]
	text, err := s.fromNCCL(v.value)
	nearer := r.decided[i]
	if nearer == "" {
		r.decided[i] = v.source
	}
	switch {
	case err != nil:
		r.set.Warnings = append(r.set.Warnings, fmt.Sprintf("%s is ignored: %v", said, err))
	case nearer != "":
		r.set.Honoured = append(r.set.Honoured, fmt.Sprintf("%s gives way to %s", said, nearer))
	case text == "":
		r.set.Honoured = append(r.set.Honoured, fmt.Sprintf("%s leaves %s at its default", said, s.Name))
	default:
		r.set.Values[i] = Value{Setting: s, Text: text, Source: v.source, Foreign: true}
		r.set.Honoured = append(r.set.Honoured, fmt.Sprintf("%s sets %s to %s", said, s.Name, text))
	}
}

func (r *resolver) ignore(v variable, said string) {
	if v.source == v.name {
		said = v.name // the variables of a cluster are many, and their values known
	}
	if reason := r.reasons[v.name]; reason != "" {
		said += " (" + reason + ")"
	}
	if v.source != v.name {
		r.set.Warnings = append(r.set.Warnings, said+" is ignored")
		return
	}
	r.set.Ignored = append(r.set.Ignored, said)
}
