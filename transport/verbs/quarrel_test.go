//go:build linux && cgo

package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// quarrel is two ends of a connection over devices that a test's chance drives: requests travel, fail, or fail though they have arrived; offers
// come late or never, and so do commits.
type quarrel struct {
	*testing.T
	random *rand.Rand
	ends   [2]*conn
	nics   [2]*nic
	qps    map[uint32]*chanceQP
	come   [2][]arrival // completions that were not polled
	calm   bool
	cut    [2]bool // places by which nothing travels
	offers []*attempt
	held   int // QPs that there are
}

// places is how many QPs a connection has. The last never fails, for else nothing would be left.
const places = 3

type arrival struct {
	by *chanceQP
	c  ibv.Completion
}

// chanceQP is a QP, which is between this end and the other's whose number it was told.
type chanceQP struct {
	w      *quarrel
	end    int
	q      *queue
	peer   uint32
	ready  bool // to receive
	broken bool
	under  []ibv.Send
}

func (p *chanceQP) Modify(a ibv.Attr) error {
	switch a.State {
	case ibv.RTR:
		p.peer, p.ready = a.DestQPN, true
	case ibv.Err:
		p.broken, p.under = true, nil
	}
	return nil
}

func (p *chanceQP) Query() (ibv.Attr, error) { return ibv.Attr{}, errors.ErrUnsupported }

func (p *chanceQP) Post(b []ibv.Send) (int, error) {
	if !p.broken {
		p.under = append(p.under, b...)
	}
	return len(b), nil
}

func (p *chanceQP) PostRecv(b []ibv.Recv) (int, error) { return len(b), nil }

func (p *chanceQP) Close() error {
	p.broken, p.ready, p.under = true, false, nil
	if p.w.qps[p.q.ours.qpn] == p {
		delete(p.w.qps, p.q.ours.qpn)
		p.w.held--
	}
	return nil
}

// travel does a QP's next request, or has it fail.
func (w *quarrel) travel(p *chanceQP) {
	if len(p.under) == 0 {
		return
	}
	r := p.under[0]
	p.under = p.under[1:]
	other := w.qps[p.peer]
	fails := p.q.index < len(w.cut) && (w.cut[p.q.index] || !w.calm && w.random.IntN(100) == 0)
	arrives := other != nil && other.ready && !other.broken && (!fails || w.random.IntN(2) == 0)
	if arrives {
		if r.Bytes > 0 {
			from, to := w.ends[p.end].link, w.ends[1-p.end].link
			copy(to.rx[r.Remote-to.memory.addr():], from.tx[r.Addr-p.q.ours.addr-uint64(from.half):][:r.Bytes])
		}
		if r.Op == ibv.WriteWithImm {
			w.come[1-p.end] = append(w.come[1-p.end], arrival{other, ibv.Completion{ID: uint64(other.q.id)<<32 | 1, Imm: r.Imm}})
		}
	}
	switch {
	case fails || !arrives:
		p.broken, p.under = true, nil
		w.come[p.end] = append(w.come[p.end], arrival{p, ibv.Completion{ID: r.ID, Status: ibv.RetryExceeded}})
	case r.Flags&ibv.Signaled != 0:
		w.come[p.end] = append(w.come[p.end], arrival{p, ibv.Completion{ID: r.ID}})
	}
}

// drive is an end's driver, which takes some of its completions.
func (w *quarrel) drive(end int) {
	n := w.nics[end]
	for k := w.random.IntN(8); k > 0 && len(w.come[end]) > 0; k-- {
		a := w.come[end][0]
		w.come[end] = w.come[end][1:]
		n.mu.Lock()
		if q := n.queues[uint32(a.c.ID>>32)]; q != nil {
			q.take(&a.c)
		}
		n.mu.Unlock()
	}
	w.ends[end].e.Progress()
}

