package mem

import (
	"bytes"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/transport"
)

// queue holds the messages of one stream in one direction.
type queue struct {
	mu    sync.Mutex
	slots [Slots]slot
	head  int // the slot that is read next
	n     int // slots in use
	// accepted counts messages that Send took; taken those that the receiver is
	// through with, doubles not counted.
	accepted, taken uint64
	// visible counts messages put into slots and not held back by a delay. It is
	// the word an Awaiter spins on.
	visible uint64
	cut     bool   // nothing appears, and the sender does not hear what was read
	unread  uint64 // while cut: the first message whose memory was lent then
	credit  int    // bytes that may be under way; 0: memory is shared
	flight  int    // bytes that are
}

type slot struct {
	number uint64 // of the message among those accepted
	tag    uint32
	crc    uint32
	twice  bool // appears once more after it was read
	late   bool // the next message is to appear before it
	held   *time.Timer
	size   int    // of the message as it was sent
	flight int    // bytes of credit it has
	data   []byte // the message
	lent   bool   // data is the sender's memory: with credit, it is not there yet
	shown  bool   // it is being read
	back   bool   // as it lay in lent memory, which is its owner's again
	view   []byte // what is read
	dwells bool   // the reader does not have it yet
	own    []byte // memory of the slot, kept for the next message
}

// put takes a message if there is room. ask decides about its fate, once.
func (q *queue) put(s *stream, tag uint32, data []byte, lend bool) (ok bool, fate transport.Fate) {
	e := s.conn.endpoint
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n == Slots {
		return false, fate
	}
	if e.options.Hook != nil {
		fate = e.options.Hook(transport.Frame{Transport: Name, Key: s.conn.key, Stream: s.index, Seq: e.options.FirstSeq + q.accepted, Bytes: len(data)})
		if fate.Reset {
			return false, fate
		}
	}
	number := q.accepted
	q.accepted++
	if fate.Drop {
		return true, fate
	}
	d := &q.slots[(q.head+q.n)%Slots]
	q.n++
	d.number, d.tag, d.twice, d.late, d.size, d.data = number, tag, fate.Twice, fate.Reorder, len(data), data
	if e.options.Checksum {
		d.crc = checksum(data)
	}
	d.lent = true
	switch altered := fate.Flip > 0 || fate.Truncate > 0 || fate.Reorder; {
	case altered:
		d.copy(e) // without credit: one before it may still wait for that
	case q.credit > 0:
		e.backlog.Add(1)
		q.moveLocked(e)
	case !lend:
		q.carry(d, e)
	}
	if fate.Flip > 0 && len(data) > 0 {
		bit := (fate.Flip - 1) % (8 * len(data))
		d.data[bit/8] ^= 1 << (bit % 8)
	}
	if fate.Truncate > 0 {
		kept := max(0, len(data)-fate.Truncate)
		clear(d.data[kept:])
		d.data = d.data[:kept]
	}
	if fate.Delay > 0 {
		e.timers.Add(1)
		d.held = time.AfterFunc(fate.Delay, func() {
			defer e.timers.Done()
			q.release(number)
			s.conn.peer.wake()
		})
	}
	if before := &q.slots[(q.head+q.n+Slots-2)%Slots]; q.n > 1 && before.late {
		before.late, d.late = false, false
		*before, *d = *d, *before
	}
	q.publish()
	return true, fate
}

// carry ends that a message is the sender's memory. q.mu is held.
func (q *queue) carry(d *slot, e *endpoint) {
	d.copy(e)
	q.fly(d)
}

func (d *slot) copy(e *endpoint) {
	if cap(d.own) < len(d.data) {
		e.memory.Add(int64(len(d.data) - cap(d.own)))
		d.own = make([]byte, len(d.data))
	}
	d.data, d.lent = append(d.own[:0], d.data...), false
}

// fly takes credit for a message. q.mu is held.
func (q *queue) fly(d *slot) {
	d.flight = d.size
	q.flight += d.flight
}

// move copies what has credit, and reports whether anything did.
func (q *queue) move(e *endpoint) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.publish()
	return q.credit > 0 && q.moveLocked(e)
}

