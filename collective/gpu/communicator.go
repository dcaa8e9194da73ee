package gpu

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// ErrClosed is what calls on a closed communicator return.
var ErrClosed = errors.New("gpu: communicator is closed")

// A Communicator is the ranks of one process on one GPU. Its methods may be called from any goroutine.
type Communicator struct {
	device *cuda.Device
	ranks  int

	mu      sync.Mutex // of what follows: calls are queued one after the other, so that all streams see them in one order
	meeting *meeting
	err     error // why no more calls are taken
	join    *cuda.Join
	moves   map[shape]*Moves
	build   builder
	streams []cuda.Stream
}

// shape is what moves depend on.
type shape struct {
	kind      collective.Kind
	root      int
	algorithm string
	scale     bool
	inPlace   uint64 // a bit for each rank
}

// maxMoves bounds the shapes that are kept.
const maxMoves = 256

// New makes a communicator of ranks on a device. Close frees it; the device must stay open so long.
func New(d *cuda.Device, ranks int) (*Communicator, error) {
	if ranks < 1 || ranks > MaxRanks {
		return nil, fmt.Errorf("gpu: %d ranks on %v, want 1…%d", ranks, d, MaxRanks)
	}
	j, err := d.NewJoin(ranks)
	if err != nil {
		return nil, fmt.Errorf("gpu: %d ranks on %v: %w", ranks, d, err)
	}
	return &Communicator{device: d, ranks: ranks, join: j, moves: map[shape]*Moves{}, streams: make([]cuda.Stream, ranks)}, nil
}

// Close frees what New made. Calls that are queued are still done; ranks that wait for others to call get ErrClosed.
func (c *Communicator) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.err, ErrClosed) {
		return nil
	}
	c.fail(ErrClosed)
	c.err = ErrClosed
	return c.join.Destroy()
}

