//go:build linux && cgo

package verbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// TestFramesOfADetour: a frame is a slot that arrives, once; what is no frame ends the link.
func TestFramesOfADetour(t *testing.T) {
	l := bare(2)
	slot := make([]byte, headerSize+100)
	h := header{number: 7, bytes: 100, length: 100, use: 1}
	h.put(slot)
	copy(slot[headerSize:], "over TCP")
	imm := immediate(immPiece, 1, 0)
	l.arriveFrame(imm, slot)
	require.NoError(t, l.failed)
	require.EqualValues(t, 1, l.lanes[1].arrived.count)
	require.Equal(t, slot, l.rx[l.slot(1, 0):][:len(slot)])
	l.broke = true // as when a QP has failed: it may come again, and whoever reads the slot must not see it change
	slot[headerSize] = 'O'
	l.arriveFrame(imm, slot)
	require.NoError(t, l.failed)
	require.EqualValues(t, 'o', l.rx[l.slot(1, 0)+headerSize])
	l.arriveFrame(immediate(immPiece, 2, 0), slot)
	require.ErrorIs(t, l.failed, transport.ErrCorrupt)

	l = bare(2)
	before := bytes.Clone(l.rx)
	long := make([]byte, headerSize+l.e.config.holds(1)+1)
	h = header{bytes: uint32(len(long)), length: uint32(len(long) - headerSize)}
	h.put(long)
	l.arriveFrame(immediate(immPiece, 0, 7), long) // the last slot of its lane
	require.ErrorIs(t, l.failed, transport.ErrCorrupt)
	require.ErrorContains(t, l.failed, "room for 1024")
	require.Equal(t, before, l.rx, "the other lane's slots are as they were")

	frame := func(n uint32, body int) []byte {
		b := binary.BigEndian.AppendUint32(nil, imm)
		return append(binary.BigEndian.AppendUint32(b, n), make([]byte, body)...)
	}
	for name, c := range map[string]struct {
		fallback bool
		bytes    []byte
		err      error
	}{
		"end":         {true, nil, io.EOF},
		"no fallback": {false, frame(0, 0), transport.ErrCorrupt},
		"too long":    {true, frame(headerSize+2*(1<<10+64)-64+1, 0), transport.ErrCorrupt},
		"too short":   {true, frame(headerSize-1, 0), transport.ErrCorrupt},
		"cut":         {true, frame(headerSize, 5), io.ErrUnexpectedEOF},
	} {
		l := bare(2)
		l.e.config.Fallback, l.e.event = c.fallback, -1
		ours, theirs := net.Pipe()
		l.socket = ours
		go func() {
			theirs.Write(c.bytes)
			theirs.Close()
		}()
		require.ErrorIs(t, l.frames(), c.err, name)
		ours.Close()
	}
}

// TestTrafficGoesOnOverTCP: what a QP lost and what comes after it arrives over the detour, both ways, once and in order.
func TestTrafficGoesOnOverTCP(t *testing.T) {
	a, b := net.Pipe()
	ends := detoured(a, b, 1<<10, 2)
	for _, c := range ends {
		defer c.e.watchers.Wait()
		defer c.link.shut()
	}
	const n = 5000           // five slots
	for i, c := range ends { // what the QP takes and loses
		c.streams[0].tx.ring = make([]outgoing, ahead)
		*c.streams[0].tx.at(0) = outgoing{data: content(i, 0, n), tag: 1}
		c.streams[0].tx.accepted, c.toSend = 1, 1
		for range 3 {
			require.True(t, c.streams[0].cut(c.link.queues[0]))
		}
		q := c.link.queues[0]
		q.posted, q.broken, q.filled, c.link.broke, c.link.live = 3, true, 0, true, 0
		c.link.detour()
		c.link.call()
	}
	got, sent := [2]int{}, [2]int{1, 1}
	in := [2][]byte{make([]byte, n), make([]byte, n)}
	out := [2][]byte{}
	const times = 50
	for deadline := time.Now().Add(patience); got[0] < times || got[1] < times; {
		require.False(t, time.Now().After(deadline), "%v of %d arrived: %s %s", got, times, ends[0].state(), ends[1].state())
		for i, c := range ends {
			c.e.Progress()
			if sent[i] < times {
				if out[i] == nil {
					out[i] = content(i, sent[i], n)
				}
				ok, err := c.Stream(0).Send(1, bufOf(out[i]))
				require.NoError(t, err)
				if ok {
					sent[i], out[i] = sent[i]+1, nil
				}
			}
			if got[i] < times {
				ok, err := c.Stream(0).Recv(1, bufOf(in[i]))
				require.NoError(t, err)
				if ok {
					require.Equal(t, content(1-i, got[i], n), in[i])
					got[i]++
				}
			}
		}
	}
	require.True(t, ends[0].link.whole() && ends[1].link.whole())
}

