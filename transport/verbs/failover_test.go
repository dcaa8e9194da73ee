//go:build linux && cgo

package verbs

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// traffic sends so many messages of n bytes both ways on two streams, each with its own bytes, checks them all, and calls f after each
// that arrived. Those of the second stream are lent, and written over as soon as they are counted.
func (d *duo) traffic(times, n int, f func(arrived int)) {
	d.Helper()
	type flow struct {
		from, stream, sent, got int
		out                     []byte
		in                      []byte
		lent                    []byte // for lentMost messages, by turns
		back                    int    // of all, counted
		before                  uint64 // that traffic before this sent on the stream
	}
	const lentMost = 6
	var flows []*flow
	for from := range 2 {
		for stream := range 2 {
			w := &flow{from: from, stream: stream, in: make([]byte, n)}
			if stream == 1 {
				p, err := d.eps[from].Alloc(int64(lentMost * n))
				require.NoError(d, err)
				require.True(d, d.eps[from].Owns(p, int64(lentMost*n)))
				w.before, err = d.conns[from].Stream(stream).Sent()
				require.NoError(d, err)
				w.lent = unsafe.Slice((*byte)(p), lentMost*n)
				defer func() { require.NoError(d, d.eps[from].Free(p)) }()
			}
			flows = append(flows, w)
		}
	}
	content := func(w *flow, k int) []byte {
		return bytes.Repeat([]byte{byte(k), byte(w.from<<4 | w.stream), byte(k >> 8)}, n/3+1)[:n]
	}
	total := 0
	d.until("all messages", func() bool {
		left := false
		for _, w := range flows {
			if w.sent < times {
				s := d.conns[w.from].Stream(w.stream)
				if w.out == nil && w.lent == nil {
					w.out = content(w, w.sent)
				} else if w.out == nil && w.sent < w.back+lentMost {
					w.out = w.lent[w.sent%lentMost*n:][:n]
					copy(w.out, content(w, w.sent))
				}
				if w.out != nil {
					b := bufOf(w.out)
					b.Shared = w.lent != nil
					ok, err := s.Send(1, b)
					require.NoError(d, err)
					if ok {
						w.sent, w.out = w.sent+1, nil
					}
				}
			}
			if w.lent != nil {
				left = left || w.back < times
				counted, err := d.conns[w.from].Stream(w.stream).Sent()
				require.NoError(d, err)
				for ; w.back < int(counted-w.before); w.back++ {
					clear(w.lent[w.back%lentMost*n:][:n])
				}
			}
			if w.got < times {
				left = true
				ok, err := d.conns[1-w.from].Stream(w.stream).Recv(1, bufOf(w.in))
				require.NoError(d, err)
				if ok {
					require.True(d, bytes.Equal(content(w, w.got), w.in), "message %d from rank %d on stream %d", w.got, w.from, w.stream)
					w.got++
					total++
					f(total)
				}
			}
		}
		return !left
	})
}

// TestFailover: a wire that is cut in the middle of the traffic costs nothing but time where there is another, and so does a QP that the
// peer's device refuses.
func TestFailover(t *testing.T) {
	one, other := rails(t)
	for _, c := range []*Config{&one, &other} {
		c.Timeout, c.Retry, c.QPs = 14, 2, 2 // 0.2 s
	}
	t.Run("cut", func(t *testing.T) {
		d := newDuo(t, testOptions(), one, other)
		d.pass(0, message(1000))
		var heal func()
		start, gap, last := time.Now(), time.Duration(0), time.Now()
		d.traffic(60, 50_000, func(arrived int) {
			if arrived == 80 {
				heal = cut(t)
				start, last = time.Now(), time.Now()
			}
			if arrived > 80 {
				gap, last = max(gap, time.Since(last)), time.Now()
			}
		})
		t.Logf("%v after the cut all was there; nothing arrived for at most %v", time.Since(start), gap)
		for i, c := range d.conns {
			l := c.(*conn).link
			require.Equal(t, 2, l.live, "rank %d", i)
			require.False(t, l.queues[1].broken || l.queues[3].broken)
		}
		heal()
		start = time.Now()
		d.until("the QPs to be mended", func() bool {
			return d.conns[0].(*conn).link.live == 4 && d.conns[1].(*conn).link.live == 4
		})
		t.Logf("%v after the wire was back all QPs work again", time.Since(start))
		require.Less(t, time.Since(start), patience)
		before := packets(t, "rxe1", "sent_pkts")
		d.traffic(20, 50_000, func(int) {})
		require.Greater(t, packets(t, "rxe1", "sent_pkts")-before, 20*2*50_000/4/1024, "the wire that is back carries its part")
		heal = cut(t) // and breaks again
		d.traffic(40, 50_000, func(int) {})
		heal()

		require.NoError(t, d.conns[0].Close())
		d.until("the goodbye", func() bool {
			_, err := d.conns[1].Stream(0).Recv(1, bufOf(make([]byte, 1)))
			if err != nil {
				require.ErrorIs(t, err, transport.ErrLeft)
			}
			return err != nil
		})
	})
	t.Run("refused", func(t *testing.T) {
		c := small()
		c.QPs = 2
		d := newDuo(t, testOptions(), c)
		d.pass(0, message(1000))
		d.conns[0].(*conn).address.instance++ // so that nothing is mended, however long this takes: the peer does not know who that is
		d.traffic(40, 30_000, func(arrived int) {
			if arrived == 50 {
				d.conns[0].(*conn).link.queues[1].peer.rkey ^= 0xff00
			}
		})
		require.True(t, d.conns[1].(*conn).link.queues[1].broken)
		d.conns[0].(*conn).link.queues[0].peer.rkey ^= 0xff00 // the last one
		errs := d.fails()
		require.ErrorIs(t, errs[0], ibv.RemoteAccess)
	})
}

