package comm

import (
	"context"
	"runtime"
	"time"
)

// round is pieces of calls that are done together.
type round struct {
	number uint32 // from 1 on
	came   bool   // its input is there
	kernel bool   // it is a trip, which has no such number
	id     uint32 // of the trip,
	trip   uint32 // and its number once it has come
	legs   []leg
	ops    int
	runs   []*run // on the host
	err    error  // of the start of one that is missing
}

// watch carries failures between the communicator and the one for host memory.
func (y *proxy) watch() {
	select {
	case <-y.comm.broken:
	case <-y.host.broken:
		y.comm.fail(y.host.verdict())
	case <-y.quit:
		return
	}
	if why := y.comm.reason(); y.comm.life.Err() == nil { // else it closes, too
		y.host.fail(why)
		y.host.failPorts()
	}
	y.flow.Lock()
	y.eased.Broadcast()
	y.flow.Unlock()
}

// serve begins what the host does for the rounds. The one that stands alone it does, too.
func (y *proxy) serve() {
	defer close(y.begun)
	for {
		r, there := y.next()
		if r == nil {
			return
		}
		for i := range r.legs {
			if call := &r.legs[i].call; there {
				call.Factor = call.Factor.Load(call.DType)
			}
		}
		if there && len(r.legs) == 1 && !r.legs[0].call.Kind.pointToPoint() && len(y.rounds) == 0 && y.busy.Load() == 0 {
			y.busy.Add(1)
			y.finish(r, y.host.do(context.Background(), &r.legs[0].call))
			y.busy.Add(-1)
			continue
		}
		var failed error
		for i := range r.legs {
			if !there || failed != nil {
				break
			}
			var begun *run
			if begun, _, failed = y.host.start(&r.legs[i].call, gathers); failed == nil {
				r.runs = append(r.runs, begun)
			}
		}
		r.err = failed
		y.busy.Add(1)
		y.begun <- r
	}
}

// finishAll ends rounds in their order.
func (y *proxy) finishAll() {
	for r := range y.begun {
		err := r.err
		for _, begun := range r.runs {
			if failed := begun.finish(context.Background(), false); err == nil {
				err = failed
			}
		}
		y.finish(r, err)
		y.busy.Add(-1)
	}
}

// finish has the stream go on. After a failure, too: then what it gets is undefined, and the communicator says so before.
func (y *proxy) finish(r *round, err error) {
	if err != nil {
		if y.host.reason() != nil {
			err = y.host.verdict()
		}
		y.comm.fail(err)
	}
	switch {
	case !r.kernel:
		y.done.Store(r.number)
	case r.came && err == nil: // else next lets all of them go
		y.trips.done.Store(r.trip)
	}
	y.flow.Lock()
	y.ops -= r.ops
	y.flow.Unlock()
	y.eased.Broadcast()
}

// awaitsStream reports whether something is queued whose input has not come, so that the host can do nothing.
func (y *proxy) awaitsStream() bool {
	for _, y := range y.all() {
		y.flow.Lock()
		queued := y.ops > 0
		y.flow.Unlock()
		if queued && y.busy.Load() == 0 {
			return true
		}
	}
	return false
}

// next returns the round whose input came next, or any where the communicator has failed, and whether it came; nil when there will be no more.
// A stream takes long mostly because the GPU computes, so looks become rare.
func (y *proxy) next() (r *round, there bool) {
	const spins, least, most, idle = 2000, 20 * time.Microsecond, time.Millisecond, 200 * time.Microsecond
	pause := least
	for i := 0; ; i++ {
		broken := y.comm.reason() != nil
		if broken {
			for y.busy.Load() > 0 { // the host may still read what a trip brought
				time.Sleep(least)
			}
			y.trips.end()
		}
		if y.head == nil {
			head, open := (*round)(nil), true
			if parks := broken || (i >= spins || y.comm.family.crowded) && (y.trips == nil || !y.trips.graphs.Load()); parks {
				if broken {
					head, open = <-y.rounds
				} else {
					select {
					case head, open = <-y.rounds:
					case <-y.comm.broken: // trips that wait are to be let go
						continue
					}
				}
			} else {
				select {
				case head, open = <-y.rounds:
				default:
				}
			}
			if !open {
				return nil, false
			}
			if y.head = head; head != nil {
				i, pause = 0, least
			}
		}
		if y.head != nil && !broken && !y.came(y.head) {
			r = y.trips.come()
		} else if y.head == nil && !broken {
			if r = y.trips.come(); r != nil { // what was queued before it is in rounds by now
				select {
				case y.head = <-y.rounds:
				default:
				}
			}
		}
		if r != nil && !y.came(y.head) { // what is seen to have come now may have come before
			return y.trips.begin(r), true
		}
		if r = nil; y.head != nil && (broken || y.came(y.head)) {
			r, y.head = y.head, nil
			if broken {
				return r, false
			}
			if r.came = true; r.kernel {
				y.trips.begin(r)
			}
			return r, true
		}
		if i < spins && !y.comm.family.crowded {
			runtime.Gosched()
			continue
		}
		time.Sleep(pause)
		if pause = min(most, pause+pause/8); y.head == nil {
			pause = min(pause, idle)
		}
	}
}

// came reports whether a round's input is there.
func (y *proxy) came(r *round) bool {
	switch {
	case r == nil:
		return false
	case r.kernel:
		return y.trips.told.Load() == y.trips.served+1 && y.trips.id.Load() == r.id
	}
	return int32(y.told.Load()-r.number) >= 0
}
