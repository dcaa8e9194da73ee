package mem

import (
	"sync"
	"sync/atomic"

	"github.com/gccl-project/gccl/transport"
)

// linkKey names what both ends of a connection share. Index 0 is the lower rank.
type linkKey struct {
	comm    uint64
	channel int32
	ranks   [2]int32
	ids     [2]uint64
}

// link is what the two ends of a connection share. Side 0 is the lower rank.
type link struct {
	key    linkKey
	hosts  [2]string
	queues [2][]queue     // [side that sends][stream]
	asked  [2]atomic.Bool // this side has a conn
	closed [2]atomic.Bool
	broken atomic.Bool // by a Hook's Reset, or Network.Kill

	mu   sync.Mutex     // orders cut against closed
	cut  bool           // nothing passes
	told [2]atomic.Bool // that this side is closed has reached the other
}

// link finds or makes the link of k and says which side self is. Network.mu is
// held.
func (n *Network) link(k transport.Key, self, peer uint64, streams int) (*link, int) {
	key, side := linkKey{k.Comm, k.Channel, [2]int32{k.Self, k.Peer}, [2]uint64{self, peer}}, 0
	if k.Self > k.Peer {
		key.ranks[0], key.ranks[1] = key.ranks[1], key.ranks[0]
		key.ids[0], key.ids[1] = key.ids[1], key.ids[0]
		side = 1
	}
	l := n.links[key]
	if l == nil {
		l = &link{key: key, hosts: [2]string{n.hosts[key.ids[0]], n.hosts[key.ids[1]]}, queues: [2][]queue{make([]queue, streams), make([]queue, streams)}}
		n.links[key] = l
		if n.Credit != nil {
			credit := n.Credit(n.hosts[self], n.hosts[peer])
			for i := range streams {
				l.queues[0][i].credit, l.queues[1][i].credit = credit, credit
			}
		}
		l.broken.Store(n.dead[n.hosts[self]] || n.dead[n.hosts[peer]])
		l.setCut(n.cut[n.hosts[self]] || n.cut[n.hosts[peer]])
	}
	return l, side
}

// close ends what side, which is e's, sends and reads. Memory that side has lent and that was
// not read yet is copied, so that it is side's again while the peer can still
// read.
//
// It returns the bytes of the queues that side's Stats count no longer.
func (l *link) close(side int, e *endpoint) (freed int64) {
	if l.closed[side].Swap(true) {
		return 0
	}
	l.mu.Lock()
	l.told[side].Store(!l.cut)
	l.mu.Unlock()
	for i := range l.queues[side] {
		freed += l.queues[side][i].takeBack(e)
	}
	return freed
}

// over reports whether side knows that nothing more comes from the other, which closed or is gone.
func (l *link) over(side int) bool { return l.told[1-side].Load() || l.broken.Load() }

// flush shows the delayed messages of side, which is e's.
func (l *link) flush(side int, e *endpoint) {
	for i := range l.queues[side] {
		l.queues[side][i].flush(e)
	}
}

// forget takes a link out of the network, and its ends out of their endpoints, once nobody uses it.
func (n *Network) forget(l *link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgetLocked(l)
}

func (n *Network) forgetLocked(l *link) {
	if !l.closed[0].Load() || !l.closed[1].Load() || n.links[l.key] != l {
		return
	}
	delete(n.links, l.key)
	for side, id := range l.key.ids {
		k := transport.Key{Comm: l.key.comm, Channel: l.key.channel, Self: l.key.ranks[side], Peer: l.key.ranks[1-side]}
		if e := n.open[id]; e != nil && e.conns[k] != nil && e.conns[k].link == l {
			delete(e.conns, k)
		}
	}
}

// conn is one end of a link.
type conn struct {
	endpoint *endpoint
	key      transport.Key
	link     *link
	side     int
	peer     *endpoint // nil: it was closed before
	peerID   uint64
	streams  []stream
	closed   atomic.Bool
}

func (c *conn) Stream(i int) transport.Stream { return &c.streams[i] }

func (c *conn) Peer() string { return peerName(c.key, c.peerID) }

func (c *conn) Met() bool { return c.link.asked[1-c.side].Load() }

func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	c.endpoint.memory.Add(-c.link.close(c.side, c.endpoint))
	c.endpoint.open.Add(-1)
	c.endpoint.network.forget(c.link)
	c.peer.wake()
	return nil
}

// wrap makes an error about this connection.
func (c *conn) wrap(op string, err error) error {
	return &transport.PeerError{Transport: Name, Key: c.key, Peer: c.Peer(), Op: op, Err: err}
}
