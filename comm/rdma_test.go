package comm

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/transport/verbs"
)

// TestByRDMA: ranks open RDMA ports for ranks on other hosts whose ports speak to theirs; those of software only if they were named.
func TestByRDMA(t *testing.T) {
	g, sockets := graphOf(t, "topo-xml/h100x8-9nic-nvswitch.xml"), graphOf(t, "topo-xml/vm-2core-nogpu.xml")
	soft := *g
	soft.Nodes = slices.Clone(g.Nodes)
	for i := range soft.Nodes {
		if soft.Nodes[i].Type == topology.NIC {
			soft.Nodes[i].Bus = nil
		}
	}
	for name, c := range map[string]struct {
		all   []hello
		named bool
		want  bool
	}{
		"two hosts":             {append(on(t, "x", g, ""), on(t, "y", g, "")...), false, true},
		"three":                 {slices.Concat(on(t, "x", g, ""), on(t, "y", sockets, ""), on(t, "z", g, "")), false, true},
		"one host":              {on(t, "x", g, "", ""), false, false},
		"the other has sockets": {append(on(t, "x", g, ""), on(t, "y", sockets, "")...), false, false},
		"we have":               {append(on(t, "x", sockets, ""), on(t, "y", g, "")...), true, false},
		"the other is unknown":  {append(on(t, "x", g, ""), hello{Boot: "y"}), false, false},
		"we are":                {append([]hello{{Boot: "y"}}, on(t, "x", g, "")...), true, false},
		"software":              {append(on(t, "x", &soft, ""), on(t, "y", g, "")...), false, false},
		"software by name":      {append(on(t, "x", &soft, ""), on(t, "y", g, "")...), true, true},
	} {
		p, err := newPlaces(c.all)
		require.NoError(t, err, name)
		require.Equal(t, c.want, p.byRDMA(0, c.named), name)
	}
	filtered := append(on(t, "x", g, ""), on(t, "y", g, "")...)
	filtered[0].Ports = "=none"
	p, err := newPlaces(filtered)
	require.NoError(t, err)
	require.False(t, p.byRDMA(0, true))
}

// TestRDMAIsChosen: of those that opened an endpoint; nobody else's hello changes, which other ranks of the process share.
func TestRDMAIsChosen(t *testing.T) {
	all := make([]hello, 3)
	for r := range all {
		all[r].Addresses = map[string][]byte{"tcp": {1}}
	}
	first := &told{hellos: all}
	last, err := first.withRDMA(Config{Lanes: 2, MaxMessage: 1 << 20}, [][]byte{{7}, nil, {9}})
	require.NoError(t, err)
	for r, want := range []string{"", "tcp", "verbs"} {
		require.Len(t, first.hellos[r].Addresses, 1)
		if name, _ := choose(&last.hellos[0], &last.hellos[r], false, func() topology.Reason { return "" }); r > 0 {
			require.Equal(t, want, name)
		}
	}
	require.Equal(t, []byte{9}, last.hellos[2].Addresses[verbs.Name])
	require.Equal(t, 2, last.hellos[0].Model[verbs.Name].Lanes)
	name, reason := choose(&last.hellos[0], &last.hellos[2], false, func() topology.Reason { return "the ports differ" })
	require.Equal(t, []string{"tcp", "the ports differ"}, []string{name, reason})
}

// TestNoRDMAAfterAll: where the topology has RDMA that cannot be opened the hosts' ranks talk by TCP, and a line says why; where it is not
// wanted nothing is said.
func TestNoRDMAAfterAll(t *testing.T) {
	have := discover(false)
	machine[0].graph = graphOf(t, "topo-xml/h100x8-9nic-nvswitch.xml")
	defer func() { machine[0].seen = have }()
	for _, off := range []bool{false, true} {
		var log bytes.Buffer // which the handler guards
		logger := slog.New(slog.NewTextHandler(&log, nil))
		root, err := bootstrap.ListenRoot(context.Background(), bootstrap.RootConfig{Address: "127.0.0.1:0"})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for r := range 2 {
			wg.Go(func() {
				c, err := New(context.Background(), Config{
					Rank: r, Size: 2, ID: root.ID(), HostID: string(rune('a' + r)), NoRDMA: off, RDMADevice: "=mlx5_8",
					Logger: logger,
				})
				if err != nil {
					t.Error(err)
					return
				}
				if p := c.Paths()[0]; p.Transport != "tcp" {
					t.Errorf("rank %d reaches rank %d by %s", r, p.Rank, p.Transport)
				}
				if err := c.Barrier(context.Background()); err != nil {
					t.Error(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.NoError(t, root.Close())
		require.Equal(t, map[bool]int{false: 2, true: 0}[off], strings.Count(log.String(), "no RDMA, TCP instead"), log.String())
	}
}
