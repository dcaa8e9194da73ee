// Package recorder joins the records that the ranks of a failed job left, and says who waits for whom.
package recorder

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/gccl-project/gccl/comm"
)

// Read reads one record. An error names the file and what is wrong with it.
func Read(path string) (comm.Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return comm.Record{}, err
	}
	defer f.Close()
	return Decode(path, f)
}

// maxRecord bounds a record in bytes; those that gccl writes have at most a few hundred kilobytes.
const maxRecord = 64 << 20

// Decode reads the record that r holds; name stands for it in errors.
func Decode(name string, r io.Reader) (comm.Record, error) {
	var rec comm.Record
	d := json.NewDecoder(io.LimitReader(r, maxRecord))
	d.DisallowUnknownFields()
	if err := d.Decode(&rec); err != nil {
		return rec, fmt.Errorf("%s is no record of gccl: %w", name, err)
	}
	if rec.Size < 1 || rec.Size > 1<<20 || rec.Rank < 0 || rec.Rank >= rec.Size {
		return rec, fmt.Errorf("%s is no record of gccl: rank %d of %d", name, rec.Rank, rec.Size)
	}
	return rec, nil
}

// World is what the records of one communicator say together.
type World struct {
	Comm    string
	Size    int
	Ranks   map[int]comm.Record // by rank; the newest where there are several
	Missing []int               // ranks without a record
	Blame   []int               // ranks that others wait for, while they themselves wait for nobody
	Named   []int               // ranks that the failures name, in order
	Circle  []int               // ranks that wait for each other, if there are such
}

// Join sorts records by communicator and finds in each whom the others wait for.
func Join(records []comm.Record) []World {
	worlds := map[string]*World{}
	for _, r := range records {
		w := worlds[r.Comm]
		if w == nil {
			w = &World{Comm: r.Comm, Size: r.Size, Ranks: map[int]comm.Record{}}
			worlds[r.Comm] = w
		}
		if old, ok := w.Ranks[r.Rank]; !ok || old.Time.Before(r.Time) {
			w.Ranks[r.Rank] = r
		}
	}
	var out []World
	for _, w := range worlds {
		w.judge()
		out = append(out, *w)
	}
	slices.SortFunc(out, func(a, b World) int { return strings.Compare(a.Comm, b.Comm) })
	return out
}

// waits returns the ranks that rank waits for, in order, each once.
func (w *World) waits(rank int) []int {
	var out []int
	for _, l := range w.Ranks[rank].Lanes {
		if l.Waits >= 0 && !slices.Contains(out, l.Waits) {
			out = append(out, l.Waits)
		}
	}
	slices.Sort(out)
	return out
}

func (w *World) judge() {
	waitedFor := map[int]bool{}
	for r := range w.Size {
		if _, ok := w.Ranks[r]; !ok {
			w.Missing = append(w.Missing, r)
		}
		for _, p := range w.waits(r) {
			waitedFor[p] = true
		}
		w.Named = append(w.Named, w.Ranks[r].Culprit...)
	}
	slices.Sort(w.Named)
	w.Named = slices.Compact(w.Named)
	for r := range w.Size {
		if waitedFor[r] && len(w.waits(r)) == 0 {
			w.Blame = append(w.Blame, r)
		}
	}
	if len(w.Blame) == 0 {
		w.Circle = w.circle()
	}
}

// circle returns ranks each of which waits for the next, and the last for the first.
func (w *World) circle() []int {
	for start := range w.Size {
		var path []int
		for r := start; ; {
			if i := slices.Index(path, r); i >= 0 {
				return path[i:]
			}
			path = append(path, r)
			next := w.waits(r)
			if len(next) == 0 {
				break
			}
			r = next[0]
		}
	}
	return nil
}

// Print says it for people.
func (w *World) Print(out io.Writer) {
	fmt.Fprintf(out, "communicator %s of %d ranks\n", w.Comm, w.Size)
	for r := range w.Size {
		rec, ok := w.Ranks[r]
		if !ok {
			fmt.Fprintf(out, "  rank %d: no record\n", r)
			continue
		}
		fmt.Fprintf(out, "  rank %d (%s): ", r, rec.Place)
		var last *comm.RecordedCall
		for i := range rec.Calls {
			if rec.Calls[i].Peer < 0 {
				last = &rec.Calls[i]
			}
		}
		switch {
		case len(rec.Lanes) > 0:
			fmt.Fprintf(out, "in %s, sequence %d, waits for ranks %v\n", rec.Lanes[0].Call, rec.Lanes[0].Seq, w.waits(r))
			for _, l := range rec.Lanes {
				fmt.Fprintf(out, "    lane %d, round %d of %d, op %d of %d: %s\n", l.Lane, l.Round+1, l.Rounds, l.Op, l.Ops, l.Doing)
			}
		case last != nil:
			fmt.Fprintf(out, "in no call; its last was %s, sequence %d\n", last.Call, last.Seq)
		default:
			fmt.Fprintf(out, "has called nothing\n")
		}
		if rec.Failure != "" {
			fmt.Fprintf(out, "    failed: %s\n", rec.Failure)
		}
	}
	var idle, lost []int
	for _, r := range w.Blame {
		if _, ok := w.Ranks[r]; ok {
			idle = append(idle, r)
		} else {
			lost = append(lost, r)
		}
	}
	if len(lost) > 0 {
		fmt.Fprintf(out, "  others wait for ranks %v, of which there is no record: were they killed, or are their records on another host? begin there\n", lost)
	}
	switch {
	case len(idle) > 0:
		fmt.Fprintf(out, "  others wait for ranks %v, which wait for nobody: begin there\n", idle)
	case len(lost) > 0:
	case len(w.Circle) > 0:
		fmt.Fprintf(out, "  ranks %v wait for each other in a circle\n", w.Circle)
	default:
		fmt.Fprintf(out, "  nobody waits\n")
	}
	if len(w.Named) > 0 && !slices.Equal(w.Named, w.Blame) {
		fmt.Fprintf(out, "  the failures name ranks %v: begin there\n", w.Named)
	}
}
