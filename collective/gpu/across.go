package gpu

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// launching is held while the launches of a call that wait for each other are queued, so that all GPUs get them in one order: what was
// queued before does not wait for what comes after. But what comes after may begin first, on a GPU where streams are ready
// for it: then the two have to fit beside each other, or one could stand in the other's way on one GPU and the other way round
// on the next. So a launch that crowds a GPU waits there for all that other communicators have queued, and theirs wait for it.
var launching struct {
	sync.Mutex
	traffic map[int]*traffic // by GPU
}

// traffic is what communicators have queued on a GPU.
type traffic struct {
	last  []launch // of each of them
	crowd *links   // whose launch was the last that crowds
}

type launch struct {
	l    *links
	done cuda.Event
}

// crowding is the most threads of a launch that leaves room for others': such of 16 communicators fit beside each other on an H200, with
// 132 multiprocessors, and of as many on a GPU with fewer.
func (l *links) crowding() int { return min(1<<11, 1<<11*l.blocks/128) }

// trafficOf returns a GPU's. The lock is held.
func trafficOf(ordinal int) *traffic {
	t := launching.traffic[ordinal]
	if t == nil {
		t = &traffic{}
		if launching.traffic == nil {
			launching.traffic = map[int]*traffic{}
		}
		launching.traffic[ordinal] = t
	}
	return t
}

// find returns the number of a communicator's last launch, or -1.
func (t *traffic) find(l *links) int {
	return slices.IndexFunc(t.last, func(x launch) bool { return x.l == l })
}

// note has others wait for a launch.
func (t *traffic) note(l *links, done cuda.Event, crowds bool) {
	if t.find(l) < 0 {
		t.last = append(t.last, launch{l, done})
	}
	if crowds {
		t.crowd = l
	}
}

// forget makes nobody wait for a communicator that is closed.
func forget(l *links) {
	launching.Lock()
	defer launching.Unlock()
	for _, t := range launching.traffic {
		t.last = slices.DeleteFunc(t.last, func(x launch) bool { return x.l == l })
		if t.crowd == l {
			t.crowd = nil
		}
	}
}

// choose picks the way of a collective, or of messages.
func (c *Communicator) choose(jobs []job) crossing {
	calls := jobs[0].calls
	switch {
	case calls == nil:
		return c.links.chooseMessages(jobs)
	case calls[0].Algorithm != "" || calls[0].Factor.Set: // no kernel that crosses has a factor for each rank
		return byEvents
	}
	return c.links.choose(calls)
}

// across queues a collective, or messages that touch no memory of each other's, by kernels that wait for each other. It reports false if
// they do not fit, and nothing was queued.
func (c *Communicator) across(how crossing, jobs []job) (bool, error) {
	l, calls := c.links, jobs[0].calls
	c.build.reset()
	c.take(jobs)
	if calls == nil {
		if !l.writeMessages(how, jobs) {
			return false, nil
		}
	} else if ok, err := l.write(how, calls); !ok || err != nil {
		return false, err
	}
	if err := l.launch(how); err != nil {
		return true, c.stuck(err)
	}
	if calls == nil || !calls[0].divides() {
		return true, nil
	}
	for i := range c.sites {
		c.build.reset()
		if err := c.build.after(c.sites[i].device, c.devices, jobs, jobs[0].stage); err != nil {
			return true, err
		}
		if err := c.sites[i].launch(c.build.programs()); err != nil {
			return true, err
		}
	}
	return true, nil
}

// stuck ends what some GPUs have begun and others have not got.
func (c *Communicator) stuck(err error) error {
	err = fmt.Errorf("gpu: some GPUs got their part of a call and others not: %w", err)
	c.links.end()
	c.refuse(err)
	return err
}

