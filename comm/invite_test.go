package comm_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// A world on a network of its own grows there, where the host of its root is.
func TestInviteOnNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 2)
		id, err := h.comms[0].Invite(background, 1)
		require.NoError(t, err)
		_, err = h.comms[1].Invite(background, 1)
		require.ErrorContains(t, err, "cannot assign requested address", "another host")
		each(3, func(r int) {
			var c *comm.Comm
			var err error
			if r < 2 {
				c, err = h.comms[r].Grow(background)
			} else {
				c, err = comm.New(background, h.config(r, 3, id))
			}
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			one := []int64{int64(10 * r)}
			if err := comm.AllReduce(background, c, one, one, kernels.Sum); err != nil || one[0] != 30 {
				t.Errorf("rank %d: %d, %v", r, one[0], err)
			}
		})
	})
}

// A communicator that is closed, or is while its rank invites, invites nobody, and leaves no root: the bubble would not end.
func TestInviteAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hosts{network: bootstraptest.New()}
		root, err := bootstrap.ListenRoot(background, bootstrap.RootConfig{Address: host(0) + ":1", Network: h.network.Host(host(0))})
		require.NoError(t, err)
		comms := make([]*comm.Comm, 2)
		var closing atomic.Bool
		each(2, func(r int) {
			cfg := h.config(r, 2, root.ID())
			listen := cfg.Network.Listen
			cfg.Network.Listen = func(ctx context.Context, at string) (net.Listener, error) {
				if closing.Load() {
					comms[r].Close()
				}
				return listen(ctx, at)
			}
			var err error
			if comms[r], err = comm.New(background, cfg); err != nil {
				t.Error(err)
			}
		})
		require.NoError(t, root.Close())
		closing.Store(true)
		for range 2 {
			_, err = comms[0].Invite(background, 1)
			require.ErrorIs(t, err, comm.ErrClosed)
		}
		require.NoError(t, comms[1].Close())
	})
}
