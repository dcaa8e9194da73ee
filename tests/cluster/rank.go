//go:build linux

package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/comm/settings"
)

// Rank is a rank process, as its job sees it. One goroutine may use it.
type Rank struct {
	Rank, Size int
	ids        []bootstrap.ID
	reports    *json.Encoder
	failed     bool
}

// Jobs are what rank processes can do, by name.
type Jobs map[string]func(*Rank)

// Variables that tell a process that it is a rank, besides gccl's own.
const (
	jobVar = "GCCL_CLUSTER_JOB" // name of the job
	idsVar = "GCCL_CLUSTER_IDS" // unique ids of the launch's worlds
)

// reportFD is the descriptor on which a rank reports.
const reportFD = 3

// Main is the body of TestMain: it runs the tests, or in a rank process the job, and does not return. With GCCL_TEST_CONFINED=1 no process
// of the tests may look into another (Confine).
func Main(m *testing.M, jobs Jobs) {
	name, is := os.LookupEnv(jobVar)
	if !is {
		if os.Getenv("GCCL_TEST_CONFINED") == "1" {
			if err := Confine(); err != nil {
				fmt.Fprintln(os.Stderr, "cluster: GCCL_TEST_CONFINED:", err)
				os.Exit(2)
			}
		}
		os.Exit(m.Run())
	}
	job := jobs[name]
	if job == nil {
		fmt.Fprintf(os.Stderr, "cluster: no job %q in this binary\n", name)
		os.Exit(2)
	}
	r, err := newRank()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(2)
	}
	job(r)
	if r.failed {
		os.Exit(failedStatus)
	}
	os.Exit(0)
}

// failedStatus is the exit status of a rank of which a case failed: its report says more.
const failedStatus = 10

func newRank() (*Rank, error) {
	r := &Rank{reports: json.NewEncoder(os.NewFile(reportFD, "reports"))}
	var err error
	if r.Rank, err = strconv.Atoi(os.Getenv("GCCL_RANK")); err == nil {
		r.Size, err = strconv.Atoi(os.Getenv("GCCL_WORLD_SIZE"))
	}
	if err != nil {
		return nil, err
	}
	for _, text := range strings.Fields(os.Getenv(idsVar)) {
		id, err := bootstrap.ParseID(text)
		if err != nil {
			return nil, err
		}
		r.ids = append(r.ids, id)
	}
	return r, nil
}

// World returns the configuration of this rank in world i of the launch, 0 ≤ i < Launch.Worlds: each can be joined once. The rest is
// from the environment; what is wrong with that ends the process.
func (r *Rank) World(i int) comm.Config {
	c, _, err := comm.LoadConfig(settings.Process())
	if err != nil {
		r.Fatal(err)
	}
	c.Rank, c.Size, c.ID = r.Rank, r.Size, r.ids[i]
	return c
}

// Config is World(0).
func (r *Rank) Config() comm.Config { return r.World(0) }

// Fatal ends the process: nothing more can be tested on this rank.
func (r *Rank) Fatal(err error) {
	fmt.Fprintln(os.Stderr, "fatal:", err)
	os.Exit(1)
}

// Case runs a case and reports its outcome. Names must be unique within a launch, and all ranks that run a case
// must call it by the same name. It reports whether the case passed.
func (r *Rank) Case(name string, f func(*Case) error) bool {
	r.report(report{Case: name, Begin: true})
	c := &Case{}
	start := time.Now()
	err := f(c)
	e := report{Case: name, Facts: c.facts, Elapsed: time.Since(start)}
	if c.summed {
		e.Sum = fmt.Sprintf("%08x", c.sum)
	}
	if err != nil {
		r.failed = true
		e.Error = err.Error()
	}
	r.report(e)
	return err == nil
}

func (r *Rank) report(e report) {
	if err := r.reports.Encode(e); err != nil {
		r.Fatal(fmt.Errorf("report to the parent: %w", err))
	}
}

// report is a line from a rank to its parent.
type report struct {
	Case    string
	Begin   bool `json:",omitempty"` // the case begins; else it has ended
	Error   string
	Sum     string
	Facts   map[string]int64
	Elapsed time.Duration
}
