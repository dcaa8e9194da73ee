package engine

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/transport"
)

// stagingConn lets messages be made in memory of its own: every so often it has none.
type stagingConn struct {
	transport.Conn
	streams []*stagingStream
}

func (c *stagingConn) Stream(i int) transport.Stream { return c.streams[i] }

type stagingStream struct {
	transport.Stream
	asked, staged, filled int
	slots                 [][]byte // mem keeps no copy of what it was sent: they are never used again
	far                   bool
	places                *places
	self, peer, index     int
	sent, received        uint64
	lands                 unsafe.Pointer
	landed                int
}

// places is where ranks want messages from their peers.
type places struct {
	sync.Mutex
	wanted map[[3]int]wanted // by sender, receiver, stream
}

type wanted struct {
	message uint64
	transport.Buf
}

func (s *stagingStream) Land(ahead uint64, b transport.Buf) {
	s.places.Lock()
	defer s.places.Unlock()
	s.places.wanted[[3]int{s.peer, s.self, s.index}] = wanted{s.received + ahead, b}
}

func (s *stagingStream) Landing(n int) unsafe.Pointer {
	s.places.Lock()
	defer s.places.Unlock()
	w, ok := s.places.wanted[[3]int{s.self, s.peer, s.index}]
	if s.lands = nil; !ok || w.message != s.sent || w.N != n {
		return nil
	}
	s.lands = w.Ptr
	return w.Ptr
}

func (s *stagingStream) Send(tag uint32, b transport.Buf) (bool, error) {
	ok, err := s.Stream.Send(tag, b)
	if ok {
		s.sent++
	}
	return ok, err
}

func (s *stagingStream) Recv(tag uint32, b transport.Buf) (bool, error) {
	ok, err := s.Stream.Recv(tag, b)
	if ok {
		s.received++
	}
	return ok, err
}

func (s *stagingStream) Release() error {
	s.received++
	return s.Stream.Release()
}

func (s *stagingStream) Stage(n int) unsafe.Pointer {
	if s.asked++; s.asked%5 == 0 {
		return nil
	}
	s.lands = nil
	s.slots = append(s.slots, make([]byte, n))
	return unsafe.Pointer(&s.slots[len(s.slots)-1][0])
}

func (s *stagingStream) Fill(dst, src unsafe.Pointer, n int) {
	s.filled++
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
}

func (s *stagingStream) SendStaged(tag uint32, n int) error {
	from := s.lands
	if from == nil {
		from = unsafe.Pointer(&s.slots[len(s.slots)-1][0])
	} else {
		s.landed++
	}
	ok, err := s.Send(tag, transport.Buf{Ptr: from, N: n})
	if err == nil && !ok {
		panic("no room where there was")
	}
	s.staged++
	return err
}

func (s *stagingStream) Lends(int) bool { return true }

func (s *stagingStream) FillsLent() bool { return s.far }

