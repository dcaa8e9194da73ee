package doctor

import (
	"cmp"
	"slices"
)

// Finding is the result of one check, of the host or of one of its devices.
type Finding struct {
	ID    string `json:"id"`           // which check, see [Checks]
	Of    string `json:"of,omitempty"` // the device, where there may be several
	Level Level  `json:"level"`
	Seen  string `json:"seen"`
	Why   string `json:"why"`           // why it matters
	Fix   string `json:"fix,omitempty"` // the command or setting that mends it
}

// Level is how bad a finding is.
type Level string

// The levels.
const (
	Fail    Level = "fail"    // something that gccl would use doesn't work
	Warn    Level = "warn"    // it works, slowly or not for long
	Unknown Level = "unknown" // it could not be read
	Info    Level = "info"    // good to know
	OK      Level = "ok"
)

// Levels returns all levels, the worst first.
func Levels() []Level { return []Level{Fail, Warn, Unknown, Info, OK} }

// Count returns how many findings have a level.
func Count(findings []Finding, l Level) int {
	n := 0
	for _, f := range findings {
		if f.Level == l {
			n++
		}
	}
	return n
}

// sorted orders findings as the checks are, the worst of each first, and tells of each why it matters.
func sorted(findings []Finding) []Finding {
	at := func(f Finding) int { return slices.IndexFunc(checks, func(c Check) bool { return c.ID == f.ID }) }
	for i, f := range findings {
		findings[i].Why = checks[at(f)].Why
	}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(at(a)-at(b), slices.Index(Levels(), a.Level)-slices.Index(Levels(), b.Level))
	})
	return findings
}