// TestUC48_LinkFlaps: where the only wire is cut TCP takes over, with one line about it, and RDMA again when the wire is back, with one
// more; no byte is wrong.
func TestUC48_LinkFlaps(t *testing.T) {
	one, other := rails(t)
	var log lines
	for _, c := range []*Config{&one, &other} {
		c.Timeout, c.Retry, c.Fallback = 14, 2, true // 0.2 s
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	}
	one.Devices, other.Devices = only("rxe1"), only("rxe2")
	d := newDuo(t, testOptions(), one, other)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.text())
		}
	})
	d.pass(0, message(1000))
	var heal func()
	gap, last := time.Duration(0), time.Now()
	d.traffic(60, 50_000, func(arrived int) {
		if arrived == 80 {
			heal = cut(t)
			last = time.Now()
		}
		if arrived > 80 {
			gap, last = max(gap, time.Since(last)), time.Now()
		}
	})
	t.Logf("nothing arrived for at most %v", gap)
	require.Less(t, gap, patience)
	require.Zero(t, d.conns[0].(*conn).link.live)
	require.Equal(t, 2, log.count("goes by TCP"), "a line at each end: %s", log.text())
	heal()
	start := time.Now()
	d.until("RDMA to be back", func() bool {
		return d.conns[0].(*conn).link.live == 1 && d.conns[1].(*conn).link.live == 1
	})
	t.Logf("RDMA is back after %v", time.Since(start))
	require.Less(t, time.Since(start), patience)
	require.Equal(t, 2, log.count("works again"))
	before := packets(t, "rxe1", "sent_pkts")
	d.traffic(20, 50_000, func(int) {})
	require.Greater(t, packets(t, "rxe1", "sent_pkts")-before, 20*2*50_000/1024)
	cut(t)
	d.pass(0, message(3000)) // and once more; then it is closed over TCP
	require.NoError(t, d.conns[0].Close())
	d.until("the goodbye", func() bool {
		_, err := d.conns[1].Stream(0).Recv(1, bufOf(make([]byte, 1)))
		if err != nil {
			require.ErrorIs(t, err, transport.ErrLeft)
		}
		return err != nil
	})
}

// TestMendGivenUpByOneEnd: an end whose probe comes to nothing, while the other's does not and the QP is used there already, has it given up
// there, too; what was sent by it arrives, and the next offer brings both back to RDMA.
func TestMendGivenUpByOneEnd(t *testing.T) {
	for end, name := range []string{"lower", "higher"} {
		t.Run(name, func(t *testing.T) {
			one, other := rails(t)
			for _, c := range []*Config{&one, &other} {
				c.Timeout, c.Retry, c.Fallback = 14, 2, true // 0.2 s
			}
			one.Devices, other.Devices = only("rxe1"), only("rxe2")
			d := newDuo(t, testOptions(), one, other)
			d.pass(0, message(1000))
			heal := cut(t)
			d.pass(0, message(3000))
			heal()
			ours, theirs := d.conns[end].(*conn).link, d.conns[1-end].(*conn).link
			d.until("the other end to use a QP", func() bool {
				if p := ours.probes[0]; p != nil && p.probing {
					p.probing = false // as if it had not been acknowledged
				}
				return ours.probes[0] != nil && theirs.live == 1
			})
			ours.probes[0].failed = true
			ours.call()
			d.traffic(20, 50_000, func(int) {})
			d.until("RDMA to be back at both", func() bool {
				return ours.live == 1 && theirs.live == 1 && ours.queues[0].peer.qpn == theirs.queues[0].ours.qpn
			})
			require.Greater(t, ours.queues[0].generation, uint32(1))
			d.traffic(20, 50_000, func(int) {})
		})
	}
}

// lines is a log that several goroutines write.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) count(words string) int { return strings.Count(l.text(), words) }
