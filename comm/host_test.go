package comm

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective/tune"
)

func TestCrowd(t *testing.T) {
	on := func(threads int, cpus ...int) hello { return hello{Processors: cpus, Threads: threads} }
	for _, c := range []struct {
		name    string
		machine []hello
		want    float64
	}{
		{"two ranks, two processors", []hello{on(2, 0, 1), on(2, 0, 1)}, 1},
		{"one rank, two processors", []hello{on(2, 0, 1)}, 0.5},
		{"three ranks, two processors", []hello{on(2, 0, 1), on(2, 0, 1), on(2, 0, 1)}, 1.5},
		{"each bound to its own", []hello{on(1, 0), on(1, 1)}, 1},
		{"both bound to one", []hello{on(1, 3), on(1, 3)}, 2},
		{"a quota of one processor", []hello{on(1, 0, 1, 2, 3), on(1, 0, 1, 2, 3)}, 2},
		{"a quota of one of them", []hello{on(4, 0, 1, 2, 3), on(1, 0, 1, 2, 3)}, 2},
		{"a quota that suffices", []hello{on(2, 0, 1, 2, 3), on(2, 0, 1, 2, 3)}, 1},
		{"nothing known", []hello{{}, {}}, 2},
	} {
		require.Equal(t, c.want, crowd(c.machine), c.name)
	}
}

// Ranks of one process are no crowd, and neither are those of several machines; hosts that are one machine are.
func TestCrowdsOfMachines(t *testing.T) {
	rank := func(machine, process string) hello {
		return hello{Machine: machine, Boot: machine + process, Process: process, Processors: []int{0, 1}, Threads: 2}
	}
	require.Equal(t, 0.5, crowds([]hello{rank("a", "p"), rank("a", "p"), rank("a", "p"), rank("a", "p")}))
	require.Equal(t, 1.0, crowds([]hello{rank("a", "p"), rank("a", "q"), rank("b", "r"), rank("b", "s")}))
	require.Equal(t, 1.5, crowds([]hello{rank("a", "p"), rank("b", "q"), rank("b", "r"), rank("b", "s"), rank("b", "s")}))
}

// What messages cost is told by how many processes share a processor, and all ranks see it alike.
func TestModelsOfACrowd(t *testing.T) {
	m, err := tune.Default("shm")
	require.NoError(t, err)
	world := func(processes ...string) models {
		w := told{}
		for _, p := range processes {
			w.hellos = append(w.hellos, hello{Machine: "a", Boot: "a", Process: p, Processors: []int{0, 1}, Threads: 2, Addresses: map[string][]byte{"shm": {1}}, Model: map[string]tune.Model{"shm": m}})
		}
		got, err := w.models(func(_, _ int) bool { return true })
		require.NoError(t, err)
		return got
	}
	require.Equal(t, models{all: m}, world("p", "q"))
	require.Equal(t, models{all: m}, world("p", "p", "q", "q"))
	require.Equal(t, models{all: m.Crowded(1.5)}, world("p", "q", "r", "r"))
}

// Hosts by name alone are still one machine: who waits on one of them yields to the others.
func TestHostsOfOneMachineCrowdIt(t *testing.T) {
	n := len(processors()) + 1
	if n > 64 {
		t.Skipf("%d processors are many to outnumber", n-1)
	}
	for _, many := range []bool{true, false} {
		ranks := n
		if !many {
			ranks = min(2, n-1)
		}
		comms, errs := joinAll(t, ranks, func(r int, c *Config) { c.Transport, c.HostID = "tcp", fmt.Sprint(r) })
		for r, c := range comms {
			require.NoError(t, errs[r], "rank %d", r)
			require.Equal(t, many, c.Crowded())
			require.NoError(t, c.Close())
		}
	}
}
