//go:build linux && cgo

package verbs

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// mended is replayLink whose first QP has failed on both sides, as both know, with a device that makes puppets.
func mended(self int32) *conn {
	c := replayLink(2)
	l, e := c.link, c.e
	e.ctx, e.event, e.epoll = context.Background(), -1, -1
	e.config.Log = slog.New(slog.DiscardHandler)
	e.conns = []*conn{c}
	c.key = transport.Key{Self: self, Peer: 1 - self}
	e.meets = map[transport.Key]*meet{c.key: {key: c.key, conn: c}}
	qpn := uint32(100)
	l.makes = func(n *nic) (*queue, error) {
		q := &queue{link: l, nic: n, qp: &puppet{}, state: ibv.Init, sq: 64, ours: goodRecord()}
		qpn++
		q.ours.qpn = qpn
		return q, nil
	}
	for i, q := range l.queues {
		q.qp, q.ours = &puppet{}, goodRecord()
		q.ours.qpn = uint32(50 + i)
	}
	q := l.queues[0]
	q.broken, q.told, q.theirs, q.redone, l.broke, l.live = true, true, true, true, true, 1
	return c
}

// offered is the hello of an offer to c of another QP in the first one's place.
func (c *conn) offered(number uint32) *hello {
	return &hello{key: swapped(c.key), mends: c.link.queues[0].origin().ours.name(), number: number, records: []record{goodRecord()}}
}

// words are those that a queue was given, with place and number of the QP.
func (q *queue) words() (all []string) {
	for _, r := range q.qp.(*puppet).posted {
		if kind, word, count := parseImmediate(r.Imm); kind == immWord {
			all = append(all, fmt.Sprint([...]string{wordBroken: "broken", wordProbe: "probe", wordGone: "gone"}[word], " ", count&0xff, ".", count>>8))
		}
	}
	return all
}

// TestPeerUsedADroppedProbe: a peer whose probe was acknowledged has sent by a QP of which our half came to nothing. It is told so, when our half
// is destroyed and when it asks, for else it would never send again what that QP lost.
func TestPeerUsedADroppedProbe(t *testing.T) {
	c := mended(1)
	l := c.link
	p, err := l.newProbe(0, 7)
	require.NoError(t, err)
	qp := p.qp.(*puppet)
	l.probe(p)
	p.failed = true
	c.hear()
	require.Equal(t, 1, qp.closed)
	require.Equal(t, []string{"gone 0.7"}, l.queues[1].words())
	for range 2 { // an answer may be lost
		require.NoError(t, l.arrive(immediate(immWord, wordBroken, 7<<8)))
		require.NoError(t, l.arrive(immediate(immWord, wordBroken, 7<<8)))
		c.e.Progress()
	}
	require.Equal(t, []string{"gone 0.7", "gone 0.7", "gone 0.7"}, l.queues[1].words())

	p, err = l.newProbe(0, 8) // the peer says it before we know
	require.NoError(t, err)
	l.probe(p)
	require.NoError(t, l.arrive(immediate(immWord, wordBroken, 8<<8)))
	c.e.Progress()
	require.Nil(t, l.probes[0])
	require.Equal(t, "gone 0.8", l.queues[1].words()[3])
	require.Equal(t, 1, l.live)
}

// TestUsedAProbeThatThePeerDropped: who uses a QP that the peer has destroyed loses it as soon as that says so, whether it uses it already.
func TestUsedAProbeThatThePeerDropped(t *testing.T) {
	for _, promoted := range []bool{false, true} {
		c := mended(1)
		l := c.link
		p, err := l.newProbe(0, 7)
		require.NoError(t, err)
		qp := p.qp.(*puppet)
		if l.probe(p); promoted {
			p.finish(1)
			c.e.Progress()
			require.Equal(t, p, l.queues[0])
			require.Equal(t, 2, l.live)
		}
		require.NoError(t, l.arrive(immediate(immWord, wordGone, 7<<8)))
		c.e.Progress()
		require.Equal(t, 1, l.live)
		require.Nil(t, l.probes[0])
		if promoted {
			require.True(t, p.broken && p.theirs && p.redone)
			require.Contains(t, qp.states, ibv.Err)
			require.Equal(t, []string{"broken 0.7"}, l.queues[1].words())
		} else {
			require.Equal(t, 1, qp.closed)
		}
	}
}

