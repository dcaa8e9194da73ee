//go:build linux && cgo

package verbs

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"syscall"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// twoDevices is a connection with a QP on each of two devices, and the first one's puppet, which that does not put in any state.
func twoDevices(t *testing.T) (*conn, *puppet) {
	c := replayLink(2)
	l, e := c.link, c.e
	e.ctx, e.event, e.epoll = context.Background(), -1, -1
	e.config.Log = slog.New(slog.DiscardHandler)
	e.conns, e.options.MaxMessage, l.memory.bytes = []*conn{c}, 1, make([]byte, 64)
	c.key, l.rank = transport.Key{Self: 1, Peer: 0}, 1 // the higher rank, which mends nothing by itself
	first := &puppet{modify: syscall.EIO}
	for i, p := range []*puppet{first, {}} {
		q := l.queues[i]
		q.nic, q.qp = &nic{index: i, device: &ibv.Device{}, queues: map[uint32]*queue{}}, p
		q.nic.enter(q)
		e.watchOver(q.nic)
	}
	return c, first
}

// TestFailedDevice: a device that has failed costs a connection the QPs on it. That the device does not even put them in the state ERR is no
// matter: they are destroyed, and only then the peer is told.
func TestFailedDevice(t *testing.T) {
	for name, before := range map[string]bool{"in use": false, "before the link was taken up": true} {
		t.Run(name, func(t *testing.T) {
			c, first := twoDevices(t)
			l, e := c.link, c.e
			if before {
				c.link, l.conn = nil, nil
				c.arrived.Store(l)
			}
			second := l.queues[1]
			first.close = func() { require.Zero(t, second.posted) }
			done := make(chan bool)
			go func() {
				e.note(l.queues[0].nic, ibv.EventDeviceFatal, 0)
				close(done)
			}()
			<-done
			e.Progress()
			require.True(t, c.ready())
			e.Progress()
			require.NoError(t, l.failed)
			require.Equal(t, []bool{true, false}, []bool{l.queues[0].broken, second.broken})
			require.Equal(t, 1, l.live)
			require.Equal(t, 1, first.closed)
			require.Equal(t, []ibv.State{ibv.Err}, first.states)
			require.True(t, l.queues[0].told)
			require.EqualValues(t, 1, second.posted, "the word to the peer")
			_, err := l.newQueue(l.queues[0].nic)
			require.ErrorContains(t, err, "has failed", "nothing is mended there")
			e.note(second.nic, ibv.EventDeviceFatal, 0)
			e.Progress()
			_, err = c.Stream(0).Recv(1, bufOf(make([]byte, 1)))
			require.ErrorContains(t, err, "this is rank 1's own failure", "the last one")
			require.False(t, errors.Is(err, transport.ErrGone), "the peer is there")
			var blames interface{ Culprits() []int }
			require.ErrorAs(t, err, &blames)
			require.Equal(t, []int{1}, blames.Culprits())
			require.NoError(t, l.shut())
			require.Equal(t, 1, first.closed)
		})
	}
}

// TestFailedDeviceOfAll: TCP takes the traffic of a connection whose only device has failed.
func TestFailedDeviceOfAll(t *testing.T) {
	c, first := twoDevices(t)
	l, e := c.link, c.e
	ours, theirs := net.Pipe()
	defer theirs.Close()
	l.socket, e.config.Fallback = ours, true
	l.queues[1].nic = l.queues[0].nic
	l.queues[1].nic.enter(l.queues[1])
	second := l.queues[1].qp.(*puppet)
	e.note(l.queues[0].nic, ibv.EventDeviceFatal, 0)
	e.Progress()
	require.NoError(t, l.failed)
	require.True(t, c.ready())
	require.Zero(t, l.live)
	require.Equal(t, []int{1, 0}, []int{first.closed, second.closed})
	require.Equal(t, []ibv.State{ibv.Err}, second.states)
	require.EqualValues(t, 2, l.spare.posted, "words that both QPs have failed")
	require.NoError(t, l.shut())
	e.watchers.Wait()
}

// TestStubbornQP: a QP that is neither put in the state ERR nor destroyed ends the link: nobody knows what may come by it.
func TestStubbornQP(t *testing.T) {
	c, first := twoDevices(t)
	l := c.link
	first.destroy = syscall.EBUSY
	l.lose(l.queues[0], errors.New("whatever"))
	c.hear()
	require.ErrorIs(t, l.failed, syscall.EBUSY)
	require.Zero(t, l.queues[1].posted, "nothing is said")
	require.False(t, c.ready())
}

// TestRefusedRegistration: a device that refuses memory as one does that is gone is not used any more, for it has no key for that memory, and would be
// given none; one that has no room is.
func TestRefusedRegistration(t *testing.T) {
	c, _ := twoDevices(t)
	l, e := c.link, c.e
	l.queues[0].nic.refused(syscall.ENOMEM)
	e.Progress()
	require.NoError(t, l.queues[0].nic.failed())
	l.queues[0].nic.refused(syscall.EIO)
	e.Progress()
	require.ErrorIs(t, l.queues[0].nic.failed(), syscall.EIO)
	require.Equal(t, []bool{true, false}, []bool{l.queues[0].broken, l.queues[1].broken})
	require.NoError(t, l.failed)
}

// TestSilenceIsOurs: a device that tells nothing of what it was given, not even that its retries are over, is ours, and the peer has no part in that.
func TestSilenceIsOurs(t *testing.T) {
	c, _ := twoDevices(t)
	l, e := c.link, c.e
	l.queues, l.live, e.silence = l.queues[:1], 1, 3
	l.queues[0].say(0, 0)
	l.flush()
	for range 5 {
		e.look()
	}
	require.ErrorContains(t, l.failed, "neither done nor refused")
	require.ErrorAs(t, l.failed, new(*transport.OwnError))
	require.NotErrorIs(t, l.failed, transport.ErrGone)
}

