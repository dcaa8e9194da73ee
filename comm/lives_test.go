package comm_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sync/errgroup"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// TestChildrenLetGo: a communicator of Split leaves none of its connections behind when it is closed while its family goes on, busy or not.
func TestChildrenLetGo(t *testing.T) {
	for _, kind := range []string{"shm", "tcp"} {
		comms := world(t, 3, func(_ int, c *comm.Config) { c.Transport = kind })
		conns := func() (n int) {
			for _, c := range comms {
				n += c.Stats().Transports[kind].Conns
			}
			return n
		}
		dst := make([][]int64, 3)
		for r := range dst {
			dst[r] = make([]int64, 100_000)
		}
		each(3, func(r int) {
			assert.NoError(t, comm.AllReduce(background, comms[r], dst[r], fill(100_000, r), kernels.Sum))
		})
		before := conns()
		assert.NotZero(t, before)
		for range 3 {
			each(3, func(r int) {
				sub, err := comms[r].Split(background, 0, r)
				if !assert.NoError(t, err) {
					return
				}
				assert.NoError(t, comm.AllReduce(background, sub, dst[r], fill(100_000, r), kernels.Sum))
				assert.NoError(t, sub.Close())
			})
			assert.Eventually(t, func() bool { return conns() <= before }, time.Minute, time.Millisecond, "%s: %d connections, %d before", kind, conns(), before)
		}
	}
}

// TestCommunicatorsComeAndGo: communicators on the process's driver are made, used and closed while others are, over shared memory and sockets.
func TestCommunicatorsComeAndGo(t *testing.T) {
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	var users errgroup.Group
	for _, kind := range []string{"shm", "tcp", "auto"} {
		users.Go(func() error {
			for range rounds {
				root, err := bootstrap.ListenRoot(background, bootstrap.RootConfig{Address: "127.0.0.1:0"})
				if err != nil {
					return err
				}
				var errs [2]error
				each(2, func(r int) {
					c, err := comm.New(background, comm.Config{Rank: r, Size: 2, ID: root.ID(), Transport: kind})
					if err != nil {
						errs[r] = err
						return
					}
					x := []float32{1}
					time.Sleep(time.Duration(r) * time.Millisecond) // the other one sleeps
					errs[r] = errors.Join(comm.AllReduce(background, c, x, x, kernels.Sum), c.Close())
				})
				if err := errors.Join(errs[0], errs[1], root.Close()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	done := make(chan error, 1)
	go func() { done <- users.Wait() }()
	select {
	case err := <-done:
		assert.NoError(t, err)
	case <-time.After(3 * time.Minute):
		t.Fatal("a communicator's life hangs")
	}
}
