//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// link is the QPs of a connection with their memory, and the TCP connection over which they were set up, which is kept because its end
// tells of the peer's at once. It is made in the background; from connect on the driver alone touches it, but for dead and unwritten.
type link struct {
	e       *endpoint
	rank    int   // ours
	memory  block // the peer's slots to us, then ours to it; Streams × Slots each
	half    int   // bytes of either
	rx, tx  []byte
	queues  []*queue
	turn    int // the queue whose turn it is
	lanes   []lane
	live    int            // queues that are not broken
	broke   bool           // a queue has failed at some time: things may come twice
	spare   *queue         // over TCP, once there was no QP left
	probes  map[int]*queue // those that may take the places of some that failed
	retired []*queue       // to be destroyed when nobody polls: their places were taken, or they could not be put in the state ERR
	offered map[int]uint32 // by place, the number of the last offer there
	missing []uint32       // QPs, as words count them, of which the peer is to be told that we have not got them any more
	makes   func(*nic) (*queue, error)
	again   int // slots that are to be written again, by another queue
	socket  net.Conn
	dead    atomic.Pointer[error] // the peer's end, as the socket tells it

	unwritten atomic.Pointer[error] // why nothing more goes over TCP

	conn   *conn // once it has taken us up
	words  []int // of a parking, which were not answered yet
	ended  int   // streams of which the peer has said that it will send nothing more
	saying int   // how much of our own goodbye was said
	failed error
	gone   bool // no QP and no socket are left
}

// newLink makes so many QPs in the state INIT with all their receives posted, by turns on our ports, for our rank.
func (e *endpoint) newLink(rank, queues int) (l *link, err error) {
	l = &link{e: e, rank: rank, lanes: make([]lane, e.options.Streams), half: e.config.layout(e.options.Streams)}
	l.makes = l.newQueue
	defer func() {
		if err != nil {
			err = errors.Join(err, l.shut(), l.free())
			l = nil
		}
	}()
	if l.memory, err = e.pool.take(); err != nil {
		return l, err
	}
	l.rx, l.tx = l.memory.bytes[:l.half], l.memory.bytes[l.half:2*l.half]
	for i := range l.lanes {
		l.lanes[i] = newLane(e.config.Slots)
	}
	for i := range l.lanes { // what was left by another connection would look like news
		for k := range e.config.Slots {
			clear(l.rx[l.slot(i, uint64(k))+useAt:][:8])
		}
	}
	return l, l.fill(queues)
}

// fill makes the queues. One whose device has failed is left to the others, or to TCP.
func (l *link) fill(queues int) error {
	var errs []error
	for i := range queues {
		n := l.e.nics[i%len(l.e.nics)]
		q, err := l.makes(n)
		switch {
		case err == nil:
			l.live++
		case !n.without(err):
			return err
		default:
			errs = append(errs, err)
			q = &queue{link: l, nic: n, ours: record{link: n.port.LinkLayer, mtu: n.mtu, psn: rand.Uint32() & most24, bytes: uint64(l.half)}}
			l.vacate(q, err)
		}
		q.index = i
		l.queues = append(l.queues, q)
	}
	if l.live == 0 && !l.e.config.Fallback {
		return errors.Join(errs...)
	}
	return nil
}

// vacate notes, before anything is sent, that a queue has no QP, or one that does not lead to the peer's. It is as if it had failed, at both ends:
// where the peer does not know, it is told when the link is taken up.
func (l *link) vacate(q *queue, why error) {
	l.e.config.Log.Warn("verbs: a connection is made without a QP, others or TCP take its traffic", "queue", q, "reason", why)
	q.broken, q.theirs, l.broke = true, true, true
}

// own is a failure that the peer has no part in.
func (l *link) own(err error) error { return &transport.OwnError{Rank: l.rank, Err: err} }

// records say how to reach our QPs.
func (l *link) records() []record {
	all := make([]record, len(l.queues))
	for i, q := range l.queues {
		all[i] = q.ours
	}
	return all
}

// connect takes all QPs to RTS that both ends have. Where one end has none, or they do not come together, both go without.
func (l *link) connect(peer []record) error {
	if len(peer) != len(l.queues) {
		return fmt.Errorf("verbs: the peer answers with %d QPs, want %d", len(peer), len(l.queues))
	}
	var errs []error
	for i, q := range l.queues {
		q.peer = peer[i]
		if q.broken {
			continue
		}
		err := q.connect(peer[i])
		if err == nil {
			continue
		}
		if q.nic.without(err) {
			err = l.own(err)
		}
		if err := q.close(); err != nil { // then nobody knows what the peer can still do by it
			return l.own(err)
		}
		l.live--
		l.vacate(q, err)
		errs = append(errs, err)
		q.ours.qpn = 0
	}
	if l.live == 0 && !l.e.config.Fallback {
		return errors.Join(errs...)
	}
	return nil
}

