package mem

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gccl-project/gccl/transport"
)

// endpoint is one member of a Network. Fields that others than the owner touch
// are guarded by network.mu or atomic.
type endpoint struct {
	network *Network
	id      uint64
	options transport.Options
	conns   map[transport.Key]*conn // guarded by network.mu
	past    transport.Past          // guarded by network.mu: communicators
	closed  atomic.Bool
	timers  sync.WaitGroup // delayed messages of ours whose timer may still run
	backlog atomic.Int64   // messages that wait for credit
	arena   arena

	sent, received           atomic.Uint64
	bytesSent, bytesReceived atomic.Uint64
	open                     atomic.Int64 // conns
	memory                   atomic.Int64
}

func (e *endpoint) Name() string { return Name }

// Reach proves that the address is of this network. An endpoint that has been
// closed is reached, and gone.
func (e *endpoint) Reach(_ context.Context, address []byte) error {
	_, err := e.network.parseAddress(address)
	return err
}

func (e *endpoint) Conn(k transport.Key, address []byte) (transport.Conn, error) {
	if k.Self == k.Peer || k.Self < 0 || k.Peer < 0 || k.Channel < transport.PointToPoint {
		return nil, fmt.Errorf("mem: cannot connect with key %+v: ranks must be ≥ 0 and differ, the channel ≥ %d", k, transport.PointToPoint)
	}
	id, err := e.network.parseAddress(address)
	if err != nil {
		return nil, err
	}
	if id == e.id {
		return nil, fmt.Errorf("mem: rank %d has our own address %s", k.Peer, name(id))
	}
	n := e.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.closed.Load() {
		return nil, &transport.PeerError{Transport: Name, Key: k, Peer: peerName(k, id), Op: "connect", Err: transport.ErrClosed}
	}
	if c := e.conns[k]; c != nil {
		return c, nil
	}
	if e.past.Left(k.Comm) {
		return nil, &transport.PeerError{Transport: Name, Key: k, Peer: peerName(k, id), Op: "connect", Err: fmt.Errorf("we have left the communicator: %w", transport.ErrClosed)}
	}
	peer := n.open[id]
	if peer != nil {
		if err := agree(e.options, peer.options); err != nil {
			return nil, &transport.PeerError{Transport: Name, Key: k, Peer: peerName(k, id), Op: "connect", Err: err}
		}
	}
	c := &conn{endpoint: e, key: k, peer: peer, peerID: id}
	c.link, c.side = n.link(k, e.id, id, e.options.Streams)
	c.link.asked[c.side].Store(true)
	c.streams = make([]stream, e.options.Streams)
	for i := range c.streams {
		c.streams[i] = stream{conn: c, index: i, out: &c.link.queues[c.side][i], in: &c.link.queues[1-c.side][i]}
	}
	if peer == nil || peer.past.Left(k.Comm) {
		c.link.close(1-c.side, peer)
	}
	e.conns[k] = c
	e.open.Add(1)
	return c, nil
}

// Progress copies what has credit by now. Where memory is shared, what is accepted has been handed over.
func (e *endpoint) Progress() bool {
	if e.backlog.Load() == 0 {
		return false
	}
	n := e.network
	n.mu.Lock()
	conns := slices.Collect(maps.Values(e.conns))
	n.mu.Unlock()
	moved := false
	for _, c := range conns {
		here := false
		for i := range c.streams {
			here = c.streams[i].out.move(e) || here
		}
		if here {
			c.peer.wake()
		}
		moved = moved || here
	}
	return moved
}

func (e *endpoint) Stats() transport.Stats {
	return transport.Stats{
		MessagesSent:     e.sent.Load(),
		MessagesReceived: e.received.Load(),
		BytesSent:        e.bytesSent.Load(),
		BytesReceived:    e.bytesReceived.Load(),
		Conns:            int(e.open.Load()),
		Memory:           e.memory.Load(),
		Allocated:        e.arena.bytes(),
	}
}

// leftMost bounds the communicators left that are remembered.
const leftMost = 1 << 16

// Leave closes our ends of the links that only the peer has asked for.
func (e *endpoint) Leave(comm uint64) {
	n := e.network
	n.mu.Lock()
	if e.closed.Load() {
		n.mu.Unlock()
		return
	}
	e.past.Leave(comm, leftMost)
	var wake []*endpoint
	for k, l := range n.links {
		for side, id := range k.ids {
			if k.comm == comm && id == e.id && !l.asked[side].Load() {
				l.close(side, e)
				n.forgetLocked(l)
				wake = append(wake, n.open[k.ids[1-side]])
			}
		}
	}
	n.mu.Unlock()
	for _, peer := range wake {
		peer.wake()
	}
}

// Close breaks all connections, those included that only the peer has asked for.
func (e *endpoint) Close() error {
	n := e.network
	n.mu.Lock()
	if e.closed.Swap(true) {
		n.mu.Unlock()
		e.timers.Wait()
		return nil
	}
	delete(n.open, e.id)
	conns := make([]*conn, 0, len(e.conns))
	for _, c := range e.conns {
		conns = append(conns, c)
	}
	var wake []*endpoint
	for k, l := range n.links {
		for side, id := range k.ids {
			if id == e.id {
				e.memory.Add(-l.close(side, e))
				l.flush(side, e)
				n.forgetLocked(l)
				wake = append(wake, n.open[k.ids[1-side]])
			}
		}
	}
	n.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	e.timers.Wait()
	e.arena.close()
	for _, peer := range wake {
		peer.wake()
	}
	return nil
}

func (e *endpoint) wake() {
	if e != nil && e.options.Wake != nil {
		e.options.Wake()
	}
}

func name(id uint64) string { return fmt.Sprintf("mem:%d", id) }

func peerName(k transport.Key, id uint64) string {
	return fmt.Sprintf("rank %d at %s", k.Peer, name(id))
}
