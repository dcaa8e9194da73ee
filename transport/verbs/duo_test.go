//go:build linux && cgo

package verbs

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// duo is two connected ranks that the test's goroutine drives.
type duo struct {
	testing.TB
	eps   [2]*endpoint
	conns [2]transport.Conn
}

// patience bounds every wait.
const patience = time.Minute

func newDuo(tb testing.TB, o transport.Options, configs ...Config) *duo {
	d := &duo{TB: tb}
	for i := range d.eps {
		e, err := Open(configs[i%len(configs)], o)
		require.NoError(tb, err)
		d.eps[i] = e.(*endpoint)
		tb.Cleanup(func() { require.NoError(tb, e.Close()) })
	}
	for i := range d.conns {
		require.NoError(tb, d.eps[i].Reach(context.Background(), d.eps[1-i].Address()))
		var err error
		d.conns[i], err = d.eps[i].Conn(transport.Key{Comm: 7, Self: int32(i), Peer: int32(1 - i)}, d.eps[1-i].Address())
		require.NoError(tb, err)
	}
	return d
}

// until drives both endpoints until f is true.
func (d *duo) until(what string, f func() bool) {
	d.Helper()
	for deadline := time.Now().Add(patience); !f(); {
		moved := d.eps[0].Progress()
		if !d.eps[1].Progress() && !moved {
			time.Sleep(20 * time.Microsecond)
		}
		if time.Now().After(deadline) {
			require.Fail(d, "waited in vain", "%v for %s\n%s\n%s", patience, what, d.conns[0].(*conn).state(), d.conns[1].(*conn).state())
		}
	}
}

// state is what there is to know of a link that stands still.
func (c *conn) state() string {
	rank := c.key.Self
	if c.link == nil {
		return fmt.Sprintf("rank %d has no link: lost %v", rank, c.lost)
	}
	l := c.link
	s := fmt.Sprintf("rank %d: toSend %b toCredit %b park %d busy %v live %d again %d words %v failed %v lost %v", rank, c.toSend, c.toCredit, c.park, c.busy, l.live, l.again, l.words, l.failed, c.lost)
	for _, q := range append(slices.Clone(l.queues), l.spare) {
		if q != nil {
			s += fmt.Sprintf("\n  QP posted %d done %d filled %d silent %d broken %v told %v theirs %v redone %v", q.posted, q.done, q.filled, q.stall.looks, q.broken, q.told, q.theirs, q.redone)
		}
	}
	for i := range l.lanes {
		n := &l.lanes[i]
		s += fmt.Sprintf("\n  lane posted %d credit %d arrived %d noticed %d consumed %d told %d early %b redo %b", n.posted, n.credit, n.arrived.count, n.noticed.count, n.consumed, n.told, n.arrived.early[0], n.redo[0])
	}
	return s
}

func bufOf(b []byte) transport.Buf { return transport.Buf{Ptr: unsafe.Pointer(&b[0]), N: len(b)} }

// pass sends b from one rank to the other, and demands that it arrives.
func (d *duo) pass(from int, b []byte) {
	d.Helper()
	got := make([]byte, len(b))
	sent := false
	d.until("a message", func() bool {
		if !sent {
			ok, err := d.conns[from].Stream(0).Send(1, bufOf(b))
			require.NoError(d, err)
			sent = ok
		}
		ok, err := d.conns[1-from].Stream(0).Recv(1, bufOf(got))
		require.NoError(d, err)
		return ok
	})
	require.True(d, bytes.Equal(b, got), "message of %d bytes", len(b))
}

// fails sends and receives at both ranks until both have an error.
func (d *duo) fails() (errs [2]error) {
	d.Helper()
	out, in := make([]byte, 5000), make([]byte, 100)
	d.until("errors at both ends", func() bool {
		for i, c := range d.conns {
			if errs[i] == nil && i == 0 {
				_, errs[i] = c.Stream(0).Send(1, bufOf(out))
			}
			if errs[i] == nil {
				_, errs[i] = c.Stream(1).Recv(1, bufOf(in))
			}
		}
		return errs[0] != nil && errs[1] != nil
	})
	return errs
}

func testOptions() transport.Options {
	return transport.Options{Streams: 2, MaxMessage: 8 << 20, Secret: []byte("a secret")}
}

func message(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*131 + i>>8)
	}
	return b
}
