//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/tests/cluster"
	"github.com/gccl-project/gccl/topology"
)

// nodes are the numbers of the NUMA nodes that have processors, with those: of what the process may use of either.
func nodes() (numbers []int, processors []topology.CPUSet, err error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, nil, err
	}
	var may [2]topology.CPUSet // memory of which nodes, and which processors
	for i, name := range []string{"Mems_allowed_list", "Cpus_allowed_list"} {
		list := regexp.MustCompile(name + `:\s*(\S+)`).FindSubmatch(status)
		if list == nil {
			return nil, nil, fmt.Errorf("/proc/self/status has no %s", name)
		}
		if may[i], err = topology.ParseCPUList(string(list[1])); err != nil {
			return nil, nil, err
		}
	}
	for _, n := range may[0].List() {
		text, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", n))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, nil, err
		}
		set, err := topology.ParseCPUList(strings.TrimSpace(string(text)))
		if err != nil {
			return nil, nil, err
		}
		if set = set.And(may[1]); set.Len() > 0 {
			numbers, processors = append(numbers, n), append(processors, set)
		}
	}
	return numbers, processors, nil
}

// stay ties all threads of the process to these processors.
func stay(processors ...int) error {
	var set unix.CPUSet
	for _, n := range processors {
		set.Set(n)
	}
	threads, err := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		if e := unix.SchedSetaffinity(id, &set); e != nil && e != unix.ESRCH {
			err = e
		}
	}
	return err
}

// placed is the job of a rank that is tied to a NUMA node.
func placed(r *cluster.Rank) {
	r.Case("near", func(*cluster.Case) error {
		numbers, processors, err := nodes()
		if err != nil {
			return err
		}
		if err := stay(processors[r.Config().Rank].List()...); err != nil {
			return err
		}
		c, err := comm.New(background, r.Config())
		if err != nil {
			return err
		}
		defer c.Close()
		if err := errors.Join(right(c, sliceMemory), right(c, allocMemory)); err != nil {
			return err
		}
		own, err := comm.AllocSlice[byte](c, 4<<20)
		if err != nil {
			return err
		}
		clear(own)
		pages, err := sharedPages()
		if err != nil {
			return err
		}
		mine, found := uint64(uintptr(unsafe.Pointer(&own[0]))), false
		var all []int
		for _, m := range pages {
			if len(m.on) != 1 {
				return fmt.Errorf("what is shared at %#x has pages on the nodes %v", m.at, m.on)
			}
			if mine >= m.at && mine < m.end {
				if found = true; m.on[0] != numbers[c.Rank()] {
					return fmt.Errorf("our own memory at %#x is on node %d, and we are on %d", m.at, m.on[0], numbers[c.Rank()])
				}
			}
			all = append(all, m.on[0])
		}
		if !found {
			return fmt.Errorf("our own memory, %#x, is in none of the %d mappings that have pages", mine, len(pages))
		}
		slices.Sort(all)
		if all = slices.Compact(all); len(all) != c.Size() { // what we read of the other is where it is
			return fmt.Errorf("the memory of %d ranks is on the nodes %v", c.Size(), all)
		}
		return nil
	})
}

// mapped is a mapping of a segment, and the nodes that its pages are on.
type mapped struct {
	at, end uint64
	on      []int
}

var (
	mapLine  = regexp.MustCompile(`(?m)^([0-9a-f]+)-([0-9a-f]+) .*/memfd:gccl`)
	nodeLine = regexp.MustCompile(`(?m)^([0-9a-f]+) .*/memfd:gccl.*$`)
	onNode   = regexp.MustCompile(` N([0-9]+)=[1-9]`)
)

// sharedPages finds the mappings of segments that have pages.
func sharedPages() (all []mapped, err error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	lines, err := os.ReadFile("/proc/self/numa_maps")
	if err != nil {
		return nil, err
	}
	number := func(text string) uint64 {
		n, e := strconv.ParseUint(text, 16, 64)
		err = errors.Join(err, e)
		return n
	}
	ends := map[uint64]uint64{}
	for _, m := range mapLine.FindAllStringSubmatch(string(maps), -1) {
		ends[number(m[1])] = number(m[2])
	}
	for _, line := range nodeLine.FindAllStringSubmatch(string(lines), -1) {
		m := mapped{at: number(line[1])}
		m.end = ends[m.at]
		for _, n := range onNode.FindAllStringSubmatch(line[0], -1) {
			node, _ := strconv.Atoi(n[1])
			m.on = append(m.on, node)
		}
		if len(m.on) > 0 {
			all = append(all, m)
		}
	}
	return all, err
}

// TestMemoryIsNear: what a rank that is tied to a NUMA node shares with others lies there, its slots as well as what it was given: each rank's is on
// its own.
func TestMemoryIsNear(t *testing.T) {
	numbers, _, err := nodes()
	require.NoError(t, err)
	if len(numbers) < 2 {
		cluster.Lacking(t, "numa", "the process may use %d NUMA nodes; the machine of make test-rdma has two", len(numbers))
	}
	res := cluster.Run(t, cluster.Launch{Job: "placed", Ranks: 2, Env: []string{"GCCL_TRANSPORT=shm"}})
	require.Equal(t, []string{"near"}, res.Cases())
}
