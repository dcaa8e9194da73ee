package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/gccl-project/gccl/topology"
)

// Report is all that is known of a host, for programs and for [Compare] on another host.
type Report struct {
	Version  int            `json:"version"` // of this form, see [ReportVersion]
	Findings []Finding      `json:"findings"`
	Summary  map[Level]int  `json:"summary"` // how many findings of each level
	Plan     *Plan          `json:"plan,omitempty"`
	Host     *topology.Host `json:"host"`
	System   *System        `json:"system"`
}

// ReportVersion is raised when a field changes its meaning; new fields don't raise it.
const ReportVersion = 1

// Add adds findings and counts them.
func (r *Report) Add(findings ...Finding) {
	r.Findings = append(r.Findings, findings...)
	r.Summary = map[Level]int{}
	for _, l := range Levels() {
		r.Summary[l] = Count(r.Findings, l)
	}
}

// Write writes a report as JSON.
func (r *Report) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// maxReport is the largest report that is read, in bytes.
const maxReport = 64 << 20

// ReadReport reads what [Report.Write] wrote. The error says what is not as expected.
func ReadReport(from io.Reader) (*Report, error) {
	b, err := io.ReadAll(io.LimitReader(from, maxReport+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxReport {
		return nil, errors.New("it is longer than 64 MiB; want the output of gccl doctor --json")
	}
	return parseReport(b)
}

func parseReport(b []byte) (*Report, error) {
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("want the output of gccl doctor --json: %w", err)
	}
	switch {
	case r.Version != ReportVersion:
		return nil, fmt.Errorf("version %d; want the output of gccl doctor --json of version %d", r.Version, ReportVersion)
	case r.Host == nil || r.System == nil:
		return nil, errors.New("it has no host or system; want the output of gccl doctor --json")
	}
	return &r, nil
}
