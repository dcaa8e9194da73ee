package gpu

import (
	"errors"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// A site is a communicator's part on one GPU.
type site struct {
	device *cuda.Device
	ranks  []int
	join   *cuda.Join
	here   cuda.Event // of the leading stream, for other GPUs

	active bool          // ranks here take part in the call at hand
	lead   cuda.Stream   // the first one's
	others []cuda.Stream // the others'
}

func (s *site) open() (err error) {
	s.others = make([]cuda.Stream, len(s.ranks)-1)
	if s.join, err = s.device.NewJoin(len(s.ranks) - 1); err != nil {
		return err
	}
	s.here, err = s.device.NewEvent(false)
	return err
}

func (s *site) close() (err error) {
	if s.join != nil {
		err = s.join.Destroy()
	}
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
	return s.device.Launch(ps, s.lead, s.others, s.join)
}
