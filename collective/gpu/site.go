package gpu

import (
	"errors"
	"sync"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// A site is a communicator's part on one GPU.
type site struct {
	device    *cuda.Device
	elsewhere bool          // in another process, which does its part
	again     *cuda.Replays // launches programs here
	ranks     []int
	here      cuda.Event // of the leading stream, for other GPUs

	// For behind, which must not wait for a launch that the driver does not take: mu is never held while one is made.
	mu      sync.Mutex
	joins   []*cuda.Join // of the last launches between several streams, in turn: one, or where somebody watches, up to watchedLaunches
	next    int          // the one whose turn it is
	count   uint64       // of such launches
	watched bool

	active bool          // ranks here take part in the call at hand
	lead   cuda.Stream   // the first one's
	others []cuda.Stream // the others'
}

// What so many graphs can launch again costs the host least; they take memory, of which links leave little of what a communicator may have.
const replays, wireReplays = 16, 8

// watchedLaunches is how many launches of the host's lead are told apart. It seldom is ahead of the GPU by more.
const watchedLaunches = 64

func (s *site) open() error {
	s.others = make([]cuda.Stream, len(s.ranks)-1)
	j, err := s.device.NewJoin(len(s.others))
	if err != nil {
		return err
	}
	s.joins = append(s.joins, j)
	if s.again, err = s.device.NewReplays(replays); err != nil {
		return err
	}
	s.here, err = s.device.NewEvent(false)
	return err
}

func (s *site) close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.joins {
		err = errors.Join(err, j.Destroy())
	}
	s.joins = nil
	err = errors.Join(err, s.again.Close())
	if s.here != 0 {
		err = errors.Join(err, s.device.DestroyEvent(s.here))
	}
	return err
}

// take notes the streams of the ranks that take part in a call, and reports whether any is here.
func (s *site) take(streams []cuda.Stream, part uint64) bool {
	s.active = false
	for _, r := range s.ranks {
		if part>>r&1 != 0 && !s.active {
			s.active, s.lead = true, streams[r]
		}
	}
	for i, r := range s.ranks[1:] {
		s.others[i] = s.lead // costs nothing
		if part>>r&1 != 0 {
			s.others[i] = streams[r]
		}
	}
	return s.active
}

// launch queues programs between all its ranks' streams.
func (s *site) launch(ps []cuda.Program) error {
	others, j := s.between()
	return s.again.Launch(ps, s.lead, others, j)
}

// between is what the next launch needs to stand between all its ranks' streams.
func (s *site) between() ([]cuda.Stream, *cuda.Join) {
	if !s.several() {
		return nil, nil
	}
	return s.others, s.turn()
}

// turn is the join for the next launch.
func (s *site) turn() *cuda.Join {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == len(s.joins) && s.watched && len(s.joins) < watchedLaunches {
		if j, err := s.device.NewJoin(len(s.others)); err == nil { // else it goes on with what there is
			s.joins = append(s.joins, j)
		}
	}
	if s.next >= len(s.joins) {
		s.next = 0
	}
	s.next++
	s.count++
	return s.joins[s.next-1]
}

// several reports whether streams meet.
func (s *site) several() bool {
	for _, o := range s.others {
		if o != s.lead {
			return true
		}
	}
	return false
}

// behind is Communicator.Behind here.
func (s *site) behind() (launch uint64, late []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = true
	for i := range s.joins { // from the oldest on
		at := (s.next + i) % len(s.joins)
		under, others, err := s.joins[at].Behind()
		if err != nil || !under {
			continue
		}
		for _, k := range others {
			late = append(late, s.ranks[1+k])
		}
		if late == nil {
			late = s.ranks[:1] // all others are there
		}
		return s.count - uint64(len(s.joins)-1-i), late
	}
	return s.count, nil
}
