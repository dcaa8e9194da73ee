//go:build linux && cgo

package verbs

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// packets is a counter of Soft-RoCE's devices.
func packets(t *testing.T, device, counter string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/sys/class/infiniband/%s/ports/1/hw_counters/%s", device, counter))
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	return n
}

// rails are two configurations, each of two ports, that two wires join in the virtual machine.
func rails(t *testing.T) (one, other Config) {
	t.Helper()
	needDevices(t, 2)
	unequalMTUs(t)
	one, other = small(), small()
	one.Devices, other.Devices = only("rxe1", "rxe3"), only("rxe2", "rxe4")
	return one, other
}

// TestStripes: a message's pieces travel over all ports and all QPs, evenly, and arrive as they were.
func TestStripes(t *testing.T) {
	one, other := rails(t)
	one.QPs = 2 // the greater number counts
	d := newDuo(t, testOptions(), one, other)
	d.pass(0, message(100))
	require.Len(t, d.conns[0].(*conn).link.queues, 4)
	require.Len(t, d.conns[1].(*conn).link.queues, 4)
	require.Equal(t, []ibv.MTU{3, 5, 3, 5}, []ibv.MTU{pathMTU(d, 0), pathMTU(d, 1), pathMTU(d, 2), pathMTU(d, 3)}, "each wire has its own")
	first, second := packets(t, "rxe1", "sent_pkts"), packets(t, "rxe3", "sent_pkts")
	posted := make([]uint32, 4)
	for i, q := range d.conns[0].(*conn).link.queues {
		posted[i] = q.posted
	}
	const n = 4 << 20
	d.pass(0, message(n))
	d.pass(1, message(n))
	first, second = packets(t, "rxe1", "sent_pkts")-first, packets(t, "rxe3", "sent_pkts")-second
	t.Logf("%d packets with MTU 1024 by one wire, %d with 4096 by the other", first, second)
	require.Greater(t, first, n/2/1024*9/10)
	require.Greater(t, second, n/2/8192*9/10)
	for i, q := range d.conns[0].(*conn).link.queues {
		require.InDelta(t, n/one.Slot/one.most()/4, q.posted-posted[i], n/float64(one.Slot*one.most())/4, "pieces of QP %d", i)
	}
}

func pathMTU(d *duo, i int) ibv.MTU {
	q := d.conns[0].(*conn).link.queues[i]
	return min(q.ours.mtu, q.peer.mtu)
}

// TestUC15_DeviceFilter: only the devices and ports that the configuration takes are used, and without any the error names them all.
func TestUC15_DeviceFilter(t *testing.T) {
	names := needDevices(t, 1)
	c := small()
	asked := 0
	c.Devices = func(name string, port int) bool {
		asked++
		return name == names[len(names)-1] && port == 1
	}
	e, err := Open(c, testOptions())
	require.NoError(t, err)
	require.GreaterOrEqual(t, asked, len(names))
	require.Len(t, e.(*endpoint).nics, 1)
	require.Equal(t, names[len(names)-1], e.(*endpoint).nics[0].device.Name())
	require.NoError(t, e.Close())
	c.Devices = only("none")
	_, err = Open(c, testOptions())
	for _, name := range names {
		require.ErrorContains(t, err, name+" port 1 is not among the devices to use")
	}
}

// TestSettingsOfPorts: what the configuration says about MTU, partition key, memory and events reaches the device, or the error says why not.
func TestSettingsOfPorts(t *testing.T) {
	needDevices(t, 1)
	c := small()
	c.MTU, c.TrafficClass, c.ServiceLevel, c.Timeout, c.Retry, c.PKey = 512, 104, 3, 12, 5, 0x7fff // the default key, as a limited member
	d := newDuo(t, testOptions(), c)
	d.pass(0, message(10_000))
	q := d.conns[0].(*conn).link.queues[0]
	a, err := q.qp.Query()
	require.NoError(t, err)
	require.Equal(t, ibv.MTU(2), a.MTU)
	require.Equal(t, []uint8{104, 12, 5}, []uint8{a.AV.TrafficClass, a.Timeout, a.Retry}, "Soft-RoCE keeps no service level")

	fails := func(change func(*Config), words ...string) {
		c := small()
		change(&c)
		_, err := Open(c, testOptions())
		for _, word := range words {
			require.ErrorContains(t, err, word)
		}
	}
	fails(func(c *Config) { c.PKey = 0x1234 }, "no partition key 0x1234, but [0xffff]", "GCCL_PKEY")
	fails(func(c *Config) { c.Pool = 4096 }, "the pool has 4096", "memory.pool_size_gb")
	if os.Getenv("GCCL_RDMA_VM") != "" {
		fails(func(c *Config) { c.HugePages = true }, "huge pages of 2 MiB", "vm.nr_hugepages=1")
		require.NoError(t, os.WriteFile("/proc/sys/vm/nr_hugepages", []byte("8"), 0))
		defer os.WriteFile("/proc/sys/vm/nr_hugepages", []byte("0"), 0)
		c := small()
		c.HugePages, c.Chunk = true, 3<<20
		c.Moderation.On = true // which Soft-RoCE cannot: it works without
		d := newDuo(t, testOptions(), c)
		d.pass(1, message(1<<20))
		require.EqualValues(t, 4<<20, d.eps[0].Stats().Memory, "two huge pages")
		free, err := os.ReadFile("/proc/sys/vm/nr_hugepages")
		require.NoError(t, err)
		require.Equal(t, "8\n", string(free))
	}
}
