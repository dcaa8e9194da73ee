package transporttest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// nap bounds one sleep. A sleep that lasts so long was not woken.
const nap = time.Minute

var errNotWoken = errors.New("slept and was not woken")

// A sleeper sleeps until the endpoint has news, unless ready says, after the
// endpoint was told that it is going to, that there is no need. It reports
// errNotWoken if it slept through.
type sleeper func(ready func() (bool, error)) error

// wakeup makes a sleeper of Options.Wake, for an endpoint without a Bell and a
// descriptor.
func wakeup(woken <-chan struct{}) sleeper {
	return func(ready func() (bool, error)) error {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		select {
		case <-woken:
			return nil
		case <-time.After(nap):
			return errNotWoken
		}
	}
}

// testSleepers lets two goroutines exchange messages that sleep whenever nothing
// moves, in each way the endpoint offers: messages, room, memory coming back and
// the end of the peer must all wake them.
func testSleepers(t *testing.T, open Provider) {
	for _, way := range []string{"Bell", "Pollable", "Wake"} {
		t.Run(way, func(t *testing.T) {
			woken := [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}
			options := []transport.Options{defaults(), defaults()}
			for i := range options {
				options[i].Wake = func() {
					select {
					case woken[i] <- struct{}{}:
					default:
					}
				}
			}
			w := &world{TB: t, options: defaults(), eps: open(t, options)}
			t.Cleanup(w.close)
			var sleepers [2]sleeper
			for i, e := range w.eps {
				s, why := sleeperOf(e, way, woken[i])
				if s == nil {
					t.Skip(why)
				}
				sleepers[i] = s
			}
			for _, n := range []int{8, 5000, 256 << 10} {
				atOnce(t, 2, func(rank int) error { return sleepyExchange(w, sleepers[rank], rank, n) })
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				time.Sleep(20 * time.Millisecond)
				if err := w.eps[1].Close(); err != nil {
					t.Error(err)
				}
			})
			c := w.conn(0, 1)
			b := make([]byte, 8)
			var gone error
			for gone == nil {
				require.NoError(t, sleepers[0](func() (bool, error) {
					w.eps[0].Progress()
					_, gone = c.Stream(0).Recv(1, lend(b))
					return gone != nil, nil
				}))
			}
			require.ErrorIs(t, gone, transport.ErrGone)
			wg.Wait()
		})
	}
}

// sleepyExchange sends and receives messages of n bytes, bursts of them at once,
// and pauses now and then so that the peer really sleeps.
func sleepyExchange(w *world, sleep sleeper, rank, n int) error {
	const messages = 60
	e := w.eps[rank]
	c, err := e.Conn(key(rank, 1-rank), w.eps[1-rank].Address())
	if err != nil {
		return err
	}
	s := c.Stream(0)
	before, err := s.Sent()
	if err != nil {
		return err
	}
	out, in := pattern(uint64(rank), n), make([]byte, n)
	sent, got := 0, 0
	step := func() (bool, error) {
		moved := e.Progress()
		if sent < messages && sent < got+10 {
			ok, err := s.Send(1, lend(out))
			if err != nil {
				return false, err
			}
			if ok {
				sent++
				moved = true
			}
		}
		if got < messages {
			ok, err := s.Recv(1, lend(in))
			if err != nil {
				return false, err
			}
			if ok {
				if string(in) != string(pattern(uint64(1-rank), n)) {
					return false, fmt.Errorf("message %d of %d bytes: wrong bytes", got, n)
				}
				clear(in)
				got++
				moved = true
			}
		}
		return moved, nil
	}
	for {
		moved, err := step()
		if err != nil {
			return err
		}
		ours, err := s.Sent()
		if err != nil {
			return err
		}
		if sent == messages && got == messages && ours == before+messages {
			return nil
		}
		if moved && got%20 == 7*(1+rank) {
			time.Sleep(2 * time.Millisecond)
		}
		if !moved {
			if err := sleep(func() (bool, error) {
				moved, err := step()
				now, failed := s.Sent()
				return moved || now != ours, errors.Join(err, failed)
			}); err != nil {
				return fmt.Errorf("%d bytes: accepted %d, ours again %d, received %d: %w", n, sent, ours-before, got, err)
			}
		}
	}
}