func newQuarrel(t *testing.T, seed uint64) *quarrel {
	w := &quarrel{T: t, random: rand.New(rand.NewPCG(seed, 1)), qps: map[uint32]*chanceQP{}}
	qpn := uint32(1000)
	for i := range w.ends {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // nobody mends but the test
		e := &endpoint{ctx: ctx, epoll: -1, event: -1, silence: 1 << 30, config: Config{Slot: 1 << 10, Slots: 8, Log: slog.New(slog.DiscardHandler)}}
		e.options = transport.Options{Streams: 2, MaxMessage: 1 << 20}
		half := e.config.layout(2)
		l := &link{e: e, live: places, half: half, memory: block{bytes: make([]byte, 2*half)}, lanes: []lane{newLane(8), newLane(8)}}
		l.rx, l.tx = l.memory.bytes[:half], l.memory.bytes[half:]
		w.nics[i] = &nic{queues: map[uint32]*queue{}}
		l.makes = func(n *nic) (*queue, error) {
			q := &queue{link: l, nic: n, state: ibv.Init, sq: 64}
			q.ours = goodRecord()
			qpn++
			q.ours.qpn, q.ours.addr, q.ours.bytes = qpn, l.memory.addr(), uint64(half)
			p := &chanceQP{w: w, end: i, q: q}
			q.qp, w.qps[qpn] = p, p
			n.enter(q)
			w.held++
			return q, nil
		}
		for k := range places {
			q, err := l.makes(w.nics[i])
			require.NoError(t, err)
			q.index = k
			l.queues = append(l.queues, q)
		}
		c := newConn(e, transport.Key{Comm: 1, Self: int32(i), Peer: int32(1 - i)}, address{})
		c.link, l.conn = l, c
		e.conns = []*conn{c}
		w.ends[i] = c
	}
	for i, c := range w.ends {
		require.NoError(t, c.link.connect(w.ends[1-i].link.records()))
	}
	return w
}

// attempt is an offer on its way.
type attempt struct {
	q, ours, theirs *queue
	hello           hello
	step            int
}

const (
	offered = iota
	welcomed
	refused
	committed
)

// proceed does what comes next of an attempt, or gives it up at either end, and reports whether it is over.
func (w *quarrel) proceed(a *attempt) bool {
	lower, higher := w.ends[0], w.ends[1]
	lost := !w.calm && w.random.IntN(4) == 0
	switch a.step {
	case offered:
		if lost { // the lower rank does not wait; what it has said may still be heard
			lower.e.decide(lower.link, a.ours, false)
			a.ours = nil
			if w.random.IntN(2) == 0 {
				return true
			}
		}
		var err error
		if a.theirs, err = higher.link.consider(&a.hello); err != nil {
			a.step = refused
		} else {
			a.step = welcomed
		}
	case welcomed:
		if a.ours == nil || lost || a.ours.connect(a.theirs.ours) != nil {
			a.step = refused
			break
		}
		// Whether a commit was heard and whether its sender believes so are two things.
		lower.e.decide(lower.link, a.ours, w.calm || w.random.IntN(4) > 0)
		a.step = committed
	case refused:
		if a.ours != nil {
			lower.e.decide(lower.link, a.ours, false)
		}
		if a.theirs != nil {
			higher.e.decide(higher.link, a.theirs, false)
		}
		return true
	case committed:
		higher.e.decide(higher.link, a.theirs, w.calm || w.random.IntN(4) > 0)
		return true
	}
	return false
}

