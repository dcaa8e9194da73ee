package histories

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// rank is one rank of a job, on a host of its own.
type rank struct {
	job    *job
	number int // in the world
	rng    *rand.Rand
	ctx    context.Context // of its calls, until it has failed
	cancel context.CancelFunc
	doing  atomic.Value           // what, for people
	using  atomic.Pointer[member] // what its blocking calls are on, if on one
	idle   chan struct{}          // closed when it does nothing more

	armed   atomic.Bool
	last    atomic.Bool // it is in the last step of the fault's phase
	struck  atomic.Bool
	frames  atomic.Int64
	delayed atomic.Int64
	trigger chan struct{}
	dead    atomic.Bool
	cut     atomic.Bool
	left    atomic.Bool
	joined  atomic.Bool
	away    bool // left out a call

	mu     sync.Mutex
	thawed chan struct{} // closed when the rank is not frozen
	comms  []*member     // open ones
	shut   bool          // no more may be opened

	world, child, smaller *member
	poisoned              [][]byte
	finished              atomic.Bool // did all its steps
	recovered             bool        // called Shrink after a failure
	shrunk                bool        // and it worked
}

// member is the rank's part of a communicator.
type member struct {
	comm   *comm.Comm
	ranks  []int        // in the world
	closed atomic.Int64 // when Close had returned, or 0
}

var errStop = errors.New("the user says stop")

// add takes a new communicator in, or closes it if the rank is gone.
func (r *rank) add(c *comm.Comm, ranks []int) *member {
	m := &member{comm: c, ranks: ranks}
	r.job.register(c.ID(), ranks)
	r.mu.Lock()
	shut := r.shut
	if !shut {
		r.comms = append(r.comms, m)
	}
	r.mu.Unlock()
	if shut {
		c.Close()
	}
	return m
}

// close closes one communicator, in bounded time.
func (r *rank) close(m *member) {
	r.mu.Lock()
	r.comms = slices.DeleteFunc(r.comms, func(x *member) bool { return x == m })
	r.mu.Unlock()
	began := time.Now()
	err := m.comm.Close()
	m.closed.CompareAndSwap(0, time.Now().UnixNano())
	if took := time.Since(began); took > 12*time.Second || err != nil {
		r.job.fault("rank %d: Close took %v: %v", r.number, took, err)
	}
}

// closeAll closes all communicators, those to come included.
func (r *rank) closeAll() {
	r.mu.Lock()
	r.shut = true
	all := slices.Clone(r.comms)
	r.mu.Unlock()
	for _, m := range all {
		r.close(m)
	}
}

// doesOn reports whether the rank is in calls on that communicator alone.
func (r *rank) doesOn(m *member) bool { return r.using.Load() == m }

func (r *rank) gone() bool { return r.dead.Load() || r.left.Load() }

// run is the rank's life. It calls joined when it has tried to join.
func (r *rank) run(joined func()) {
	defer close(r.idle)
	r.nap(20 * time.Millisecond)
	r.enter(Init)
	all := sequence(r.job.Ranks)
	began := time.Now()
	r.doing.Store("New")
	c, err := comm.New(r.ctx, r.job.config(r))
	joined()
	r.note(outcome{what: "New", members: all, err: err, took: time.Since(began), limit: r.job.InitTimeout + 5*time.Second})
	if err != nil {
		return
	}
	r.joined.Store(true)
	r.world = r.add(c, all)
	failed := false
	for i := range r.job.Steps {
		s := &r.job.Steps[i]
		r.through(s.Phase)
		r.enter(s.Phase)
		if s.Last {
			r.last.Store(true)
		}
		r.pause()
		if r.gone() {
			return
		}
		if err := r.step(i, s); err != nil || r.away {
			failed = true
			break
		}
	}
	if !failed {
		r.through(phases)
		r.pause()
	}
	if r.gone() {
		return
	}
	r.finished.Store(!failed)
	if failed {
		r.abandon()
	}
	if failed && r.job.Shrinks && !r.cut.Load() {
		r.recover()
	}
	r.doing.Store("Close")
	r.pause()
	r.closeAll()
}

// pause waits while the rank is frozen.
func (r *rank) pause() {
	r.mu.Lock()
	thawed := r.thawed
	r.mu.Unlock()
	<-thawed
}

func (r *rank) nap(most time.Duration) {
	switch r.rng.IntN(8) {
	case 0:
		time.Sleep(time.Duration(r.rng.Int64N(int64(20 * most))))
	case 1, 2, 3:
		time.Sleep(time.Duration(r.rng.Int64N(int64(most))))
	}
}

