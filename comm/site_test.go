package comm_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/topology"
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
		require.Equal(t, []int{0, 3, 6, 1, 4, 2, 5}, s.Order, "rank %d", r)
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
	require.Equal(t, []int{0, 4, 1, 3, 2}, first[0].Site().Order) // a: 0 and 6; b: 1 and 4; c: 2
	require.Nil(t, second[0].Site().Order)
	calls(t, first)
	calls(t, second)
}

func TestRanksOfOneHostAreByNumber(t *testing.T) {
	comms := world(t, 3, nil)
	for r, c := range comms {
		s := c.Site()
		require.Nil(t, s.Order)
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
		var log lockedBuffer
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
		for _, err := range errs {
			require.Error(t, err)
		}
		require.Contains(t, fmt.Sprint(errs), tt.file)
		require.Contains(t, fmt.Sprint(errs), map[bool]string{true: "Config.Topology", false: tt.env}[tt.env == ""])
	}
	_, err := comm.New(context.Background(), comm.Config{Size: 1, P2PLevel: "close"})
	require.ErrorContains(t, err, `Config.P2PLevel is "close", want one of [loc nvl`)
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
