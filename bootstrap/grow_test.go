package bootstrap_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// grow is how the members of a session let new ranks in: the lowest serves a root for a world of all, whose id goes to the members through
// the session and to the new ranks in whatever way they were started, as text. Members keep their ranks.
func grow(ctx context.Context, s bootstrap.Session, c bootstrap.Config, newRanks int, invite func(id string)) (bootstrap.Session, error) {
	var root *bootstrap.Root
	var word []byte
	if s.Rank() == 0 {
		var err error
		if root, err = bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: host(0) + ":0", Network: c.Network, Timeout: c.Timeout}); err == nil {
			defer root.Close()
			word = root.ID().Bytes()
			invite(root.ID().String())
		}
	}
	words, err := s.AllGather(ctx, word)
	if err != nil {
		return nil, err
	}
	if c.ID, err = bootstrap.IDFromBytes(words[0]); err != nil {
		return nil, err
	}
	c.Rank, c.World, c.Serve = s.Rank(), s.Size()+newRanks, false
	grown, err := bootstrap.Join(ctx, c)
	if err == nil && root != nil {
		err = root.Wait(ctx)
	}
	return grown, err
}

func TestGrow(t *testing.T) {
	for _, shrunk := range []bool{false, true} { // after a failure, too: then with the ranks of the session that is left
		inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
			s := joinAll(t, n, id, 4)
			old := []int{0, 1, 2, 3}
			if shrunk {
				n.Kill(host(3))
				old = []int{0, 1, 2}
				each(3, func(r int) {
					sub, alive, err := s[r].Regroup(bg)
					if assert.NoError(t, err) {
						assert.Equal(t, old, alive)
						s[r].Close()
						s[r] = sub
					}
				})
			}
			const more = 3
			text := make(chan string, more)
			invite := func(id string) {
				for range more {
					text <- id
				}
			}
			world := len(old) + more
			each(world, func(r int) {
				var grown bootstrap.Session
				var err error
				c := config(n, bootstrap.ID{}, r, world)
				if r < len(old) {
					grown, err = grow(bg, s[r], c, more, invite)
				} else {
					c.Network, c.Serve = n.Host(host(r+10)), false
					if c.ID, err = bootstrap.ParseID(<-text); err == nil {
						grown, err = bootstrap.Join(bg, c)
					}
				}
				if assert.NoError(t, err) {
					assert.Equal(t, r, grown.Rank())
					whole(t, bg, grown, world)
					time.Sleep(time.Second)
					grown.Close()
				}
			})
			each(len(old), func(r int) { // the old session is as it was
				assert.NoError(t, s[r].Barrier(bg))
			})
			closeAll(s)
			require.Zero(t, n.Conns())
		})
	}
}

// New ranks that do not come leave the old session as it was; the error names them.
func TestGrowWithoutNewRanks(t *testing.T) {
	inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
		s := joinAll(t, n, id, 3)
		each(3, func(r int) {
			c := config(n, bootstrap.ID{}, r, 0)
			c.Timeout = 10 * time.Second
			_, err := grow(bg, s[r], c, 2, func(string) {})
			assert.ErrorIs(t, err, bootstrap.ErrTimeout)
			assert.ErrorContains(t, err, "3 of 5 joined, missing: 3, 4")
			var missing *bootstrap.MissingError
			var refused *bootstrap.RefusedError
			switch {
			case errors.As(err, &missing):
				assert.Equal(t, []int{3, 4}, missing.Missing)
			case errors.As(err, &refused):
				assert.Equal(t, []int{3, 4}, refused.Ranks)
			}
			assert.NoError(t, s[r].Barrier(bg))
		})
		closeAll(s)
		require.Zero(t, n.Conns())
	})
}
