package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/transport"
)

// unready is a stream that fails at a use, gives a view at its so manieth asking, and may keep what was sent.
type unready struct {
	echo
	uses, fails int // 0: never
	asks, every int
	word        uint64
	awaits      bool
	keeps       bool
	seen        func()
}

var errUnready = errors.New("a stream that fails")

func (s *unready) use() error {
	if s.uses++; s.fails > 0 && s.uses >= s.fails {
		return errUnready
	}
	return nil
}

func (s *unready) Stream(int) transport.Stream {
	if s.awaits {
		return struct {
			*unready
			transport.Awaiter
		}{s, waiting{&s.word}}
	}
	return s
}

// waiting is a word that never changes.
type waiting struct{ word *uint64 }

func (w waiting) Awaits() (*uint64, uint64) { return w.word, *w.word }

func (s *unready) Send(uint32, transport.Buf) (bool, error) {
	s.sent++
	return true, s.use()
}

func (s *unready) View(uint32, int) (unsafe.Pointer, error) {
	if s.seen != nil {
		s.seen()
	}
	if s.asks++; s.every > 0 && s.asks%s.every != 0 {
		return nil, s.use()
	}
	if err := s.use(); err != nil {
		return nil, err
	}
	return unsafe.Pointer(&s.buf), nil
}

func (s *unready) Release() error { return s.use() }

func (s *unready) Sent() (uint64, error) {
	if s.keeps {
		return s.sent - 1, s.use()
	}
	return s.sent, s.use()
}

// soleTask is an all-reduce of 2 ranks on a port of its own driver.
func soleTask(t *testing.T, s transport.Conn, algorithm string) (*Port, *Task) {
	return driverTask(t, NewDriver(), s, algorithm)
}

func driverTask(t *testing.T, d *Driver, s transport.Conn, algorithm string) (*Port, *Task) {
	schedule, err := collective.Build(collective.Shape{Kind: collective.AllReduce, Ranks: 2}, 0, algorithm)
	require.NoError(t, err)
	plan, err := collective.Compile(schedule, collective.Options{})
	require.NoError(t, err)
	port := d.NewPort(PortOptions{Ranks: 2, Lanes: 1, Streams: 1, Dial: func(int, int) (transport.Conn, error) { return s, nil }})
	in, out := make([]float32, 2), make([]float32, 2)
	return port, &Task{Plan: plan, Layout: collective.Layout{Count: 2, Elem: 4, Round: 1 << 16, Pieces: plan.Pieces}, Stride: 1,
		In: unsafe.Pointer(&in[0]), Out: unsafe.Pointer(&out[0]), Fold: addFloat32}
}

func runSole(ctx context.Context, p *Port, c *Call, t *Task) error {
	return c.Wait(ctx, p.TryStart(c, 0, t))
}

// A task that is alone, and so in no queue, and a stream that fails at any use of it: its port ends once, with the task in what Broken sees.
func TestSoleTaskFails(t *testing.T) {
	for _, algorithm := range []string{"oneshot", "ring"} {
		for _, every := range []int{1, 2, 3} {
			for before := range 4 {
				for at := 1; at < 16; at++ {
					name := fmt.Sprintf("%s, a view at each %d. asking, %d calls before, use %d", algorithm, every, before, at)
					s := &unready{awaits: true}
					port, task := soleTask(t, s, algorithm)
					broken := 0
					port.opt.Broken = func(error) {
						broken++
						require.Len(t, port.Snapshot(), 1, name)
					}
					var c Call
					for range before {
						require.NoError(t, runSole(context.Background(), port, &c, task), name)
					}
					s.uses, s.fails, s.asks, s.every = 0, at, 0, every
					err := runSole(context.Background(), port, &c, task)
					if s.uses < at {
						require.NoError(t, err, name)
						continue
					}
					require.ErrorIs(t, err, errUnready, name)
					require.Equal(t, 1, broken, name)
					require.ErrorIs(t, runSole(context.Background(), port, &c, task), errUnready, name)
					d := port.driver
					require.False(t, d.token.Load(), name)
					require.Nil(t, d.sole, name)
					require.Empty(t, port.lanes[0].queue, name)
				}
			}
		}
	}
}

// A context that ends while a message or the memory of one that was sent is waited for ends the call, however often it was made before.
func TestSoleTaskIsGivenUp(t *testing.T) {
	for before := range 4 {
		for _, keeps := range []bool{true, false} {
			s := &unready{awaits: true}
			port, task := soleTask(t, s, "oneshot")
			var c Call
			for range before {
				require.NoError(t, runSole(context.Background(), port, &c, task))
			}
			if s.keeps = keeps; !keeps {
				s.every = 1 << 60
			}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			require.ErrorIs(t, runSole(ctx, port, &c, task), context.DeadlineExceeded, "%d calls before, keeps %v", before, keeps)
			cancel()
			require.False(t, port.driver.token.Load())
		}
	}
}

// A stream without a word, as a socket's, is itself asked for what comes soon, before the driver looks after everything else.
func TestSoleTaskAsksItsStream(t *testing.T) {
	s := &unready{every: asks}
	port, task := soleTask(t, s, "oneshot")
	driven := 0
	s.seen = func() {
		if len(port.driver.lanes) > 0 {
			driven++
		}
	}
	var c Call
	for i := range 6 {
		require.NoError(t, runSole(context.Background(), port, &c, task))
		require.Zero(t, driven, "call %d", i)
	}
	require.NotNil(t, port.lanes[0].short)
}

// Calls of several ports that are begun by who holds the token until all are done, in any order: what waits and what fails is each call's own
// affair, and others may come while they wait.
func TestSeveralHeldCalls(t *testing.T) {
	for _, every := range [][2]int{{1, 1}, {1, 3}, {3, 1}, {3, 2}} {
		for fails := range 12 {
			for _, backwards := range []bool{false, true} {
				name := fmt.Sprintf("views at each %v. asking, the first port fails at use %d, backwards %v", every, fails, backwards)
				d := NewDriver()
				streams := []*unready{{awaits: true}, {awaits: true}}
				ports, tasks, calls := make([]*Port, 2), make([]*Task, 2), make([]Call, 2)
				for i, s := range streams {
					ports[i], tasks[i] = driverTask(t, d, s, "oneshot")
				}
				other, late := driverTask(t, d, &unready{}, "oneshot")
				var lateCall Call
				failed := false
				for k := range 4 {
					streams[0].uses, streams[0].fails = 0, 0
					if k == 3 {
						streams[0].fails = fails
					}
					for i, s := range streams {
						s.asks, s.every = 0, every[i]
					}
					require.True(t, ports[0].Hold(), name)
					for i, p := range ports {
						p.StartHeld(&calls[i], 0, tasks[i])
					}
					other.Begin(&lateCall, 0, late)
					order := []int{0, 1}
					if backwards {
						order = []int{1, 0}
					}
					for _, i := range order {
						err := calls[i].Finish(context.Background())
						require.True(t, calls[i].Done(), name)
						if i == 0 && err != nil {
							require.ErrorIs(t, err, errUnready, name)
							failed = true
							continue
						}
						require.NoError(t, err, name)
					}
					ports[1].Drop()
					require.NoError(t, lateCall.Wait(context.Background(), false), name)
					require.False(t, d.token.Load(), name)
					require.Nil(t, d.sole, name)
				}
				require.Equal(t, fails > 0 && streams[0].uses >= fails, failed, name)
			}
		}
	}
}
