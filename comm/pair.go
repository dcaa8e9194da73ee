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
}

// Lanes of a pair.
const (
	sending = iota
	receiving
)

// pairPlans are a message to and from the one peer of a pair.
var pairPlans = [2]*collective.Plan{sending: pairPlan(true), receiving: pairPlan(false)}

func pairPlan(send bool) *collective.Plan {
	p, err := collective.PointToPoint(2, 1, 0, send)
	if err != nil {
		panic(err)
	}
	return p
}

// pair returns the pair with a peer, made at first use. The communicator's lock is held.
func (c *Comm) pair(peer int) *pair {
	p := c.pairs[peer]
	switch {
	case p != nil:
	case peer == c.rank:
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

// startPair checks a Send or Recv and gives it to the engine.
func (c *Comm) startPair(r *run, then intent) (holds bool, err error) {
	call := &r.call
	if err := c.checkShape(call); err != nil {
		return false, err
	}
	src, dst, err := c.sizes(call)
	if err != nil {
		return false, err
	}
	if err := c.checkMemory(call, src, dst, false); err != nil {
		return false, err
	}
	onDevice := !call.memory().Device.IsHost()
	if onDevice {
		if err := c.checkDevice(call); err != nil {
			return false, err
		}
	}
	lane := sending
	if call.Kind == KindRecv {
		lane = receiving
	}
	c.mu.Lock()
	c.count(src, dst)
	p := c.pair(call.Peer)
	p.seq[lane]++
	r.seq = p.seq[lane]
	if c.reason() != nil {
		c.mu.Unlock()
		return false, r.outcome()
	}
	is := p.prepared[lane]
	if is == nil || is.dtype != call.DType || is.count != call.Count {
		is = &prepared{signature: signature{kind: KindSend, dtype: call.DType, count: call.Count}}
		is.digest = is.sum()
		p.prepared[lane] = is
	}
	r.prepared, r.lane = is, lane
	if onDevice {
		err := c.postOnDevice(r)
		c.mu.Unlock()
		if err != nil {
			c.fail(err) // another rank has given up
			return false, r.outcome()
		}
		return false, nil
	}
	defer c.mu.Unlock()
	if call.Peer == c.rank {
		return false, c.startSelf(r)
	}
	p.recent[lane][r.seq%remembered] = entry{r.seq, r.prepared, r}
	elem := call.DType.Size()
	r.parts = append(r.parts[:0], engine.Task{
		Plan:   pairPlans[lane],
		Layout: collective.Layout{Count: call.Count, Elem: elem, Round: max(1, c.family.model.Piece/elem), Pieces: 1},
		Stride: 1,
		Tag:    is.digest ^ uint32(r.seq)*0x9e3779b1,
		In:     call.Src.Ptr, Out: call.Dst.Ptr,
		InShared: src >= sharedFrom && c.shared(call.Src.Ptr, src),
	})
	r.tasks = append(r.tasks[:0], &r.parts[0])
	r.Call.Note, r.Call.Post = r, nil
	r.started = true
	switch then {
	case waits:
		return p.port.TryStart(&r.Call, lane, r.tasks...), nil
	case gathers:
		p.port.Begin(&r.Call, lane, r.tasks...)
	default:
		p.port.Start(&r.Call, lane, r.tasks...)
	}
	return false, nil
}
