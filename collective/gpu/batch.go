package gpu

import (
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// A job is a collective of all ranks, or a message. Jobs that are queued together and touch no memory of each other's are done by the
// same launches.
type job struct {
	calls    []Call // a collective's, by rank; nil: a message
	moves    *Moves // of the collective
	transfer Transfer
	part     uint64 // ranks that take part, a bit each
	stage    int    // after those of lower ones
}

// maxBatch bounds the jobs that are queued together, and so how long it takes to look for what they touch.
const maxBatch = 32

// Hold has calls that all ranks have made wait until Release, so that they are queued together: in one launch those that use one
// kernel, and between all streams once. It counts; who holds must not wait for tickets before the Release.
func (c *Communicator) Hold() {
	c.mu.Lock()
	c.held++
	c.mu.Unlock()
}

// Release ends one Hold.
func (c *Communicator) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held--; c.held == 0 {
		c.flush()
	}
}

// enqueue queues a job, or has it wait for the end of a Hold; m is the meeting that waits for it. The lock is held.
func (c *Communicator) enqueue(j job, m *meeting) {
	if len(c.batch) > 0 && !c.fits(&j) {
		c.flush()
	}
	for i := range c.batch {
		if b := &c.batch[i]; b.stage >= j.stage && b.meets(&j) {
			j.stage = b.stage + 1
		}
	}
	c.include(&j)
	c.batch, c.waiting = append(c.batch, j), append(c.waiting, m)
	if c.held == 0 || len(c.batch) == maxBatch {
		c.flush()
	}
}

// fits reports whether a job's ranks have the streams that they have in the batch.
func (c *Communicator) fits(j *job) bool {
	for r := range j.calls {
		if c.part>>r&1 != 0 && c.streams[r] != j.calls[r].Stream {
			return false
		}
	}
	t := &j.transfer
	return j.calls != nil || (c.part>>t.From&1 == 0 || c.streams[t.From] == t.FromStream) && (c.part>>t.To&1 == 0 || c.streams[t.To] == t.ToStream)
}

// include notes who takes part in a job, and on which streams.
func (c *Communicator) include(j *job) {
	for r := range j.calls {
		c.streams[r] = j.calls[r].Stream
		j.part |= 1 << r
	}
	if t := &j.transfer; j.calls == nil {
		c.streams[t.From], c.streams[t.To] = t.FromStream, t.ToStream
		j.part = 1<<t.From | 1<<t.To
	}
	c.part |= j.part
}

// flush queues the batch and lets go who waits for it. The lock is held.
func (c *Communicator) flush() {
	if len(c.batch) == 0 {
		return
	}
	err := c.run(c.batch)
	for _, m := range c.waiting {
		m.err = err
		c.finish(m)
	}
	clear(c.batch)
	clear(c.waiting)
	c.batch, c.waiting, c.part = c.batch[:0], c.waiting[:0], 0
}

// A span is memory from one address to another.
type span struct{ from, to uintptr }

func (s span) meets(o span) bool { return s.from < o.to && o.from < s.to }

func spanOf(p unsafe.Pointer, bytes int) span {
	if p == nil {
		return span{}
	}
	return span{uintptr(p), uintptr(p) + uintptr(bytes)}
}

// meets reports whether one of two jobs writes memory that the other touches. A rank's memory is its own: where ranks give each
// other's, they order their calls themselves.
func (j *job) meets(k *job) bool {
	for r := range MaxRanks {
		if j.part>>r == 0 {
			return false
		}
		if j.part>>r&1 == 0 || k.part>>r&1 == 0 && k.part != 0 {
			continue
		}
		src, dst := j.spans(r)
		src2, dst2 := k.spans(r)
		if dst.meets(dst2) || dst.meets(src2) || src.meets(dst2) || dst.meets(k.factor(r)) || dst2.meets(j.factor(r)) {
			return true
		}
	}
	return false
}

// spans returns what a job reads and writes of a rank's.
func (j *job) spans(r int) (src, dst span) {
	if j.calls == nil {
		if j.transfer.From == r {
			src = spanOf(j.transfer.Src, int(j.transfer.Bytes))
		}
		if j.transfer.To == r {
			dst = spanOf(j.transfer.Dst, int(j.transfer.Bytes))
		}
		return src, dst
	}
	call := &j.calls[r]
	ins, outs := call.Kind.Blocks(len(j.calls))
	block := call.Count * call.DType.Size()
	if call.Kind == collective.Barrier {
		return span{}, span{}
	}
	return spanOf(call.Src, ins*block), spanOf(call.Dst, outs*block)
}

// factor returns where a rank's factor is read.
func (j *job) factor(r int) span {
	if j.calls == nil {
		return span{}
	}
	return spanOf(j.calls[r].Factor.At, j.calls[r].DType.Size())
}

// A round is what may be done side by side: a phase of a stage's jobs, or what comes after their last one and is each rank's own.
type round struct {
	stage, phase int
	after        bool
}