// Values are right where results of folds are made in the transport's memory or lent past the caches, and where the message is more than caches hold.
func TestRelay(t *testing.T) {
	const round = 24_000 // elements: pieces of some blocks and a rest, for all numbers of ranks
	for _, n := range []int{2, 3, 5} {
		if n > 3 && testing.Short() {
			break
		}
		for _, far := range []bool{false, true} {
			j := newJobOf(t, n, NewDriver, transport.Options{Streams: jobLanes, MaxMessage: 8 * round})
			for _, d := range j.drivers {
				d.SetCrowded(true)
			}
			var streams []*stagingStream
			where := &places{wanted: map[[3]int]wanted{}}
			for r := range n {
				port := j.ports[r]
				for channel, l := range port.lanes {
					dial := l.dial
					l.dial = func(peer int) (transport.Conn, error) {
						c, err := dial(peer)
						if err != nil {
							return nil, err
						}
						staging := &stagingConn{Conn: c}
						for i := range jobLanes {
							s := &stagingStream{Stream: c.Stream(i), far: far, places: where, self: r, peer: peer, index: 10*channel + i}
							staging.streams = append(staging.streams, s)
						}
						j.mu.Lock()
						streams = append(streams, staging.streams...)
						j.mu.Unlock()
						return staging, nil
					}
				}
			}
			for _, k := range []collective.Kind{collective.AllReduce, collective.ReduceScatter, collective.AllGather, collective.Broadcast} {
				for _, a := range collective.Catalog(k) {
					for _, count := range []int{round - 1000, 3*round + 17, 1<<20 + 33} {
						if count > 1<<20 && (n != 2 || testing.Short() && a.Name != "twoshot") {
							continue
						}
						for _, shared := range []bool{false, true} {
							for _, inPlace := range []bool{false, true} {
								s := collective.Shape{Kind: k, Ranks: n}
								each(n, func(r int) {
									c := newTestCall(t, s, r, a.Name, count, round, min(2, (count+round-1)/round), inPlace)
									for _, task := range c.tasks {
										task.InShared, task.OutShared = shared, shared
									}
									holds := j.ports[r].TryStart(&c.Call, 0, c.tasks...)
									if err := c.Wait(context.Background(), holds); err != nil {
										t.Errorf("%v %s n=%d: rank %d: %v", k, a.Name, n, r, err)
										return
									}
									c.want(t, s, r, count)
								})
								require.False(t, t.Failed(), fmt.Sprintf("%v %s n=%d count=%d shared=%v in place=%v far=%v", k, a.Name, n, count, shared, inPlace, far))
							}
						}
						for _, s := range streams {
							s.slots = nil
						}
					}
				}
			}
			staged, filled, landed := 0, 0, 0
			for _, s := range streams {
				staged += s.staged
				filled += s.filled
				landed += s.landed
			}
			require.Positive(t, staged)
			require.Positive(t, landed)
			require.Greater(t, filled, 2*staged)
		}
	}
}

// lender is a peer that takes its memory back while we fold it.
type lender struct {
	echo
	block  []int64
	slot   []byte
	staged int
}

func (s *lender) Stream(int) transport.Stream              { return s }
func (s *lender) View(uint32, int) (unsafe.Pointer, error) { return unsafe.Pointer(&s.block[0]), nil }
func (s *lender) Release() error                           { return errUnready }
func (s *lender) Lends(int) bool                           { return false }
func (s *lender) FillsLent() bool                          { return false }
func (s *lender) Fill(dst, src unsafe.Pointer, n int)      {}
func (s *lender) Stage(n int) unsafe.Pointer {
	s.slot = make([]byte, n)
	return unsafe.Pointer(&s.slot[0])
}
func (s *lender) SendStaged(uint32, int) error {
	s.staged++
	return nil
}

// A fold whose sources were taken back meanwhile is sent to nobody, who would take it for right.
func TestRelayOfWhatWasTakenBack(t *testing.T) {
	const count = 3 * relayFrom
	for _, algorithm := range []string{"twoshot", "ring"} {
		shape := collective.Shape{Kind: collective.AllReduce, Ranks: 3}
		peers := make([]lender, shape.Ranks)
		for i := range peers {
			peers[i].block = make([]int64, count)
		}
		port := NewDriver().NewPort(PortOptions{Ranks: shape.Ranks, Lanes: 1, Streams: 1, Dial: func(_, peer int) (transport.Conn, error) { return &peers[peer], nil }})
		c := newTestCall(t, shape, 1, algorithm, count, count, 1, false)
		require.ErrorIs(t, c.Call.Wait(context.Background(), port.TryStart(&c.Call, 0, c.tasks...)), errUnready)
		asked := 0
		for i := range peers {
			require.Zero(t, peers[i].staged, algorithm)
			if peers[i].slot != nil {
				asked++
			}
		}
		require.NotZero(t, asked, "%s: nothing was made in a slot", algorithm)
	}
}
