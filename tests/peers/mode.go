//go:build linux

package main

import (
	"fmt"
	"os/exec"
)

var allKinds = []string{"all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv"}

// mode is how many ranks reach each other how.
type mode struct {
	name  string
	ranks int
	net   string // "": shared memory
	setUp func() (done func(), err error)
}

var allModes = []mode{
	{"shm", 2, "", nothing},
	{"tcp", 2, "loopback", nothing},
	{"veth", 2, "veth", twoHosts},
	{"crowded", 4, "", nothing}, // on two cores
}

func modeNames() (names []string) {
	for _, m := range allModes {
		names = append(names, m.name)
	}
	return names
}

func nothing() (func(), error) { return func() {}, nil }

// hosts are the addresses of the two ranks of mode veth, and the names of their network namespaces.
var hosts = []string{"10.77.0.1", "10.77.0.2"}

// twoHosts makes two network namespaces with a veth between them.
func twoHosts() (done func(), err error) {
	done = func() {
		for _, h := range hosts {
			exec.Command("ip", "netns", "del", h).Run()
		}
	}
	done()
	steps := [][]string{{"netns", "add", hosts[0]}, {"netns", "add", hosts[1]},
		{"-n", hosts[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", hosts[1]}}
	for _, h := range hosts {
		steps = append(steps, []string{"-n", h, "addr", "add", h + "/24", "dev", "veth0"}, []string{"-n", h, "link", "set", "veth0", "up"}, []string{"-n", h, "link", "set", "lo", "up"})
	}
	for _, s := range steps {
		if out, err := exec.Command("ip", s...).CombinedOutput(); err != nil {
			done()
			return nil, fmt.Errorf("ip %v: %w: %s", s, err, out)
		}
	}
	return done, nil
}

// group is sizes that one slice measures, each with so many calls.
type group struct {
	sizes []int64
	calls int
}

var groups = []group{
	{[]int64{8, 64, 512, 4 << 10}, 2000},
	{[]int64{32 << 10, 256 << 10}, 300},
	{[]int64{1 << 20, 4 << 20}, 60},
	{[]int64{16 << 20, 64 << 20}, 9},
	{[]int64{256 << 20}, 5},
}

func (g group) upTo(most int64) group {
	var sizes []int64
	for _, s := range g.sizes {
		if s <= most {
			sizes = append(sizes, s)
		}
	}
	return group{sizes, g.calls}
}

// slice is one peer's turn.
type slice struct {
	mode  mode
	kind  string
	group group
	dir   string
	probe float64
}
