package comm_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/collective/tune"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/mem"
)

// onHosts makes ranks that think they are on hosts of these names, over TCP.
func onHosts(t testing.TB, hosts ...string) []*comm.Comm {
	return world(t, len(hosts), func(r int, c *comm.Config) { c.Transport, c.HostID = "tcp", hosts[r] })
}

// calls runs every kind by every algorithm and compares with what must come out. The values are whole numbers that sums of
// float32 keep exactly, so the order of sums doesn't show.
func calls(t *testing.T, comms []*comm.Comm) {
	n := len(comms)
	for _, count := range []int{1, 1000} {
		value := func(rank, i int) float32 { return float32(rank*1000 + i%251) }
		sum := func(i int) (s float32) {
			for r := range n {
				s += value(r, i)
			}
			return s
		}
		for _, k := range collective.Kinds() {
			for _, a := range collective.Catalog(k) {
				in, out := k.Blocks(n)
				for root := range n {
					if root > 0 && !k.Rooted() {
						break
					}
					each(n, func(r int) {
						src, dst := make([]float32, in*count), make([]float32, out*count)
						for i := range src {
							src[i] = value(r, i)
						}
						call := comm.Call{Kind: comm.Kind(k), Count: count, DType: kernels.Float32, RedOp: kernels.Sum, Root: root, Algorithm: a.Name}
						if k == collective.Barrier {
							call = comm.Call{Kind: comm.KindBarrier, Algorithm: a.Name}
						} else {
							call.Src, call.Dst = kernels.MemOf(src), kernels.MemOf(dst)
						}
						if err := comms[r].Do(context.Background(), call); err != nil {
							t.Errorf("%v %s of %d, root %d: rank %d: %v", k, a.Name, count, root, r, err)
							return
						}
						want := func(i int) float32 {
							switch block := i / count; k {
							case collective.AllReduce, collective.Reduce:
								return sum(i)
							case collective.AllGather:
								return value(block, i%count)
							case collective.ReduceScatter:
								return sum(r*count + i)
							case collective.AllToAll:
								return value(block, r*count+i%count)
							}
							return value(root, i) // Broadcast
						}
						if k == collective.Barrier || k == collective.Reduce && r != root {
							return
						}
						for i := range dst {
							if dst[i] != want(i) {
								t.Errorf("%v %s of %d, root %d: rank %d, element %d is %v, want %v", k, a.Name, count, root, r, i, dst[i], want(i))
								return
							}
						}
					})
				}
			}
		}
	}
}

// TestRanksInOrderOfTheirHosts: ranks dealt out over hosts in turn pass data host by host, and all results are as by number.
func TestRanksInOrderOfTheirHosts(t *testing.T) {
	comms := onHosts(t, "a", "b", "c", "a", "b", "c", "a")
	for r, c := range comms {
		s := c.Site()
		require.Equal(t, [][]int{{0, 3, 6, 1, 4, 2, 5}, {3, 6, 0, 4, 1, 5, 2}}, s.Orders, "rank %d", r)
		require.Len(t, s.Places, 7)
		require.Equal(t, "b", s.Places[4].Host)
		require.NotNil(t, s.Places[r].Graph)
		for _, p := range c.Paths() {
			require.NotEmpty(t, p.Topology.Reasons)
			same := s.Places[r].Host == s.Places[p.Rank].Host
			require.Equal(t, same, p.Topology.Kind == topology.OverSHM, "rank %d to %d: %v", r, p.Rank, p.Topology)
		}
	}
	calls(t, comms)

	// The ranks of a part keep to the order among themselves, by their new numbers.
	parts := make([]*comm.Comm, len(comms))
	each(len(comms), func(r int) {
		c, err := comms[r].Split(context.Background(), []int{0, 0, 0, 1, 0, 1, 0}[r], r)
		if err != nil {
			t.Error(err)
			return
		}
		parts[r] = c
	})
	var first, second []*comm.Comm
	for r, c := range parts {
		defer c.Close()
		if slices.Contains([]int{3, 5}, r) {
			second = append(second, c)
		} else {
			first = append(first, c)
		}
	}
	require.Equal(t, [][]int{{0, 4, 1, 3, 2}}, first[0].Site().Orders) // a: 0 and 6; b: 1 and 4; c: 2
	require.Equal(t, [][]int{{0, 1}}, second[0].Site().Orders)
	calls(t, first)
	calls(t, second)
}

