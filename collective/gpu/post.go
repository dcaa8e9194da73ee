package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// posts are what a Part has for messages. The Part's lock guards it.
type posts struct {
	chain chain
	again *cuda.Replays // its own: launches of one graph wait for each other
	done  cuda.Event    // of the last launch that no graph holds,
	last  cuda.StreamID
	join  *cuda.Join
	many  int            // other streams that the join is for
	old   []*cuda.Join   // that were too small
	wire  *cuda.Messages // by itself, for what a driver gets holds no pointers of ours
	areas []unsafe.Pointer
	list  []Message
}

// postReportAt is where in the words the reports on messages are.
const postReportAt = 1024

// Post queues this rank's ends of messages, which go on independently of each other but for those of one peer and direction, which follow each other, as they do from
// call to call. A peer may have the same ones in other calls. They are done as their streams come to them: until then all streams wait. It waits
// for no other rank, unless the GPU is far behind. Of a direction's messages cuda.MaxMessages, divided by the directions,
// are under way at once.
func (p *Part) Post(list []Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := &p.posts
	for i := range list {
		m := &list[i]
		if m.Rank != p.rank || m.Peer < 0 || m.Peer >= len(p.calls) || m.Peer == p.rank || !m.DType.Valid() || m.Count < 0 || m.Count > 0 && m.Ptr == nil || p.l.at[m.Peer] == nil {
			return fmt.Errorf("gpu: %v: %w", m, kernels.ErrInvalid)
		}
	}
	x.list = append(x.list[:0], list...)
	slices.SortStableFunc(x.list, func(a, b Message) int { return cmp.Compare(a.order(), b.order()) })
	if x.wire == nil {
		x.wire = new(cuda.Messages)
		for _, at := range p.l.at {
			x.areas = append(x.areas, unsafe.Add(at, stageBytes))
		}
	}
	for first := true; len(x.list) > 0; first = false {
		x.wire.Reset(p.rank, p.l.at[p.rank], x.areas, p.l.abort(), unsafe.Add(p.l.words.Device, postReportAt), p.l.blocks)
		x.list = x.write(x.list)
		if err := p.post(list); err != nil {
			if err = fmt.Errorf("gpu: messages of rank %d: %w", p.rank, err); !first { // others wait for the rest
				p.Abort(err)
			}
			return err
		}
	}
	return nil
}

// write puts as many messages of each direction into the launch as there is room for, and returns the rest.
func (x *posts) write(list []Message) (rest []Message) {
	directions := 0
	for i := range list {
		if i == 0 || list[i].order() != list[i-1].order() {
			directions++
		}
	}
	share, n := cuda.MaxMessages/directions, 0
	rest = list[:0]
	for i, m := range list {
		if n++; i == 0 || m.order() != list[i-1].order() {
			n = 1
		}
		if n > share || !x.wire.Add(m.Peer, !m.Send, m.Ptr, m.bytes(), m.what()) {
			rest = append(rest, m)
		}
	}
	return rest
}

// post queues the launch that was written, on the streams of the messages.
func (p *Part) post(list []Message) error {
	x, lead := &p.posts, list[0].Stream
	var others []cuda.Stream
	for i := range list {
		if s := list[i].Stream; s != lead && !slices.Contains(others, s) {
			others = append(others, s)
		}
	}
	if len(others) > x.many {
		j, err := p.d.NewJoin(len(others))
		if err != nil {
			return err
		}
		if x.join != nil {
			x.old = append(x.old, x.join)
		}
		x.join, x.many = j, len(others)
	}
	join := x.join
	if len(others) == 0 {
		join = nil
	}
	event, err := x.chain.room(&p.reason)
	if err != nil {
		return err
	}
	id, captured, err := x.again.LaunchWire(x.wire, lead, others, join, cuda.Waits{Done: x.done, On: x.last}, event)
	if err != nil || captured {
		return err
	}
	x.done, x.last = event, id
	x.chain.took(1)
	return nil
}

// Posting reports whether messages that no graph holds are not done. It does not wait.
func (p *Part) Posting() (bool, error) {
	number, err := p.posts.chain.behind()
	return number != 0, err
}

// Messages returns what the GPU says of messages to each rank and from each, those in graphs, too. After Close it is ErrClosed.
func (p *Part) Messages() (to, from []cuda.MessageReport, err error) {
	p.look.Lock()
	defer p.look.Unlock()
	if p.gone {
		return nil, nil, ErrClosed
	}
	read := func(r int, takes bool) (m cuda.MessageReport) {
		at := (*cuda.MessageReport)(unsafe.Add(p.l.words.Host, postReportAt+cuda.ReportOfMessages(r, takes)))
		m.Over = atomic.LoadUint32(&at.Over) // what is over was begun, so it is read first
		m.Begun = atomic.LoadUint32(&at.Begun)
		m.Moved = atomic.LoadUint32(&at.Moved)
		m.Waits = atomic.LoadUint32(&at.Waits)
		for i := range at.What {
			m.What[i] = atomic.LoadUint64(&at.What[i])
		}
		return m
	}
	for r := range p.calls {
		to, from = append(to, read(r, false)), append(from, read(r, true))
	}
	return to, from, nil
}

// open makes what is needed before the first message.
func (x *posts) open(d *cuda.Device) (err error) {
	if x.again, err = d.NewWireReplays(wireReplays); err != nil {
		return err
	}
	return x.chain.open(d)
}

// close frees everything, once it is done.
func (x *posts) close() (err error) {
	for _, j := range append(x.old, x.join) {
		if j != nil {
			err = errors.Join(err, j.Destroy())
		}
	}
	x.old, x.join = nil, nil
	return errors.Join(err, x.again.Close(), x.chain.close())
}