// TestFailureBeforeTheConn: the driver, which takes completions, leaves a link that may still be in the making as it is; what has failed it hears when
// a conn takes the link up.
func TestFailureBeforeTheConn(t *testing.T) {
	c, first := twoDevices(t)
	l := c.link
	first.modify = nil
	c.link, l.conn = nil, nil
	q := l.queues[0]
	q.take(&ibv.Completion{ID: q.requestID(1), Status: ibv.RetryExceeded})
	require.Equal(t, 2, l.live)
	require.False(t, q.broken)
	require.Empty(t, first.states)
	c.arrived.Store(l)
	require.True(t, c.ready())
	require.Equal(t, 1, l.live)
	require.True(t, q.broken)
	require.Equal(t, []ibv.State{ibv.Err}, first.states)
	c.e.Progress()
	require.True(t, q.told)
}

// TestBrokenByThePeer: that the last QP's other end has failed is the peer's end to who decides by errors.Is.
func TestBrokenByThePeer(t *testing.T) {
	l := replayLink(1).link
	require.NoError(t, l.hearBroken(0))
	require.ErrorIs(t, l.failed, transport.ErrGone)
}

// TestFailureIsSeenByWhoWaitsForOperations: who waits for one-sided operations asks no stream, and is told all the same that they will never be
// performed, where their QP was the last one.
func TestFailureIsSeenByWhoWaitsForOperations(t *testing.T) {
	c, _ := twoDevices(t)
	l := c.link
	l.queues, l.live = l.queues[1:], 1
	q := l.queues[0]
	q.index = 0
	c.one.by, c.one.accepted = q, 1
	c.one.under[0] = operation{position: 1, span: &span{}}
	_, err := c.Performed()
	require.NoError(t, err)
	q.take(&ibv.Completion{ID: q.requestID(1), Status: ibv.RetryExceeded})
	c.e.Progress()
	_, err = c.Performed()
	require.ErrorIs(t, err, ibv.RetryExceeded)
	require.ErrorContains(t, err, "of 1 operations the outcome is unknown")
}

// TestCompletionsCannotBeTaken: a device whose completions cannot be taken is of no use to us, which is nobody else's failure: other devices or TCP
// take its traffic, and where there are none we are to blame. Whoever sleeps does so, and no other connection is made over it.
func TestCompletionsCannotBeTaken(t *testing.T) {
	c, first := twoDevices(t)
	l, e := c.link, c.e
	polls := 0
	broken := func([]ibv.Completion) (int, error) {
		polls++
		return 0, syscall.EIO
	}
	for _, q := range l.queues {
		q.nic.take = func([]ibv.Completion) (int, error) { return 0, nil }
		q.nic.armed = true
		e.nics = append(e.nics, q.nic)
	}
	e.nics[0].take, e.nics[0].armed = broken, false
	require.Equal(t, -1, e.FD())
	e.Progress()
	require.Equal(t, []bool{true, false}, []bool{l.queues[0].broken, l.queues[1].broken})
	require.NoError(t, l.failed)
	require.Equal(t, 1, first.closed)
	_, err := l.newQueue(e.nics[0])
	require.ErrorContains(t, err, "its completions cannot be taken")
	e.nics[1].take = broken
	e.Progress()
	_, err = c.Stream(0).Recv(1, bufOf(make([]byte, 1)))
	require.ErrorIs(t, err, syscall.EIO)
	require.NotErrorIs(t, err, transport.ErrGone, "the peer is there")
	var blames interface{ Culprits() []int }
	require.ErrorAs(t, err, &blames)
	require.Equal(t, []int{1}, blames.Culprits())
	require.Positive(t, polls)
}

// TestBlame: what our own device says of itself blames us, what it says of the peer's or the way there does not.
func TestBlame(t *testing.T) {
	for status, own := range map[ibv.Status]bool{1: true, 2: true, 4: true, 19: true, 21: true, ibv.RetryExceeded: false, ibv.RemoteAccess: false, ibv.RNRRetryExceeded: false} {
		blames(t, ibv.Completion{Status: status}, own)
	}
	for status, own := range map[ibv.Status]bool{1: false, 2: true, 8: false, 19: true} { // 8: the peer wrote where it may not
		blames(t, ibv.Completion{ID: 1, Status: status}, own)
	}
	c, first := twoDevices(t)
	l := c.link
	l.queues, l.live, first.post = l.queues[:1], 1, syscall.ENOMEM
	l.queues[0].say(0, 0)
	l.flush()
	require.ErrorIs(t, l.failed, syscall.ENOMEM)
	require.NotErrorIs(t, l.failed, transport.ErrGone)
	require.ErrorAs(t, l.failed, new(*transport.OwnError))
}

// blames demands that a connection whose only QP fails by c is lost by our own failure, or else by the peer's end.
func blames(t *testing.T, c ibv.Completion, own bool) {
	t.Helper()
	conn, _ := twoDevices(t)
	l := conn.link
	l.queues, l.live = l.queues[:1], 1
	l.queues[0].take(&c)
	require.ErrorIs(t, l.failed, c.Status)
	require.Equal(t, own, errors.As(l.failed, new(*transport.OwnError)), "%v", c.Status)
	require.Equal(t, !own, errors.Is(l.failed, transport.ErrGone), "%v", c.Status)
}