func (q *queue) moveLocked(e *endpoint) (moved bool) {
	for i := 0; i < q.n && !q.cut; i++ {
		d := &q.slots[(q.head+i)%Slots]
		if !d.lent {
			continue
		}
		if q.flight > 0 && q.flight+d.size > q.credit {
			break
		}
		q.carry(d, e)
		e.backlog.Add(-1)
		moved = true
	}
	return moved
}

// publish shows what is held back by nothing. q.mu is held.
func (q *queue) publish() {
	for !q.cut {
		d := q.hidden()
		if d == nil || d.held != nil || q.stuck(d) {
			return
		}
		atomic.AddUint64(&q.visible, 1)
	}
}

// hidden is the next message that does not appear yet, or nil. q.mu is held.
func (q *queue) hidden() *slot {
	i := int(q.visible - q.taken)
	if i >= q.n {
		return nil
	}
	return &q.slots[(q.head+i)%Slots]
}

// stuck reports whether a message appears only if its sender does something more.
func (q *queue) stuck(d *slot) bool { return d.late || d.lent && q.credit > 0 }

func (q *queue) release(number uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.n {
		if d := &q.slots[(q.head+i)%Slots]; d.number == number {
			d.held = nil
		}
	}
	q.publish()
}

// front is the next message, or nil. q.mu is held.
func (q *queue) front() *slot {
	if q.visible == q.taken {
		return nil
	}
	return &q.slots[q.head]
}

// empty reports that nothing will appear unless the sender, which may be gone, does something. q.mu is held.
func (q *queue) empty(gone bool) bool {
	return q.visible == q.taken && (q.n == 0 || gone && q.stuck(q.hidden()))
}

// drop ends the use of the front. q.mu is held.
func (q *queue) drop() {
	d := &q.slots[q.head]
	q.flight -= d.flight
	d.flight = 0
	if d.twice { // the sender knows of one, and has its memory back
		if d.lent {
			d.own = append([]byte(nil), d.data...)
			d.data, d.lent = d.own, false
		}
		d.twice, d.shown, d.back, d.view = false, false, false, nil
		return
	}
	d.data, d.lent, d.shown, d.back, d.view, d.dwells = nil, false, false, false, nil, false
	q.head = (q.head + 1) % Slots
	q.n--
	q.taken++
}

// done counts the messages, from the first on, whose memory is the sender's.
func (q *queue) done() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cut {
		return min(q.unread, q.firstLent())
	}
	return q.firstLent()
}

// firstLent is the number of the first message whose memory is lent, or else of the next one. q.mu is held.
func (q *queue) firstLent() uint64 {
	for i := range q.n {
		if d := &q.slots[(q.head+i)%Slots]; d.lent {
			return d.number
		}
	}
	return q.accepted
}

// takeBack copies what is lent, for a sender that closes, and lets nothing wait for more of its messages. A view that is out
// keeps showing the lent memory, and its Release is an error. It returns the bytes of the slots until now.
func (q *queue) takeBack(e *endpoint) (memory int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.slots {
		memory += int64(cap(q.slots[i].own))
	}
	for i := range q.n {
		if d := &q.slots[(q.head+i)%Slots]; d.lent {
			d.own = append([]byte(nil), d.data...)
			d.data, d.lent, d.back = d.own, false, d.shown
			if d.dwells { // its owner writes there now, and we need not race with it to know what the reader sees
				d.view = bytes.Repeat([]byte{0xEE}, len(d.data))
			}
			if q.credit > 0 {
				q.fly(d)
				e.backlog.Add(-1)
			}
		}
	}
	if q.n > 0 {
		q.slots[(q.head+q.n-1)%Slots].late = false
	}
	q.publish()
	return memory
}

// flush shows what is still delayed, for an endpoint that closes: no timer may outlive it.
func (q *queue) flush(e *endpoint) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.slots {
		if d := &q.slots[i]; d.held != nil && d.held.Stop() {
			d.held = nil
			e.timers.Done()
		}
	}
	q.publish()
}

func checksum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
