package comm_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport/mem"
)

// world makes n ranks in this process, each with what edit does to its configuration, and closes them after the test.
func world(t testing.TB, n int, edit func(rank int, c *comm.Config)) []*comm.Comm {
	ctx := context.Background()
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	comms, errs := make([]*comm.Comm, n), make([]error, n)
	each(n, func(r int) {
		cfg := comm.Config{Rank: r, Size: n, ID: root.ID()}
		if edit != nil {
			edit(r, &cfg)
		}
		comms[r], errs[r] = comm.New(ctx, cfg)
	})
	require.NoError(t, errors.Join(errs...)) // the first may only be what another's led to
	require.NoError(t, root.Close())
	t.Cleanup(func() {
		each(n, func(r int) {
			if err := comms[r].Close(); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	})
	return comms
}

// each runs f for every rank in a goroutine of its own.
func each(n int, f func(r int)) {
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { f(r) })
	}
	wg.Wait()
}

// transports are configurations that make every pair use one transport.
func transports() map[string]func(int, *comm.Config) {
	var network mem.Network
	return map[string]func(int, *comm.Config){
		"mem": func(_ int, c *comm.Config) { c.Transport, c.Memory = "mem", &network },
		"shm": func(_ int, c *comm.Config) { c.Transport = "shm" },
		"tcp": func(_ int, c *comm.Config) { c.Transport = "tcp" },
	}
}

func TestAllReduce(t *testing.T) {
	for name, edit := range transports() {
		for _, n := range []int{2, 3, 4} {
			t.Run(fmt.Sprintf("%s-%d", name, n), func(t *testing.T) {
				comms := world(t, n, edit)
				for _, count := range []int{1, 2, 1000, 100_003} {
					each(n, func(r int) {
						src, dst := make([]float32, count), make([]float32, count)
						for i := range src {
							src[i] = float32(r + i%100)
						}
						if err := comm.AllReduce(context.Background(), comms[r], dst, src, kernels.Sum); err != nil {
							t.Errorf("rank %d: %v", r, err)
							return
						}
						for i := range dst {
							if want := float32(n*(n-1)/2 + n*(i%100)); dst[i] != want {
								t.Errorf("rank %d of %d, count %d: element %d is %v, want %v", r, n, count, i, dst[i], want)
								return
							}
						}
					})
				}
			})
		}
	}
}
