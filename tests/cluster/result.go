//go:build linux

package cluster

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Result is what the ranks reported.
type Result struct {
	launch Launch
	names  []string // of cases, in the order in which they began
	ranks  []outcome
}

// outcome is one rank's part.
type outcome struct {
	began  map[string]bool
	ended  map[string]report
	exit   exit
	killed bool
}

// exit is how a process ended.
type exit struct {
	code   int
	signal syscall.Signal
}

func (e exit) String() string {
	if e.signal != 0 {
		return fmt.Sprintf("was ended by signal %d (%v)", int(e.signal), e.signal)
	}
	return fmt.Sprintf("exited with status %d", e.code)
}

func exitOf(err error) exit {
	var e *exec.ExitError
	if errors.As(err, &e) {
		if s, ok := e.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			return exit{signal: s.Signal()}
		}
		return exit{code: e.ExitCode()}
	}
	if err != nil {
		return exit{code: -1}
	}
	return exit{}
}

func collect(l Launch, ps []*process) *Result {
	res := &Result{launch: l}
	seen := map[string]bool{}
	for _, p := range ps {
		o := outcome{began: map[string]bool{}, ended: map[string]report{}, exit: exitOf(p.err), killed: p.killed}
		for _, r := range p.reports {
			if !seen[r.Case] {
				seen[r.Case] = true
				res.names = append(res.names, r.Case)
			}
			if r.Begin {
				o.began[r.Case] = true
			} else {
				o.ended[r.Case] = r
			}
		}
		res.ranks = append(res.ranks, o)
	}
	return res
}

// judge fails what the ranks say went wrong, and what they do not say.
func (r *Result) judge(t *testing.T) {
	t.Helper()
	for rank, o := range r.ranks {
		if why := r.wrongExit(rank, o); why != "" {
			t.Errorf("rank %d %s", rank, why)
		}
	}
	if len(r.names) == 0 && len(r.launch.Dies) < len(r.ranks) {
		t.Errorf("no rank reported any case")
	}
	for _, name := range r.names {
		t.Run(name, func(t *testing.T) {
			for _, why := range r.wrong(name) {
				t.Error(why)
			}
		})
	}
}

// wrongExit says what is wrong with the way in which a rank ended, or nothing.
func (r *Result) wrongExit(rank int, o outcome) string {
	want := exit{signal: r.launch.Dies[rank]}
	switch {
	case o.killed:
		return fmt.Sprintf("did not end in %v and was killed; its last case was %q", r.launch.Timeout, r.last(o))
	case o.exit == want:
		return ""
	case o.exit.code == failedStatus:
		return "" // the case says it
	case want.signal != 0:
		return fmt.Sprintf("%v, want it to be ended by %v", o.exit, want.signal)
	}
	return fmt.Sprintf("%v during or after case %q", o.exit, r.last(o))
}

// last is the case that a rank began last.
func (r *Result) last(o outcome) string {
	for _, name := range slices.Backward(r.names) {
		if o.began[name] {
			return name
		}
	}
	return ""
}

// wrong says what is wrong with a case, rank by rank.
func (r *Result) wrong(name string) (all []string) {
	sums := map[string][]int{}
	for rank, o := range r.ranks {
		e, ended := o.ended[name]
		switch {
		case ended && e.Error != "":
			all = append(all, fmt.Sprintf("rank %d: %s", rank, e.Error))
		case ended && e.Sum != "":
			sums[e.Sum] = append(sums[e.Sum], rank)
		case ended || r.launch.Dies[rank] != 0:
		case o.began[name]:
			all = append(all, fmt.Sprintf("rank %d began and did not end: it %v", rank, o.exit))
		default:
			all = append(all, fmt.Sprintf("rank %d did not get there: it %v in case %q", rank, o.exit, r.last(o)))
		}
	}
	if len(sums) > 1 {
		var groups []string
		for s, ranks := range sums {
			groups = append(groups, fmt.Sprintf("%s on ranks %v", s, ranks))
		}
		slices.Sort(groups)
		all = append(all, "the ranks have different bits: checksum "+strings.Join(groups, ", "))
	}
	return all
}

// Cases are the names of all cases that any rank began, in order.
func (r *Result) Cases() []string { return r.names }

// Fact returns what a rank said of a case by Case.Fact, and whether it did.
func (r *Result) Fact(name string, rank int, fact string) (int64, bool) {
	n, ok := r.ranks[rank].ended[name].Facts[fact]
	return n, ok
}

// Elapsed is how long a rank took for a case, if it ended.
func (r *Result) Elapsed(name string, rank int) (time.Duration, bool) {
	e, ok := r.ranks[rank].ended[name]
	return e.Elapsed, ok
}
