package engine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/transport"
)

// bell is an endpoint whose peers wake its driver by a word in memory.
type bell struct {
	transport.Endpoint
	word uint32
}

func (b *bell) Arm()          { atomic.StoreUint32(&b.word, 1) }
func (b *bell) Disarm()       { atomic.StoreUint32(&b.word, 0) }
func (b *bell) Word() *uint32 { return &b.word }
func (b *bell) tell()         { ring(&b.word) }

// socket is an endpoint whose peers wake its driver through the kernel.
type socket struct {
	transport.Endpoint
	epoll, event int
}

func newSocket(t *testing.T) *socket {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	event, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, event, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}))
	t.Cleanup(func() { unix.Close(event); unix.Close(epoll) })
	return &socket{epoll: epoll, event: event}
}

func (s *socket) FD() int { return s.epoll }
func (s *socket) tell()   { unix.Write(s.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// TestNapEndsByAnyEndpoint: whichever of the endpoints hears of something, however many there are and of whatever kind, and this process
// itself, end a sleep; it costs no allocation.
func TestNapEndsByAnyEndpoint(t *testing.T) {
	const forever = 20 * time.Second
	for bells := range 4 {
		for sockets := range 3 {
			d := NewDriver()
			tell := []func(){d.Wake}
			var attached []transport.Endpoint
			for range bells {
				b := &bell{}
				attached, tell = append(attached, b), append(tell, b.tell)
			}
			for range sockets {
				s := newSocket(t)
				attached, tell = append(attached, s), append(tell, s.tell)
			}
			for _, e := range attached {
				d.Attach(e)
			}
			for i, tell := range tell {
				name := fmt.Sprintf("%d bells, %d sockets, woken by %d", bells, sockets, i)
				s := idleness{}
				d.arm(&s) // what comes before is for who looks once more, as a driver does then
				began := time.Now()
				go func() {
					time.Sleep(time.Millisecond)
					tell()
				}()
				d.nap(forever)
				d.disarm(&s)
				require.Less(t, time.Since(began), forever/2, name)
			}
			nap := func() {
				s := idleness{}
				d.arm(&s)
				d.nap(time.Microsecond)
				d.disarm(&s)
			}
			require.Zero(t, testing.AllocsPerRun(100, nap), "%d bells, %d sockets", bells, sockets)
			for _, e := range attached {
				d.Detach(e)
			}
		}
	}
}

// TestWakeEndsOneNap: who was woken by one bell while others are still being rung sleeps in peace the next time, also where a goroutine
// in poll wakes it for sockets: what that one left behind for itself would end every sleep that follows.
func TestWakeEndsOneNap(t *testing.T) {
	d, first, second := NewDriver(), &bell{}, &slow{}
	for _, e := range []transport.Endpoint{first, second, newSocket(t)} {
		d.Attach(e)
		defer d.Detach(e)
	}
	s := idleness{}
	d.arm(&s)
	d.drain() // what the changes of the endpoints left behind
	d.disarm(&s)

	d.arm(&s)
	second.asked, second.given = make(chan struct{}), make(chan struct{})
	woke := make(chan struct{})
	go func() {
		defer close(woke)
		d.Wake()
	}()
	<-second.asked
	d.nap(time.Minute)
	d.disarm(&s)
	close(second.given)
	<-woke

	if _, _, errno := unix.Syscall6(unix.SYS_FUTEX_WAITV, 0, 0, 0, 0, 0, 0); errno != unix.EINVAL {
		t.Skip("this kernel, or a profile, has no sleep on several words: ", errno)
	}
	second.asked = nil
	const long = 100 * time.Millisecond
	d.arm(&s)
	began := time.Now()
	d.nap(long)
	d.disarm(&s)
	require.GreaterOrEqual(t, time.Since(began), long)
}

// slow is a bell whose word is not to be had until somebody says so.
type slow struct {
	bell
	asked, given chan struct{}
}

func (s *slow) Word() *uint32 {
	if s.asked != nil {
		s.asked <- struct{}{}
		<-s.given
	}
	return &s.word
}

// TestDetachWaitsForWhoWakes: an endpoint that was detached, whose memory may be gone, is not touched by somebody who still rings the bells.
func TestDetachWaitsForWhoWakes(t *testing.T) {
	d, e := NewDriver(), &slow{}
	d.Attach(e)
	s := idleness{}
	d.arm(&s)
	e.asked, e.given = make(chan struct{}), make(chan struct{})
	go d.Wake()
	<-e.asked
	detached := make(chan struct{})
	go func() {
		d.Detach(e)
		close(detached)
	}()
	select {
	case <-detached:
		t.Error("it was detached while its bell was about to be rung")
	case <-time.After(50 * time.Millisecond):
	}
	close(e.given)
	<-detached
}

// sleep is a nap by who has the driver's token.
func sleep(d *Driver, limit time.Duration) {
	d.Exclusive(func() {
		s := idleness{}
		d.arm(&s)
		d.nap(limit)
		d.disarm(&s)
	})
}

// TestDetachWhileOthersAttach: communicators of one driver come and go at the same time, each with a socket, while another has a bell. None waits for
// what another's socket hears.
func TestDetachWhileOthersAttach(t *testing.T) {
	d := NewDriver()
	d.Attach(&bell{})
	var all sync.WaitGroup
	for range 3 {
		s := newSocket(t)
		all.Go(func() {
			for range 300 {
				d.Attach(s)
				sleep(d, 10*time.Microsecond)
				d.Detach(s)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		all.Wait()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("a Detach hangs")
	}
}

// TestDetachWaitsForItsPoll: the last socket that goes waits for who polls it, and not for who polls those that came meanwhile.
func TestDetachWaitsForItsPoll(t *testing.T) {
	d := NewDriver()
	d.Attach(&bell{})
	x, y := newSocket(t), newSocket(t)
	for i := range 200 {
		d.Attach(x)
		sleep(d, 10*time.Microsecond)
		done := make(chan struct{})
		go func() {
			defer close(done)
			d.Detach(x)
		}()
		d.Attach(y)
		sleep(d, 10*time.Microsecond)
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("round %d: Detach hangs until something comes for the other endpoint", i)
		}
		d.Detach(y)
	}
}

// TestPollHearsOfNewSockets: what a change of the endpoints says to the goroutine in poll is left to it, also by a driver that wakes up before that one
// has looked.
func TestPollHearsOfNewSockets(t *testing.T) {
	d := NewDriver()
	d.Attach(&bell{})
	d.Attach(newSocket(t))
	d.polling.Store(true) // it is about to be
	d.Attach(newSocket(t))
	s := idleness{}
	d.arm(&s)
	d.drain()
	d.disarm(&s)
	fds := []unix.PollFd{{Fd: int32(d.event), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// TestSleepWithoutEventfd: where the process may have no more descriptors, sleeps end by themselves, and nobody reads standard input, whose number is 0.
func TestSleepWithoutEventfd(t *testing.T) {
	for _, bells := range []bool{false, true} {
		d := NewDriver()
		require.Equal(t, none, d.event)
		if bells {
			d.Attach(&bell{})
		}
		s := newSocket(t)
		d.Attach(s)
		unix.Close(d.event)
		d.event = none
		sleep(d, time.Millisecond)
		require.False(t, d.polling.Load(), "nobody could end it")
		d.Detach(s)
		require.Equal(t, none, d.event)
	}
}