func (r *rank) step(i int, s *Step) error {
	r.nap(5 * time.Millisecond)
	r.doing.Store(fmt.Sprintf("step %d", i))
	began := time.Now()
	note := func(what string, err error) error {
		return r.note(outcome{step: i, what: what, members: r.world.ranks, err: err, took: time.Since(began), limit: r.job.InitTimeout + 5*time.Second})
	}
	switch s.Do {
	case DoSplit:
		c, err := r.world.comm.Split(r.ctx, s.Colors[r.number], s.Keys[r.number])
		if c != nil {
			r.child = r.add(c, r.job.Program.members(Child, 0, r.number))
		}
		return note("Split", err)
	case DoShrink:
		if slices.Contains(s.Exclude, r.number) {
			return nil
		}
		c, err := r.world.comm.Shrink(r.ctx, s.Exclude...)
		if c != nil {
			r.smaller = r.add(c, r.job.Program.members(Smaller, 0, r.number))
		}
		return note("Shrink", err)
	case DoCloseChild:
		if r.child != nil {
			r.close(r.child)
			r.child = nil
		}
		return nil
	}
	return r.calls(i, s)
}

// abandon ends the communicators that have not failed themselves, as a program must that stops because of another one.
func (r *rank) abandon() {
	r.pause()
	if f := r.job.Fault; f.removes() && slices.Contains(f.Ranks, r.number) {
		return
	}
	r.mu.Lock()
	all := slices.Clone(r.comms)
	r.mu.Unlock()
	for _, m := range all {
		m.comm.Abort(errRecovery)
	}
}

// recover is what a rank does whose calls failed: it ends the communicators that it has, and goes on with the survivors.
func (r *rank) recover() {
	r.pause()
	r.doing.Store("recovery")
	f := r.job.Fault
	given := f.removes() && slices.Contains(f.Ranks, r.number)
	if given {
		time.Sleep(2 * time.Second) // for word of it to arrive
	}
	for _, m := range []*member{r.child, r.smaller} {
		if m != nil {
			r.close(m)
		}
	}
	r.recovered = true
	r.world.comm.Abort(errRecovery) // nothing, unless the rank is given up
	began := time.Now()
	c, err := r.world.comm.Shrink(context.Background())
	r.job.tracef("rank %d shrinks: %v", r.number, err)
	if took := time.Since(began); took > r.job.InitTimeout+5*time.Second {
		r.job.fault("rank %d: Shrink after the fault took %v: %v", r.number, took, err)
	}
	if err != nil {
		if !given {
			r.job.faultUnlessFinished("rank %d: Shrink after the fault: %v", r.number, err)
		}
		return
	}
	if given && c.Size() == 1 {
		c.Close() // it may go on alone, where it believes that all others are lost
		return
	}
	if given {
		c.Close()
		r.job.fault("rank %d was given up, but Shrink gave it a communicator of %d", r.number, c.Size())
		return
	}
	m := r.add(c, nil)
	r.shrunk = r.good(m)
	if !r.shrunk {
		r.job.tracef("rank %d: record %+v", r.number, c.Record())
	}
}

// good makes ten calls of survivors, and reports whether they went well.
func (r *rank) good(m *member) bool {
	ctx := context.Background()
	who := make([]int64, m.comm.Size())
	mine := []int64{int64(r.number)}
	if err := comm.AllGather(ctx, m.comm, who, mine); err != nil {
		r.job.faultUnlessFinished("rank %d: first call after shrinking to %d: %v", r.number, m.comm.Size(), err)
		return false
	}
	r.job.tracef("rank %d goes on with %v", r.number, who)
	sum := int64(0)
	for i, q := range who {
		sum += q
		if i > 0 && q <= who[i-1] {
			r.job.fault("rank %d: shrunk to ranks %v, which is not their old order", r.number, who)
		}
		if r.job.Fault.removes() && slices.Contains(r.job.Fault.Ranks, int(q)) {
			r.job.fault("rank %d: shrunk to %v, but %d is lost", r.number, who, q)
		}
	}
	for range 9 {
		one := []int64{int64(r.number)}
		err := comm.AllReduce(ctx, m.comm, one, one, kernels.Sum)
		if err == nil && one[0] != sum {
			r.job.fault("rank %d: sum over %v is %d", r.number, who, one[0])
		}
		if err != nil {
			r.job.faultUnlessFinished("rank %d: after shrinking to %v: %v", r.number, who, err)
			return false
		}
	}
	return true
}

func sequence(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}