// pick returns the queue for the next request, by turns; nil if none has room.
func (l *link) pick() *queue {
	for range l.queues {
		q := l.queues[l.turn]
		if l.turn++; l.turn == len(l.queues) {
			l.turn = 0
		}
		if q.room() {
			return q
		}
	}
	if l.live == 0 && l.spare != nil && l.spare.room() {
		return l.spare
	}
	return nil
}

// flush posts what the queues were given.
func (l *link) flush() {
	for _, q := range l.queues {
		if q.filled > 0 {
			if err := q.flush(); err != nil {
				l.lose(q, l.own(err))
			}
			l.e.rest.posted()
		}
	}
	if l.spare != nil && l.spare.filled > 0 {
		l.spare.flushDetour()
	}
}

// fail notes the first failure. The driver ends the connection, whether or not anybody asks a stream.
func (l *link) fail(err error) {
	if l.failed == nil {
		l.failed = err
		l.call()
	}
}

// arrive notes what an immediate says. The completion that carried it is what promises that the slot's bytes are all there.
func (l *link) arrive(imm uint32) error {
	kind, stream, count := parseImmediate(imm)
	switch {
	case kind == immWord && stream == wordBroken:
		return l.hearBroken(count)
	case kind == immWord && stream == wordGone:
		return l.hearGone(count)
	case kind == immWord && stream == wordProbe:
		return nil // its sender learns by the acknowledgement
	case kind == immWord && stream < parkWords && len(l.words) < 2*parkWords:
		l.words = append(l.words, stream)
		l.call()
		return nil
	case kind == immWord:
		return fmt.Errorf("unknown immediate %#x", imm)
	case stream >= len(l.lanes):
		return fmt.Errorf("news of stream %d, there are %d", stream, len(l.lanes))
	}
	n := &l.lanes[stream]
	switch kind {
	case immPiece:
		return l.notice(stream, count)
	case immCredit:
		return n.credited(count, countMask)
	case immBye:
		if !n.ends {
			n.ends, n.last = true, count
			l.ended++
		}
		return nil
	}
	return fmt.Errorf("unknown immediate %#x", imm)
}

// left reports whether the peer has said goodbye and all that it sent before is here.
func (l *link) left() bool {
	if l.ended < len(l.lanes) {
		return false
	}
	for i := range l.lanes {
		if uint32(l.lanes[i].arrived.count)&countMask != l.lanes[i].last {
			return false
		}
	}
	return true
}

// goodbye tells the peer how much was sent, stream by stream, in requests that ask for completions, at least one on each queue. It
// reports whether all is said.
func (l *link) goodbye() bool {
	for parts := max(len(l.lanes), len(l.queues)); l.saying < parts; l.saying++ {
		q := l.queues[l.saying%len(l.queues)]
		if q.broken {
			q = l.pick()
		}
		if q == nil || !q.room() {
			return false
		}
		stream := l.saying % len(l.lanes)
		q.say(immediate(immBye, stream, l.lanes[stream].posted), ibv.Signaled)
	}
	return true
}

// settled reports whether the device is done with everything.
func (l *link) settled() bool {
	for _, q := range l.queues {
		if !q.broken && !q.settled() {
			return false
		}
	}
	return l.spare == nil || l.spare.settled()
}

// shut destroys the QPs, after which the peer cannot touch our memory, and closes the socket. Slots that have arrived can still be read.
func (l *link) shut() error {
	if l.gone {
		return nil
	}
	l.gone = true
	var errs []error
	all := slices.Concat(l.queues, l.retired, slices.Collect(maps.Values(l.probes)))
	for _, q := range all { // of the last one's completions, too, the link hears no more while the first one is destroyed
		q.nic.leave(q)
	}
	for _, q := range all {
		errs = append(errs, q.close())
	}
	l.probes, l.retired = nil, nil
	if l.socket != nil {
		l.socket.Close()
	}
	if l.spare != nil {
		l.spare.detour.end()
	}
	return errors.Join(errs...)
}

// free gives the memory back, after shut.
func (l *link) free() error {
	if l.memory.of == nil {
		return nil
	}
	b := l.memory
	l.memory, l.rx, l.tx = block{}, nil, nil
	return l.e.pool.give(b)
}

// String says over which devices, GIDs and QPs it goes.
func (l *link) String() string {
	var all []string
	for _, q := range l.queues {
		all = append(all, q.String())
	}
	return strings.Join(all, ", ")
}
