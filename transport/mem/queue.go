package mem

import (
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
}

type slot struct {
	number uint64 // of the message among those accepted
	tag    uint32
	crc    uint32
	twice  bool // appears once more after it was read
	held   *time.Timer
	data   []byte // the message
	lent   bool   // data is the sender's memory
	shown  bool   // a view of it is out
	back   bool   // that showed lent memory, which is its owner's again
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
	d.number, d.tag, d.twice = number, tag, fate.Twice
	if e.options.Checksum {
		d.crc = checksum(data)
	}
	if d.lent = lend && fate.Flip <= 0; d.lent {
		d.data = data
	} else {
		if cap(d.own) < len(data) {
			e.memory.Add(int64(len(data) - cap(d.own)))
			d.own = make([]byte, len(data))
		}
		d.data = d.own[:len(data)]
		copy(d.data, data)
	}
	if fate.Flip > 0 && len(data) > 0 {
		bit := (fate.Flip - 1) % (8 * len(data))
		d.data[bit/8] ^= 1 << (bit % 8)
	}
	if fate.Delay > 0 {
		e.timers.Add(1)
		d.held = time.AfterFunc(fate.Delay, func() {
			defer e.timers.Done()
			q.release(d)
			s.conn.peer.wake()
		})
	}
	q.publish()
	return true, fate
}

// publish shows what is held back by nothing. q.mu is held.
func (q *queue) publish() {
	for !q.cut {
		hidden := q.n - int(q.visible-q.taken)
		if hidden <= 0 || q.slots[(q.head+q.n-hidden)%Slots].held != nil {
			return
		}
		atomic.AddUint64(&q.visible, 1)
	}
}

func (q *queue) release(d *slot) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d.held = nil
	q.publish()
}

// front is the next message, or nil. q.mu is held.
func (q *queue) front() *slot {
	if q.visible == q.taken {
		return nil
	}
	return &q.slots[q.head]
}

// empty reports that nothing will appear unless the sender sends. q.mu is held.
func (q *queue) empty() bool { return q.visible == q.taken && q.n == 0 }

// drop ends the use of the front. q.mu is held.
func (q *queue) drop() {
	d := &q.slots[q.head]
	if d.twice {
		d.twice, d.shown, d.back = false, false, false
		return
	}
	d.data, d.lent, d.shown, d.back = nil, false, false, false
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

// takeBack copies what is lent, for a sender that closes. A view that is out
// keeps showing the lent memory, and its Release is an error. It returns the bytes of the slots until now.
func (q *queue) takeBack() (memory int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.slots {
		memory += int64(cap(q.slots[i].own))
	}
	for i := range q.n {
		if d := &q.slots[(q.head+i)%Slots]; d.lent {
			d.own = append([]byte(nil), d.data...)
			d.data, d.lent, d.back = d.own, false, d.shown
		}
	}
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
