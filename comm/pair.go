package comm

import (
	"maps"
	"sync"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/transport"
)

// pair is point-to-point with one peer: two lanes on a connection of its own, one a direction, each with its own
// sequence. The peer is number 0 of the port.
type pair struct {
	port     *engine.Port
	seq      [2]uint64
	recent   [2][remembered]entry
	prepared [2]*prepared // the last ones
	regulars [2]run       // of callers who drive their messages at once; like a regular's, of whoever holds lock and token
	group    [2]uint64    // the last Group that had a message of this direction, see Comm.messages
}

// Lanes of a pair.
const (
	sending = iota
	receiving
)

func laneOf(k Kind) int {
	if k == KindRecv {
		return receiving
	}
	return sending
}

// pairPlans are a message to and from the one peer of a pair.
var pairPlans = [2]*collective.Plan{sending: pairPlan(true), receiving: pairPlan(false)}

func pairPlan(send bool) *collective.Plan {
	p, err := collective.PointToPoint(2, 1, 0, send)
	if err != nil {
		panic(err)
	}
	return p
}

// pair returns the pair with a peer, made at first use; of a communicator that has failed it has no port, which nobody would end. The communicator's
// lock is held.
func (c *Comm) pair(peer int) *pair {
	p := c.pairs[peer]
	switch {
	case p != nil:
	case peer == c.rank || c.reason() != nil:
		p = &pair{}
		c.pairs[peer] = p
	default:
		p = &pair{port: c.family.driver.NewPort(engine.PortOptions{
			Owner: c, Ranks: 1, Lanes: 2, Streams: 1,
			Dial:    func(int, int) (transport.Conn, error) { return c.dial(transport.PointToPoint, peer) },
			Stalled: c.stalled,
			Broken:  c.breakConns,
		})}
		c.pairs[peer] = p
		c.pairPorts.add(peer, p.port)
	}
	return p
}

// portMap is the ports of pairs, for those who cannot take the communicator's lock: the holder of the driver's token.
type portMap struct {
	mu    sync.Mutex
	ports map[int]*engine.Port
}

func (m *portMap) add(peer int, p *engine.Port) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ports == nil {
		m.ports = map[int]*engine.Port{}
	}
	m.ports[peer] = p
}

func (m *portMap) all() map[int]*engine.Port {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.ports)
}

// startPair checks a Send or Recv and gives it to the engine: the run's, or the pair's regular one if the caller drives it at once.
func (c *Comm) startPair(r *run, then intent) (is *run, holds bool, err error) {
	call := &r.call
	if err := c.checkShape(call); err != nil {
		return r, false, err
	}
	src, dst, err := c.sizes(call)
	if err != nil {
		return r, false, err
	}
	if err := c.checkMemory(call, src, dst, false); err != nil {
		return r, false, err
	}
	onDevice := !call.memory().Device.IsHost()
	if onDevice {
		if err := c.checkDevice(call); err != nil {
			return r, false, err
		}
	}
	lane := laneOf(call.Kind)
	c.mu.Lock()
	c.count(src, dst)
	p := c.pair(call.Peer)
	p.seq[lane]++
	r.seq = p.seq[lane]
	holds = then == waits && p.port != nil && !onDevice && p.port.Hold()
	if c.reason() != nil { // asked under the token: see repeat
		if holds {
			p.port.Drop()
		}
		c.mu.Unlock()
		return r, false, r.outcome()
	}
	like := p.like(lane, call)
	if holds {
		own := &p.regulars[lane]
		own.comm, own.call, own.seq, own.regular, own.nextLook, own.elapsed = c, r.call, r.seq, true, firstLook, 0
		c.keep(r)
		r, call = own, &own.call
	}
	if onDevice {
		r.prepared, r.lane = like, lane
		err := c.postOnDevice(r)
		c.mu.Unlock()
		if err != nil {
			c.fail(err) // another rank has given up
			return r, false, r.outcome()
		}
		return r, false, nil
	}
	if call.Peer == c.rank {
		r.prepared, r.lane = like, lane
		matches := c.startSelf(r)
		c.mu.Unlock()
		if !matches {
			return r, false, r.outcome()
		}
		return r, false, nil
	}
	defer c.mu.Unlock()
	r.message(p, lane, like, holds)
	switch {
	case holds:
		p.port.StartHeld(&r.Call, lane, r.tasks...)
	case then == leaves:
		p.port.Start(&r.Call, lane, r.tasks...)
	default:
		p.port.Begin(&r.Call, lane, r.tasks...)
	}
	return r, holds, nil
}

// like is the last message of a direction if a call is like that one; else it is that from now on. The communicator's lock is held.
func (p *pair) like(lane int, call *Call) *prepared {
	like := p.prepared[lane]
	if like == nil || like.dtype != call.DType || like.count != call.Count || like.whole != call.whole {
		like = &prepared{signature: signature{kind: KindSend, dtype: call.DType, count: call.Count, whole: call.whole}}
		like.digest = like.sum()
		p.prepared[lane] = like
	}
	return like
}

// message makes the task of a run that has a number; a regular one has the task of its last message. The communicator's lock is held.
func (r *run) message(p *pair, lane int, like *prepared, regular bool) {
	c, call := r.comm, &r.call
	p.recent[lane][r.seq%remembered] = entry{r.seq, like, r}
	if !regular || r.prepared != like {
		elem := call.DType.Size()
		r.parts = append(r.parts[:0], engine.Task{
			Plan:   pairPlans[lane],
			Layout: collective.Layout{Count: call.Count, Elem: elem, Round: max(1, c.family.model.Piece/elem), Pieces: 1},
			Stride: 1,
		})
		r.tasks = append(r.tasks[:0], &r.parts[0])
		r.Call.Note, r.Call.Post = r, nil
		r.started = true
	}
	r.prepared, r.lane = like, lane
	t, bytes := &r.parts[0], int64(call.Count)*int64(call.DType.Size())
	t.Tag = like.digest ^ uint32(r.seq)*0x9e3779b1
	t.In, t.Out, t.InShared = call.Src.Ptr, call.Dst.Ptr, lane == sending && bytes >= sharedFrom && c.shared(call.Src.Ptr, bytes)
}