// TestChoicesOnHosts: what is near is taken to be near, and a communicator whose ranks are all on one host is as one of a host alone.
func TestChoicesOnHosts(t *testing.T) {
	on := func(hosts string) []*comm.Comm {
		return world(t, len(hosts), func(r int, c *comm.Config) { c.HostID = hosts[r : r+1] })
	}
	choice := func(c *comm.Comm, bytes int) tune.Choice {
		got, err := c.Choice(comm.Call{Kind: comm.KindAllReduce, DType: kernels.Float32, RedOp: kernels.Sum, Count: bytes / 4})
		require.NoError(t, err)
		return got
	}
	two, apart, one := on("abab"), on("abcd"), on("aa")
	require.Contains(t, choice(two[0], 256<<10).Algorithm, "hierarchical", "%v", choice(two[0], 256<<10))
	require.Less(t, choice(two[0], 256<<10).Cost, choice(apart[0], 256<<10).Cost)
	require.NotContains(t, fmt.Sprint(choice(one[0], 256<<10)), "hierarchical", "it is no candidate")
	parts := make([]*comm.Comm, 4)
	each(4, func(r int) {
		var err error
		if parts[r], err = two[r].Split(context.Background(), r%2, r); err != nil {
			t.Error(err)
		}
	})
	for r, c := range parts {
		require.NotNil(t, c)
		defer c.Close()
		for _, bytes := range []int{8, 32 << 10, 1 << 20} {
			require.Equal(t, choice(one[r/2], bytes), choice(c, bytes), "%d bytes", bytes)
		}
	}
}

// TestChannelsOnHosts: rounds go along the orders of all channels, and whatever the algorithm and however uneven the hosts, results are
// right. The hook sees who sends to whom.
func TestChannelsOnHosts(t *testing.T) {
	for _, hosts := range []string{"aaabbb", "ababab", "aabbbb", "abbbca", "abcdef"} {
		t.Run(hosts, func(t *testing.T) {
			var mu sync.Mutex
			crossed := map[[2]int32]int{}
			var network mem.Network
			comms := world(t, len(hosts), func(r int, c *comm.Config) {
				c.Transport, c.Memory, c.HostID, c.MaxMessage = "mem", &network, hosts[r:r+1], 256
				c.Hook = func(f transport.Frame) transport.Fate {
					if hosts[f.Key.Self] != hosts[f.Key.Peer] {
						mu.Lock()
						defer mu.Unlock()
						crossed[[2]int32{f.Key.Self, f.Key.Peer}]++
					}
					return transport.Fate{}
				}
			})
			orders := comms[0].Site().Orders
			smallest := len(hosts)
			for _, h := range hosts {
				smallest = min(smallest, strings.Count(hosts, string(h)))
			}
			require.Len(t, orders, min(smallest, 4))
			edges := map[[2]int32]bool{}
			for _, order := range orders {
				for k, r := range order {
					if next := order[(k+1)%len(order)]; hosts[r] != hosts[next] {
						edges[[2]int32{int32(r), int32(next)}] = true
					}
				}
			}
			require.Len(t, edges, len(orders)*distinct(hosts), "each channel crosses elsewhere")
			each(len(hosts), func(r int) {
				src, dst := make([]float32, 10_000), make([]float32, 10_000*len(hosts))
				if err := comms[r].Do(context.Background(), comm.Call{Kind: comm.KindAllGather, Count: len(src), DType: kernels.Float32, Algorithm: "ring", Src: kernels.MemOf(src), Dst: kernels.MemOf(dst)}); err != nil {
					t.Error(err)
				}
			})
			for e := range edges {
				require.Positive(t, crossed[e], "nothing went from rank %d to %d", e[0], e[1])
			}
			require.Len(t, crossed, len(edges))
			calls(t, comms)
		})
	}
}

