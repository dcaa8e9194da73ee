package comm_test

import (
	"errors"
	"log/slog"
	"os"
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

// TestAbandonedChildrenLetGo: of a communicator of Split on which one rank sends, and the other fails before it has asked for the connection, nothing stays
// while the family goes on, at neither.
func TestAbandonedChildrenLetGo(t *testing.T) {
	for kind, edit := range transports() {
		t.Run(kind, func(t *testing.T) {
			comms := world(t, 2, func(r int, c *comm.Config) { edit(r, c); c.Logger = slog.New(slog.DiscardHandler) })
			held := func() (n int64) {
				for _, c := range comms {
					s := c.Stats().Transports[kind]
					n += s.Memory + int64(s.Conns)
				}
				return n
			}
			descriptors := func() int {
				all, err := os.ReadDir("/proc/self/fd")
				assert.NoError(t, err)
				return len(all)
			}
			meet := func() {
				each(2, func(r int) {
					in, out := make([]int64, 100_000), make([]int64, 100_000)
					assert.NoError(t, comm.AllReduce(background, comms[r], out, in, kernels.Sum))
				})
			}
			for range 20 { // what the world's own connections grow to
				meet()
			}
			before, fds := held(), descriptors()
			for n := range 100 {
				sent := make(chan struct{})
				each(2, func(r int) {
					sub, err := comms[r].Split(background, 0, r)
					if !assert.NoError(t, err) {
						close(sent)
						return
					}
					if r == n%2 {
						assert.NoError(t, comm.Send(background, sub, make([]int64, 1000), 1-r))
						close(sent)
					} else {
						<-sent
						sub.Abort(errors.New("not what was meant"))
					}
					assert.NoError(t, sub.Close())
				})
			}
			for deadline := time.Now().Add(20 * time.Second); held() > before || descriptors() > fds; meet() {
				if time.Now().After(deadline) {
					t.Fatalf("%d bytes and %d descriptors, before %d and %d", held(), descriptors(), before, fds)
				}
			}
		})
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
