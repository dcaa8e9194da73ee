package comm

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/transport"
)

// closes counts how often it is closed.
type closes struct {
	transport.Endpoint
	n int
}

func (c *closes) Close() error { c.n++; return nil }

// Close may come when the others have agreed to a Split, or a Shrink of one left, and what it makes is not there yet: then there is nothing
// any more for it to be made of.
func TestCloseBeforeChild(t *testing.T) {
	ctx := context.Background()
	comms, errs := joinAll(t, 2, func(_ int, c *Config) { c.Transport = "tcp" })
	require.NoError(t, errors.Join(errs...))
	subs := make([]bootstrap.Session, 2)
	var ranks sync.WaitGroup
	for r, c := range comms {
		ranks.Go(func() { subs[r], errs[r] = c.session.Sub(ctx, []int{0, 1}) })
	}
	ranks.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, comms[0].Close())
	var again closes
	comms[0].family.endpoints = []transport.Endpoint{&again}
	for _, s := range []bootstrap.Session{subs[0], nil} {
		members := []int{0, 1}
		if s == nil {
			members = []int{0}
		}
		child, err := comms[0].member(ctx, "split", s, 1, members)
		if child != nil {
			require.NoError(t, child.Close())
		}
		require.ErrorIs(t, err, ErrClosed)
	}
	require.Zero(t, again.n, "the endpoints are closed once")
	require.ErrorIs(t, subs[0].Barrier(ctx), bootstrap.ErrClosed, "nobody else would close it")

	child, err := comms[1].member(ctx, "split", subs[1], 1, []int{0, 1})
	require.NoError(t, err)
	require.NoError(t, comms[1].Close())
	require.NotNil(t, child.family.live())
	require.NoError(t, child.Close())
	require.Nil(t, child.family.live())
}