// distinct is how many different letters there are.
func distinct(s string) int {
	seen := map[rune]bool{}
	for _, r := range s {
		seen[r] = true
	}
	return len(seen)
}

func TestRanksOfOneHostAreByNumber(t *testing.T) {
	comms := world(t, 3, nil)
	for r, c := range comms {
		s := c.Site()
		require.Equal(t, [][]int{{0, 1, 2}}, s.Orders)
		require.NotEmpty(t, s.CPUs.Reasons)
		for _, p := range s.Places {
			require.Same(t, s.Places[0].Graph, p.Graph, "rank %d", r)
			require.Equal(t, topology.NoNode, p.GPU)
		}
	}
}

// TestUC62_TopologyFileOfAnotherMachine: a file that names four GPUs, asked of NCCL, and two ranks without one.
func TestUC62_TopologyFileOfAnotherMachine(t *testing.T) {
	file, err := filepath.Abs("../topology/testdata/topo-xml/h100x8-9nic-nvswitch.xml")
	require.NoError(t, err)
	home, dump := t.TempDir(), filepath.Join(t.TempDir(), "host.xml")
	t.Setenv("HOME", home)
	t.Setenv("NCCL_TOPO_DUMP_FILE", dump)
	conf := filepath.Join(home, ".nccl.conf")
	for _, named := range []string{file, filepath.Join(home, "gone.xml"), conf} {
		require.NoError(t, os.WriteFile(conf, []byte("# four GPUs\r\nNCCL_TOPO_FILE=\""+named+"\"\r\n"), 0o600))
		var log logLines
		comms := world(t, 2, func(_ int, c *comm.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		each(2, func(r int) {
			x := []int64{1}
			if err := comm.AllReduce(context.Background(), comms[r], x, x, kernels.Sum); err != nil || x[0] != 2 {
				t.Errorf("rank %d: %v %v", r, x, err)
			}
		})
		require.Contains(t, log.String(), `"set by"=`+conf+":2")
		require.Contains(t, log.String(), "ignored")
		require.Contains(t, log.String(), named)
	}
	f, err := os.Open(dump)
	require.NoError(t, err)
	defer f.Close()
	g, err := topology.Parse(f)
	require.NoError(t, err)
	require.NotEmpty(t, g.CPUs())
}

// What was said to gccl itself must make sense.
func TestTopologyFilesAskedForMustBeRead(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.xml")
	require.NoError(t, os.WriteFile(bad, []byte("<system version=\"1\"><gpu"), 0o600))
	for _, tt := range []struct{ env, file string }{{"", "/nonexistent.xml"}, {"", bad}, {"GCCL_TOPO_FILE", bad}} {
		errs := make([]error, 2)
		root, err := bootstrap.ListenRoot(context.Background(), bootstrap.RootConfig{Address: "127.0.0.1:0"})
		require.NoError(t, err)
		if tt.env != "" {
			t.Setenv(tt.env, tt.file)
		}
		each(2, func(r int) {
			cfg := comm.Config{Rank: r, Size: 2, ID: root.ID()}
			if tt.env == "" {
				cfg.Topology = tt.file
			}
			c, err := comm.New(context.Background(), cfg)
			if err == nil {
				c.Close()
			}
			errs[r] = err
		})
		require.NoError(t, root.Close())
		for _, err := range errs { // also of a rank that heard of the other's before it came to its own
			require.ErrorIs(t, err, comm.ErrConfig)
		}
		require.Contains(t, fmt.Sprint(errs), tt.file)
		require.Contains(t, fmt.Sprint(errs), map[bool]string{true: "Config.Topology", false: tt.env}[tt.env == ""])
	}
	for says, cfg := range map[string]comm.Config{
		`Config.P2PLevel is "close", want one of [loc nvl`: {Size: 1, P2PLevel: "close"},
		`Config.ShmDir: "shm"; want an absolute path`:      {Size: 1, ShmDir: "shm"},
		"Config.HostID: 257 bytes; want at most 256":       {Size: 1, HostID: strings.Repeat("h", 257)},
	} {
		_, err := comm.New(context.Background(), cfg)
		require.ErrorContains(t, err, says)
		require.ErrorIs(t, err, comm.ErrConfig)
	}
}
