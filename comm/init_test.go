package comm_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
)

// TestUC06_MissingAtInit: the error of New is the same kind of thing as a call's, and blames who is not there.
func TestUC06_MissingAtInit(t *testing.T) {
	ctx := context.Background()
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	defer root.Close()
	each(4, func(r int) {
		if r == 2 {
			return
		}
		c, err := comm.New(ctx, comm.Config{Rank: r, Size: 4, ID: root.ID(), InitTimeout: 2 * time.Second})
		if err == nil {
			c.Close()
		}
		var e *comm.Error
		if !errors.Is(err, comm.ErrTimeout) || !errors.As(err, &e) || e.Op != "init" || e.Rank != r || len(e.Ranks) != 1 || e.Ranks[0] != 2 || e.Elapsed <= 0 {
			t.Errorf("rank %d: %v (%+v), want a timeout of init that blames rank 2", r, err, e)
		}
	})
}
