//go:build linux && cgo

package verbs

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
	"github.com/stretchr/testify/require"
)

// TestUC19_Strangers: who does not know the secret, or knows it and says nonsense, is sent away, and disturbs no connection.
func TestUC19_Strangers(t *testing.T) {
	needDevices(t, 1)
	o := testOptions()
	d := newDuo(t, o, small())
	d.pass(0, message(5000))
	e := d.eps[0]
	resources := e.Stats().Memory

	dial := func() net.Conn {
		c, err := net.Dial("tcp", e.address.at.String())
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		return c
	}
	scanner := dial()
	_, err := scanner.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, scanner)
	t.Logf("a scanner: %v", err)
	scanner.Close()

	wrong := dial()
	require.Error(t, auth.Client(wrong, []byte("another secret"), service))
	wrong.Close()

	insider := func(b []byte) reply {
		c := dial()
		defer c.Close()
		require.NoError(t, auth.Client(c, o.Secret, service))
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		_, err := c.Write(b)
		require.NoError(t, err)
		answer := make([]byte, replySize)
		_, err = io.ReadFull(c, answer)
		require.NoError(t, err)
		r, err := parseReply(answer)
		require.NoError(t, err)
		return r
	}
	require.Equal(t, noEntry, insider(make([]byte, helloSize)).verdict)
	h := e.hello(swapped(d.conns[0].(*conn).key))
	h.kind, h.address = kindRing, d.eps[1].Address()
	require.Equal(t, noEntry, insider(h.bytes()).verdict, "meant for another instance")
	h.instance = e.address.instance
	require.Equal(t, later, insider(h.bytes()).verdict, "connected already")
	h.key.Comm++
	h.streams++
	require.Equal(t, differs, insider(h.bytes()).verdict)

	offer := e.hello(d.conns[0].(*conn).key) // as if from another rank 0 to ours
	offer.kind, offer.instance, offer.records = kindOffer, e.address.instance, []record{goodRecord()}
	offer.queues = 1
	offer.key.Comm, offer.key.Self, offer.key.Peer = 99, 0, 5
	offer.records[0].bytes = 1 << 40
	require.Equal(t, noEntry, insider(offer.bytes()).verdict, "a record that does not fit")

	d.pass(1, message(5000))
	d.until("the strangers' resources to be free", func() bool { return e.Stats().Memory == resources })
}