// rounds lists what the jobs need, the last an after that may be empty. The lock is held.
func (c *Communicator) rounds(jobs []job) []round {
	out := c.turns[:0]
	for stage, more := 0, true; more; stage++ {
		phases, divides := 0, false
		more = false
		for i := range jobs {
			switch j := &jobs[i]; {
			case j.stage > stage:
				more = true
			case j.stage < stage:
			case j.calls == nil:
				phases = max(phases, 1)
			default:
				phases, divides = max(phases, len(j.moves.Phases)), divides || j.calls[0].divides()
			}
		}
		for phase := range phases {
			out = append(out, round{stage: stage, phase: phase})
		}
		if divides || !more {
			out = append(out, round{stage: stage, after: true})
		}
	}
	c.turns = out
	return out
}

// write has the builder add a device's programs of a round.
func (c *Communicator) write(d *cuda.Device, jobs []job, r round) error {
	if r.after {
		return c.build.after(d, c.devices, jobs, r.stage)
	}
	return c.build.round(d, c.devices, jobs, r)
}

// run queues jobs between the streams of the ranks that take part. The lock is held.
func (c *Communicator) run(jobs []job) error {
	if c.err != nil {
		return c.err
	}
	if err := c.do(jobs); err != nil {
		what := "messages"
		if jobs[0].calls != nil {
			what = jobs[0].calls[0].String()
		}
		if len(jobs) > 1 {
			what = fmt.Sprintf("%s and %d more", what, len(jobs)-1)
		}
		return fmt.Errorf("gpu: %s: %w", what, err)
	}
	return nil
}

// do queues each collective, and messages that follow each other, by kernels that cross the links where that is the fastest way; the others
// between them are queued together.
func (c *Communicator) do(jobs []job) error {
	if c.links == nil {
		return c.together(jobs)
	}
	first := 0 // of those that are not queued
	for i, n := 0, 0; i < len(jobs); i += n {
		n = stretch(jobs[i:])
		how := c.choose(jobs[i:][:n])
		if how == byEvents {
			continue
		}
		if err := c.together(jobs[first:i]); err != nil {
			return err
		}
		first = i
		done, err := c.across(how, jobs[i:][:n])
		if err != nil {
			return err
		}
		if done {
			first += n
		}
	}
	return c.together(jobs[first:])
}

// stretch returns how many jobs from the first on may be one launch across the links: of messages as many as touch no memory of each other's.
func stretch(jobs []job) int {
	n := 1
	for n < len(jobs) && jobs[0].calls == nil && jobs[n].calls == nil && jobs[n].stage == jobs[0].stage {
		n++
	}
	return n
}

// take notes who takes part in jobs, where, and on which streams.
func (c *Communicator) take(jobs []job) {
	c.part, c.active = 0, c.active[:0]
	for i := range jobs {
		c.part |= jobs[i].part
	}
	for i := range c.sites {
		if c.sites[i].take(c.streams, c.part) {
			c.active = append(c.active, &c.sites[i])
		}
	}
}

// together queues jobs by launches that wait for nobody; on several GPUs their streams meet by events.
func (c *Communicator) together(jobs []job) error {
	c.build.reset()
	if len(jobs) == 0 {
		return nil
	}
	c.take(jobs)
	rounds := c.rounds(jobs)
	if len(c.active) == 1 {
		s := c.active[0]
		for _, r := range rounds {
			if err := c.write(s.device, jobs, r); err != nil {
				return err
			}
		}
		if err := s.launch(c.build.programs()); err != nil {
			return err
		}
		if len(jobs) == 1 && jobs[0].calls != nil {
			c.build.last = append(c.build.last, jobs[0].calls...)
		}
		return nil
	}
	for _, s := range c.active {
		if err := s.launch(nil); err != nil {
			return err
		}
	}
	for i, r := range rounds {
		if err := c.meet(); err != nil {
			return err
		}
		for _, s := range c.active {
			c.build.reset()
			if err := c.write(s.device, jobs, r); err != nil {
				return err
			}
			var err error
			if i < len(rounds)-1 {
				err = s.again.Launch(c.build.programs(), s.lead, nil, nil)
			} else {
				err = s.launch(c.build.programs())
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// meet has every GPU's leading stream wait for all others: the first one's waits for all, and they for it.
func (c *Communicator) meet() error {
	first := c.active[0]
	for _, s := range c.active[1:] {
		if err := s.device.Record(s.here, s.lead); err != nil {
			return err
		}
		if err := first.device.WaitEvent(first.lead, s.here); err != nil {
			return err
		}
	}
	if err := first.device.Record(first.here, first.lead); err != nil {
		return err
	}
	for _, s := range c.active[1:] {
		if err := s.device.WaitEvent(s.lead, first.here); err != nil {
			return err
		}
	}
	return nil
}
