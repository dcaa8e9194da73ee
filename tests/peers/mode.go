//go:build linux

package main

import (
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
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
	{"crowded", 4, "", outnumber(4)}, // on two cores
	{"shm8", 8, "", cores(8)},
	{"shm16", 16, "", cores(16)},
}

// crowded says whether ranks outnumber processors.
func (m mode) crowded() bool { return m.ranks > runtime.NumCPU() }

func modeNames() (names []string) {
	for _, m := range allModes {
		names = append(names, m.name)
	}
	return names
}

func nothing() (func(), error) { return func() {}, nil }

// cores wants a processor for each of so many ranks.
func cores(ranks int) func() (func(), error) {
	return func() (func(), error) {
		if n := runtime.NumCPU(); n < ranks {
			return nil, fmt.Errorf("it is %d ranks with a processor each, and here are %d processors", ranks, n)
		}
		return nothing()
	}
}

// outnumber wants fewer processors than ranks.
func outnumber(ranks int) func() (func(), error) {
	return func() (func(), error) {
		if n := runtime.NumCPU(); n >= ranks {
			return nil, fmt.Errorf("it is ranks that outnumber processors, and here are %d processors for %d ranks", n, ranks)
		}
		return nothing()
	}
}

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
	for _, h := range hosts { // who connects before the link carries anything is told that its peer cannot be reached
		for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			out, err := exec.Command("ip", "-n", h, "link", "show", "veth0").CombinedOutput()
			if err == nil && strings.Contains(string(out), "state UP") {
				break
			}
			if time.Since(began) > 10*time.Second {
				done()
				return nil, fmt.Errorf("veth0 of %s is not up after 10 s: %s", h, out)
			}
		}
	}
	return done, nil
}

// group is sizes that one slice measures, each with so many calls, and so many before them. For short ones these take some 10 ms together: so long
// after a rest Go's runtime looks after its threads every 20 µs, which is then every 100th call.
type group struct {
	sizes []int64
	calls int
	warm  int
}

// fewWarm is how many calls go before where a call takes long, as all of Gloo's do.
const fewWarm = 5

var groups = []group{
	{[]int64{8, 64, 512, 4 << 10}, 2000, 10000},
	{[]int64{32 << 10, 256 << 10}, 300, 500},
	{[]int64{1 << 20, 4 << 20}, 60, fewWarm},
	{[]int64{16 << 20, 64 << 20}, 9, fewWarm},
	{[]int64{256 << 20}, 5, fewWarm},
}

// within has the sizes of at most so many bytes that can be cut in as many blocks of elements as a kind has.
func (g group) within(most int64, kind string, ranks int) group {
	least := int64(4)
	if slices.Contains([]string{"all_gather", "reduce_scatter", "alltoall"}, kind) {
		least *= int64(ranks)
	}
	sizes := g.sizes
	g.sizes = nil
	for _, s := range sizes {
		if least <= s && s <= most {
			g.sizes = append(g.sizes, s)
		}
	}
	return g
}

// slice is one peer's turn.
type slice struct {
	mode  mode
	kind  string
	group group
	dir   string
}
