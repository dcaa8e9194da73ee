package engine

import (
	"context"
	"fmt"
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
}

func (s *stagingStream) Stage(n int) unsafe.Pointer {
	if s.asked++; s.asked%5 == 0 {
		return nil
	}
	s.slots = append(s.slots, make([]byte, n))
	return unsafe.Pointer(&s.slots[len(s.slots)-1][0])
}

func (s *stagingStream) Fill(dst, src unsafe.Pointer, n int) {
	s.filled++
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
}

func (s *stagingStream) SendStaged(tag uint32, n int) error {
	ok, err := s.Send(tag, transport.Buf{Ptr: unsafe.Pointer(&s.slots[len(s.slots)-1][0]), N: n})
	if err == nil && !ok {
		panic("no room where there was")
	}
	s.staged++
	return err
}

func (s *stagingStream) Lends(int) bool { return true }

func (s *stagingStream) Far() bool { return s.far }

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
			for r := range n {
				port := j.ports[r]
				for _, l := range port.lanes {
					dial := l.dial
					l.dial = func(peer int) (transport.Conn, error) {
						c, err := dial(peer)
						if err != nil {
							return nil, err
						}
						staging := &stagingConn{Conn: c}
						for i := range jobLanes {
							s := &stagingStream{Stream: c.Stream(i), far: far}
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
			staged, filled := 0, 0
			for _, s := range streams {
				staged += s.staged
				filled += s.filled
			}
			require.Positive(t, staged)
			require.Greater(t, filled, 2*staged)
		}
	}
}