// Group queues a collective for all ranks, calls[r] being rank r's, in one launch on rank 0's stream, which the other ranks' streams
// are joined to before and behind. It does not wait for the GPU and, but for the first call of a shape, allocates nothing. After an
// error nothing was queued.
func (c *Communicator) Group(calls []Call) error {
	if len(calls) != c.ranks {
		return fmt.Errorf("gpu: a group of %d calls, want one of each of %d ranks", len(calls), c.ranks)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	return c.queue(calls)
}

func (c *Communicator) queue(calls []Call) error {
	if err := calls[0].check(c.ranks); err != nil {
		return err
	}
	s := shape{kind: calls[0].Kind, root: calls[0].Root, algorithm: calls[0].algorithm(), scale: calls[0].scales()}
	for r := range calls {
		if !calls[r].same(&calls[0]) {
			return &MismatchError{r, 0, calls[r].String(), calls[0].String()}
		}
		if calls[r].inPlace(r) {
			s.inPlace |= 1 << r
		}
		c.streams[r] = calls[r].Stream
	}
	if calls[0].Count == 0 && s.kind != collective.Barrier {
		return nil
	}
	m, err := c.lower(s)
	if err != nil {
		return err
	}
	programs, err := c.build.programs(c.device, m, calls)
	if err != nil {
		return err
	}
	if err := c.device.Launch(programs, c.streams[0], c.streams[1:], c.join); err != nil {
		return fmt.Errorf("gpu: %v on %v: %w", &calls[0], c.device, err)
	}
	return nil
}

// lower returns the moves of a shape, from the last time or made now.
func (c *Communicator) lower(s shape) (*Moves, error) {
	if m := c.moves[s]; m != nil {
		return m, nil
	}
	plans := make([]*collective.Plan, c.ranks)
	for r := range plans {
		schedule, err := collective.Build(collective.Shape{Kind: s.kind, Ranks: c.ranks, Root: s.root}, r, s.algorithm)
		if err != nil {
			return nil, err
		}
		if plans[r], err = collective.Compile(schedule, collective.Options{InPlace: s.inPlace>>r&1 != 0, Scale: s.scale}); err != nil {
			return nil, err
		}
	}
	m, err := Lower(plans)
	if err != nil {
		return nil, err
	}
	if len(c.moves) >= maxMoves {
		clear(c.moves)
	}
	c.moves[s] = m
	return m, nil
}

// A meeting is a call that some ranks have made and others have not.
type meeting struct {
	calls   []Call
	called  []bool
	arrived int
	done    chan struct{} // closed when err is final
	err     error
}

// Do is one rank's part of a collective: Start and Wait.
func (c *Communicator) Do(ctx context.Context, rank int, call Call) error {
	t, err := c.Start(rank, call)
	if err != nil {
		return err
	}
	return t.Wait(ctx)
}

// A Ticket is a call that was started.
type Ticket struct {
	c *Communicator
	m *meeting
}

// Start is one rank's part of a collective, and does not wait. The last rank to call queues it for all. A rank's calls are made one
// after the other: each once the one before is Done. An error is about this rank's call alone, and nothing has happened.
func (c *Communicator) Start(rank int, call Call) (Ticket, error) {
	if rank < 0 || rank >= c.ranks {
		return Ticket{}, fmt.Errorf("gpu: rank %d, want 0…%d", rank, c.ranks-1)
	}
	if err := call.check(c.ranks); err != nil {
		return Ticket{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return Ticket{}, c.err
	}
	if c.meeting == nil {
		c.meeting = &meeting{calls: make([]Call, c.ranks), called: make([]bool, c.ranks), done: make(chan struct{})}
	}
	m := c.meeting
	if m.called[rank] {
		return Ticket{}, fmt.Errorf("gpu: rank %d calls %v while its call of %v still waits for other ranks: a rank's calls are made one after the other", rank, &call, &m.calls[rank])
	}
	m.calls[rank], m.called[rank] = call, true
	m.arrived++
	if m.arrived == c.ranks {
		c.meeting = nil
		m.err = c.queue(m.calls)
		close(m.done)
	}
	return Ticket{c, m}, nil
}

// Done is closed when all ranks have called, and the work is queued or has failed.
func (t Ticket) Done() <-chan struct{} { return t.m.done }

// Err is the outcome, once Done is closed.
func (t Ticket) Err() error { return t.m.err }

// Wait waits until the call is Done, not for the GPU, and returns Err. When ctx ends first, or Abort is called, all waiting ranks
// get a MissingError that names the ranks that have not called, and the communicator takes no more calls.
func (t Ticket) Wait(ctx context.Context) error {
	select {
	case <-t.m.done:
	case <-ctx.Done():
		t.c.mu.Lock()
		if t.c.meeting == t.m {
			t.c.fail(ctx.Err())
		}
		t.c.mu.Unlock()
		<-t.m.done
	}
	return t.m.err
}

// Abort ends the waiting of all ranks, now and in future, for the reason given, which must not be nil.
func (c *Communicator) Abort(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail(reason)
}

// fail lets the waiting ranks go and takes no more calls. The lock is held.
func (c *Communicator) fail(reason error) {
	if c.err != nil {
		return
	}
	c.err = reason
	if m := c.meeting; m != nil {
		e := &MissingError{Err: reason}
		for r, called := range m.called {
			if called {
				e.Call = m.calls[r].String()
			} else {
				e.Ranks = append(e.Ranks, r)
			}
		}
		c.meeting, c.err = nil, e
		m.err = e
		close(m.done)
	}
}

// Missing returns the ranks that others wait for, in ascending order, and what those called; nil when nobody waits.
func (c *Communicator) Missing() (ranks []int, call *Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.meeting == nil {
		return nil, nil
	}
	for r, called := range c.meeting.called {
		if called {
			made := c.meeting.calls[r]
			call = &made
		} else {
			ranks = append(ranks, r)
		}
	}
	return ranks, call
}
