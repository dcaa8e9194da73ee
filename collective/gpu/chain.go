package gpu

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// A chain is a rank's launches that follow each other on any streams, of which the last maxAhead are known.
type chain struct {
	d    *cuda.Device
	seen sync.Mutex // guards what follows; never held while something is queued
	ring [maxAhead]queued
	turn int // of the next launch
	sure int // launches before this one are done
}

// maxAhead is how many launches a chain may be ahead of its GPU; the driver, in which who waits holds up everybody, takes about a thousand.
const maxAhead = 256

// queued is a launch, and the number of its call.
type queued struct {
	done   cuda.Event
	number uint64 // 0: none
}

// open makes the events.
func (q *chain) open(d *cuda.Device) (err error) {
	q.d = d
	for i := range q.ring {
		if err == nil {
			q.ring[i].done, err = d.NewEvent(false)
		}
	}
	return err
}

// room waits until the GPU is not too far behind, and returns the event to record behind the next launch; or the reason, once there is one.
func (q *chain) room(reason *atomic.Pointer[error]) (cuda.Event, error) {
	for pause := 10 * time.Microsecond; q.turn-q.sure >= len(q.ring); pause = min(2*pause, time.Millisecond) {
		// A look takes as long as a third of a launch, so it is for half of the ring, if that is done.
		for _, ahead := range []int{len(q.ring) / 2, 0} {
			done, err := q.d.Happened(q.ring[(q.sure+ahead)%len(q.ring)].done)
			if err != nil {
				return 0, err
			}
			if done {
				q.sure += ahead + 1
				break
			}
		}
		if q.turn-q.sure < len(q.ring) {
			break
		}
		if why := reason.Load(); why != nil {
			return 0, *why
		}
		time.Sleep(pause)
	}
	if why := reason.Load(); why != nil {
		return 0, *why
	}
	return q.ring[q.turn%len(q.ring)].done, nil
}

// took takes note of a launch behind which the event was recorded that room gave.
func (q *chain) took(number uint64) {
	q.seen.Lock()
	defer q.seen.Unlock()
	q.ring[q.turn%len(q.ring)].number = number
	q.turn++
}

// behind is the number of the oldest launch that is not done, or 0. It does not wait. An error is the GPU's.
func (q *chain) behind() (number uint64, err error) {
	q.seen.Lock()
	defer q.seen.Unlock()
	for i := range q.ring {
		l := &q.ring[(q.turn+i)%len(q.ring)]
		if l.number == 0 {
			continue
		}
		if done, err := q.d.Happened(l.done); !done || err != nil {
			return l.number, err
		}
		l.number = 0
	}
	return 0, nil
}

// has reports whether an event is the chain's.
func (q *chain) has(e cuda.Event) bool {
	return slices.ContainsFunc(q.ring[:], func(l queued) bool { return l.done == e })
}

// close frees the events.
func (q *chain) close() (err error) {
	q.seen.Lock()
	defer q.seen.Unlock()
	for i := range q.ring {
		if e := q.ring[i].done; e != 0 {
			err = errors.Join(err, q.d.DestroyEvent(e))
		}
		q.ring[i] = queued{}
	}
	return err
}