// launch queues the programs that were written.
func (l *links) launch(how crossing) error {
	launching.Lock()
	defer launching.Unlock()
	some, all := false, true // of the streams are captured
	var mark *mark
	if !l.apart {
		if mark = l.marks.turn(l.sites); mark != nil {
			mark.part, mark.on = 0, [cuda.MaxSites]cuda.StreamID{}
		}
	}
	for i := range l.sites {
		s := &l.sites[i]
		if !s.active {
			continue
		}
		wire := cuda.Wire(&l.lines[i])
		switch how {
		case byPush:
			wire = &l.push[i]
		case byBulk, byCopies:
			wire = &l.bulk[i]
		}
		if mark != nil && l.meets(how, i)&^(1<<i) != 0 { // else nobody waits for anybody
			captured, err := s.device.Capturing(s.lead)
			if err == nil && !captured {
				err = s.device.Record(mark.come[i], s.lead)
				mark.part |= 1 << i
				mark.meets[i] = l.meets(how, i)
			}
			if err != nil {
				return err
			}
		}
		var waits cuda.Waits
		if l.last[i] != 0 { // calls of a communicator follow each other on any streams
			waits.Done, waits.On = l.done[i], l.last[i]
		}
		t, crowds := trafficOf(s.device.Info().Ordinal), cuda.Threads(wire) > l.crowding()
		if l.crowd == 1 && !l.apart { // in which order others queue theirs nobody here knows
			if err := l.giveWay(t, s, crowds, &waits.Also); err != nil {
				return err
			}
		}
		id, captured, err := cuda.StreamID(0), false, error(nil)
		if how == byCopies {
			id, captured, err = l.launchCopies(i, waits)
		} else {
			others, join := s.between()
			id, captured, err = l.again[i].LaunchWire(wire, s.lead, others, join, waits, l.next[i])
		}
		if err != nil {
			return err
		}
		if some, all = some || captured, all && captured; some != all {
			return errors.New("the streams of some GPUs' ranks are captured in graphs and those of others are not")
		}
		if captured {
			continue
		}
		l.last[i], l.done[i] = id, l.next[i]
		if mark != nil && mark.part>>i&1 != 0 {
			mark.on[i] = id
		}
		if !l.apart {
			t.note(l, l.done[i], crowds)
		}
	}
	if mark != nil && mark.part != 0 {
		l.marks.queued()
	}
	return nil
}

// meets are the sites that a site waits for in what was written.
func (l *links) meets(how crossing, site int) uint64 {
	switch how {
	case byBulk, byCopies:
		return uint64(l.copy.meet[site])
	case byPush:
		return 1<<len(l.sites) - 1
	}
	return l.plan.meets[site]
}

// giveWay has a launch wait for those of other communicators that it may not fit beside. One event that it waits for goes to wait.
func (l *links) giveWay(t *traffic, s *site, crowds bool, wait *cuda.Event) error {
	if !crowds {
		if t.crowd != nil && t.crowd != l {
			*wait = t.last[t.find(t.crowd)].done
		}
		return nil
	}
	if len(t.last) == 0 || len(t.last) == 1 && t.last[0].l == l {
		return nil
	}
	captured, err := s.device.Capturing(s.lead)
	if err != nil || captured { // what is outside a graph its launches cannot wait for
		return err
	}
	for _, other := range t.last {
		if other.l == l {
			continue
		}
		if err := s.device.WaitEvent(s.lead, other.done); err != nil {
			return err
		}
	}
	return nil
}

// write makes the programs of all sites. It reports false if the call does not fit.
func (l *links) write(how crossing, calls []Call) (bool, error) {
	switch how {
	case byLines, byTwoShotLines:
		l.plan.begin(l, calls)
		if !l.plan.collective(how == byTwoShotLines) {
			return false, nil
		}
		return l.writeLines(&calls[0], len(calls), 0)
	case byPush:
		return l.writePush(calls)
	}
	return l.writeCopies(how, func(add func(from, to int, dst, src unsafe.Pointer, bytes int64)) { copiesOf(calls, add) }), nil
}

// writeMessages is write for messages.
func (l *links) writeMessages(how crossing, jobs []job) bool {
	if how == byLines {
		l.plan.begin(l, nil)
		for i := range jobs {
			if t := &jobs[i].transfer; t.Bytes > 0 {
				l.plan.message(t.From, t.To, t.Dst, t.Src, t.Bytes)
			}
		}
		ok, err := l.writeLines(nil, 0, 0)
		return ok && err == nil && !l.plan.full
	}
	return l.writeCopies(how, func(add func(from, to int, dst, src unsafe.Pointer, bytes int64)) {
		for i := range jobs {
			t := &jobs[i].transfer
			add(t.From, t.To, t.Dst, t.Src, t.Bytes)
		}
	})
}

// writeLines makes the exchanges of the sites that are here; name is what their lines say, and those that they take have to.
func (l *links) writeLines(call *Call, ranks int, name uint32) (bool, error) {
	for i := range l.sites {
		if l.sites[i].elsewhere {
			continue
		}
		p := &l.lines[i]
		p.Reset(i, l.at, l.half, l.abort(), max(1, min(l.lineBlocks/l.crowd, l.blocks)))
		p.Names(name)
		if l.apart {
			p.Reports(unsafe.Add(l.words.Device, reportAt))
		}
		if call != nil && call.Kind.Reduces() && call.Kind != collective.Barrier {
			err := p.Folds(call.DType, call.RedOp, cuda.FactorBits(call.DType, 1/float64(ranks)))
			if errors.Is(err, errors.ErrUnsupported) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
		}
		if !l.plan.write(i, p) {
			return false, nil
		}
	}
	return true, nil
}