// detoured is a connection between two endpoints without a device, over sockets, with one QP that nothing comes of.
func detoured(a, b net.Conn, slot, streams int) (ends [2]*conn) {
	for i, socket := range []net.Conn{a, b} {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // nobody mends
		e := &endpoint{ctx: ctx, epoll: -1, event: -1, config: Config{Slot: slot, Slots: 8, Fallback: true, Log: slog.New(slog.DiscardHandler)}}
		e.options = transport.Options{Streams: streams, MaxMessage: 1 << 20}
		e.cache = newCache(nil, e.config)
		half := e.config.layout(streams)
		l := &link{e: e, live: 1, half: half, socket: socket, memory: block{bytes: make([]byte, 2*half)}}
		for range streams {
			l.lanes = append(l.lanes, newLane(e.config.Slots))
		}
		l.rx, l.tx = l.memory.bytes[:half], l.memory.bytes[half:]
		l.queues = []*queue{{link: l, nic: &nic{}, sq: 64, ours: record{addr: l.memory.addr()}}}
		c := newConn(e, transport.Key{Comm: 1, Self: int32(i), Peer: int32(1 - i)}, address{})
		c.link, l.conn = l, c
		e.conns = []*conn{c}
		ends[i] = c
		e.watchers.Go(l.watch)
	}
	return ends
}

// TestClosedOverTCP: what was sent over a slow network before the connection was closed arrives, though the reader's credits find nobody any
// more who waits for them.
func TestClosedOverTCP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	pair := func() (net.Conn, net.Conn) {
		x, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		y, err := listener.Accept()
		require.NoError(t, err)
		return x, y
	}
	a, near := pair()
	far, b := pair()
	require.NoError(t, near.(*net.TCPConn).SetReadBuffer(64<<10))
	var network sync.WaitGroup
	defer network.Wait()
	carry := func(from, to net.Conn, pause time.Duration) {
		part := make([]byte, 16<<10)
		for {
			n, err := from.Read(part)
			time.Sleep(pause)
			to.Write(part[:n])
			if err != nil {
				to.(*net.TCPConn).CloseWrite()
				return
			}
		}
	}
	network.Go(func() { carry(near, far, 5*time.Millisecond) })
	network.Go(func() { carry(far, near, 0) })
	ends := detoured(a, b, 64<<10, 1)
	for _, c := range ends {
		defer c.e.watchers.Wait()
		defer c.link.shut()
		q := c.link.queues[0]
		q.broken, q.told, q.theirs, q.redone, c.link.broke, c.link.live = true, true, true, true, true, 0
		c.link.detour()
	}
	const n, messages = 60 << 10, 8
	for k := range messages {
		ok, err := ends[0].Stream(0).Send(1, bufOf(content(0, k, n)))
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.NoError(t, ends[0].Close())
	in, got := make([]byte, n), 0
	receive := func() (ok bool) {
		ends[0].e.Progress()
		ends[1].e.Progress()
		ok, err = ends[1].Stream(0).Recv(1, bufOf(in))
		time.Sleep(50 * time.Microsecond)
		return ok || err != nil
	}
	for deadline := time.Now().Add(patience); got < messages; got++ {
		for !receive() {
			require.False(t, time.Now().After(deadline), "%d of %d arrived", got, messages)
		}
		require.NoError(t, err, "%d of %d arrived", got, messages)
		require.Equal(t, content(0, got, n), in)
	}
	for deadline := time.Now().Add(patience); !receive() || !ends[0].gone; {
		require.False(t, time.Now().After(deadline), "the end")
	}
	require.ErrorIs(t, err, transport.ErrLeft)
}

// content is the bytes of a rank's message k.
func content(rank, k, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + k*31 + rank*3)
	}
	return b
}