// step is something that may happen next.
func (w *quarrel) step() {
	switch w.random.IntN(8) {
	case 0, 1:
		w.drive(w.random.IntN(2))
	case 2:
		if w.calm || w.random.IntN(3) > 0 {
			break
		}
		w.cut[w.random.IntN(len(w.cut))] = w.random.IntN(2) == 0
	case 3:
		if k := w.random.IntN(len(w.offers) + 1); k < len(w.offers) && w.proceed(w.offers[k]) {
			w.offers = append(w.offers[:k], w.offers[k+1:]...)
		}
	case 4:
		l := w.ends[0].link
		q := l.queues[w.random.IntN(places)]
		for _, a := range w.offers {
			if a.q == q && a.ours != nil {
				return // one at a time, but for those that nobody waits for any more
			}
		}
		if !q.broken || !q.redone {
			break
		}
		if p, err := l.offer(q); err == nil {
			w.offers = append(w.offers, &attempt{q: q, ours: p, hello: hello{number: p.generation, mends: q.origin().peer.name(), records: []record{p.ours}}})
		}
	default:
		for k := uint32(w.random.IntN(40)); k > 0; k-- {
			p := w.some()
			w.travel(p)
		}
	}
}

// some is any QP, by chance that a seed repeats.
func (w *quarrel) some() *chanceQP {
	l := w.ends[w.random.IntN(2)].link
	k := w.random.IntN(2 * places)
	if p := l.probes[k-places]; p != nil {
		return p.qp.(*chanceQP)
	}
	if p, ok := l.queues[k%places].qp.(*chanceQP); ok {
		return p
	}
	return &chanceQP{}
}

// TestMendsQuarrel: whatever becomes of probes, offers, commits and words at either end, all messages arrive once, in order and as they were; and
// when nothing fails any more both ends use the same QPs again, and no other is left.
func TestMendsQuarrel(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 50
	}
	promoted := 0
	for seed := range seeds {
		w := newQuarrel(t, seed)
		const messages = 200
		var sent, got [2]int
		var in [2][4000]byte
		size := func(k int) int { return 1 + k*397%3000 }
		lastly := 0
		for turn := 0; ; turn++ {
			w.step()
			for i, c := range w.ends {
				require.NoError(t, c.link.failed, "seed %d", seed)
				if sent[i] < messages && w.random.IntN(4) == 0 {
					ok, err := c.Stream(0).Send(1, bufOf(content(i, sent[i], size(sent[i]))))
					require.NoError(t, err, "seed %d", seed)
					if ok {
						sent[i]++
					}
				}
				if got[i] < messages {
					n := size(got[i])
					ok, err := c.Stream(0).Recv(1, bufOf(in[i][:n]))
					require.NoError(t, err, "seed %d", seed)
					if ok {
						require.True(t, bytes.Equal(content(1-i, got[i], n), in[i][:n]), "seed %d, message %d", seed, got[i])
						got[i]++
					}
				}
			}
			if turn == 4000 {
				w.calm, w.cut = true, [2]bool{}
				promoted += int(w.ends[0].link.offered[0])
			}
			if w.calm && got == [2]int{messages, messages} && w.agreed() {
				if lastly++; lastly > 300 { // it stays so
					break
				}
			} else {
				lastly = 0
			}
			if turn > 60_000 {
				require.Fail(t, "waited in vain", "seed %d: %v of %d arrived, %d QPs\n%s\n%s\n%s", seed, got, messages, w.held, w.ends[0].state(), w.ends[1].state(), w.names())
			}
		}
	}
	t.Logf("%d offers for one place", promoted)
}

// agreed reports whether both ends use the same QPs, in all places, and no other.
func (w *quarrel) agreed() bool {
	a, b := w.ends[0].link, w.ends[1].link
	for k := range places {
		if p, q := a.queues[k], b.queues[k]; p.broken || q.broken || p.peer.qpn != q.ours.qpn || q.peer.qpn != p.ours.qpn || p.generation != q.generation {
			return false
		}
	}
	return a.live == places && b.live == places && a.whole() && b.whole() && w.held == 2*places
}

func (w *quarrel) names() (s string) {
	for i, c := range w.ends {
		for k, q := range c.link.queues {
			s += fmt.Sprintf("rank %d place %d: generation %d QP %d to %d, probe %v\n", i, k, q.generation, q.ours.qpn, q.peer.qpn, c.link.probes[k] != nil)
		}
	}
	return s
}