// TestOfferAfterAPromotion: an end that uses a QP whose other half came to nothing may hear of that by the next offer alone. That is refused as
// long as what the QP was given has not been sent again, and the next one is welcome. What is late, and what words would take for another, is not.
func TestOfferAfterAPromotion(t *testing.T) {
	c := mended(1)
	l, e := c.link, c.e
	p, err := l.newProbe(0, 7)
	require.NoError(t, err)
	l.probe(p)
	p.finish(1)
	require.NoError(t, l.settle())
	require.Equal(t, p, l.queues[0])
	offer := func(number uint32) reply {
		done := make(chan reply)
		go func() {
			_, _, r := e.considerMend(c.offered(number))
			done <- r
		}()
		for {
			e.work()
			select {
			case r := <-done:
				return r
			default:
				time.Sleep(10 * time.Microsecond)
			}
		}
	}
	require.Contains(t, offer(7).reason, "offer 7 comes after offer 7")
	require.Contains(t, offer(7+1<<16).reason, "or is not to be told from 7")
	require.False(t, p.broken)
	require.Contains(t, offer(8).reason, "has not all been sent again yet")
	require.True(t, p.broken && p.theirs)
	e.Progress()
	require.True(t, p.redone)
	require.Equal(t, welcome, offer(9).verdict)
	require.Equal(t, later, offer(9).verdict)
	require.EqualValues(t, 9, l.probes[0].generation)
	bad := c.offered(10)
	bad.mends++
	_, err = l.consider(bad)
	require.ErrorContains(t, err, "no such QP")
}

// TestOffersAreNumbered: each attempt has a number of its own, none that words take for that of the QP that failed; and while a probe is under way
// there is none.
func TestOffersAreNumbered(t *testing.T) {
	c := mended(0)
	l := c.link
	q := l.queues[0]
	for n := range uint32(3) {
		p, err := l.offer(q)
		require.NoError(t, err)
		require.Equal(t, n+1, p.generation)
	}
	l.offered[0] = 1<<16 - 1
	p, err := l.offer(q)
	require.NoError(t, err)
	require.EqualValues(t, 1<<16+1, p.generation)
	l.probe(p)
	_, err = l.offer(q)
	require.ErrorContains(t, err, "under way")
	p.finish(1)
	require.NoError(t, l.settle())
	_, err = l.offer(q)
	require.ErrorIs(t, err, errMendOver)
}

// TestProbeOfALateDriver: a driver that does not come by for long after a commit probes all the same when it does; after none it destroys the QP.
func TestProbeOfALateDriver(t *testing.T) {
	for name, words := range map[string]string{"commit": commitMagic, "none": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := mended(1)
				ours, theirs := net.Pipe()
				done := make(chan bool)
				go func() {
					c.e.greetMend(ours, c.offered(1))
					ours.Close()
					close(done)
				}()
				synctest.Wait()
				c.e.work()
				b := make([]byte, replySize+recordSize)
				for n := 0; n < len(b); {
					k, err := theirs.Read(b[n:])
					require.NoError(t, err)
					n += k
				}
				_, err := theirs.Write([]byte(words))
				require.NoError(t, err)
				theirs.Close()
				time.Sleep(time.Hour)
				p := c.link.probes[0]
				require.False(t, p.probing)
				c.e.Progress()
				require.Equal(t, words != "", p.probing)
				require.Equal(t, words != "", c.link.probes[0] == p)
				<-done
			})
		})
	}
}

// TestAskedAgain: an answer that went by a QP that failed is lost. When the peer first tells of that QP the question is put again.
func TestAskedAgain(t *testing.T) {
	c := mended(0)
	l := c.link
	l.queues = append(l.queues, &queue{link: l, index: 2, nic: &nic{}, qp: &puppet{}, sq: 64})
	l.live++
	q := l.queues[0]
	q.told, q.theirs, q.redone = false, false, false
	l.turn = 2 // so that the question goes by another QP than the one that fails
	say := func() (n int) {
		c.e.called = append(c.e.called, c)
		for range 3 {
			c.e.Progress()
		}
		for _, by := range l.queues[1:] {
			for _, word := range by.words() {
				if word == "broken 0.0" {
					n++
				}
			}
		}
		return n
	}
	require.Equal(t, 1, say())
	require.NoError(t, l.arrive(immediate(immWord, wordBroken, 1)))
	require.Equal(t, 2, say())
	require.NoError(t, l.arrive(immediate(immWord, wordBroken, 1)))
	require.Equal(t, 2, say(), "that is no news")
}
