package gpu

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// ErrClosed is what calls on a closed communicator return.
var ErrClosed = errors.New("gpu: communicator is closed")

// A Communicator is the ranks of one process, on one GPU or several. Its methods may be called from any goroutine.
type Communicator struct {
	ranks   int
	devices []*cuda.Device // of each rank
	sites   []site
	links   *links // between the sites; nil: they are one, or not linked

	mu       sync.Mutex     // of what follows: calls are queued one after the other, so that all streams see them in one order
	meetings []*meeting     // that wait for ranks, in the order of calls
	posted   map[way][]half // messages that wait for their other end
	err      error          // why no more calls are taken
	closed   bool
	moves    map[shape]*Moves
	build    builder
	streams  []cuda.Stream // of the call at hand, by rank
	active   []*site       // its sites
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

// New makes a communicator; devices[r] is rank r's. Ranks on one GPU share one *cuda.Device; several are connected first
// (cuda.Connect). Close frees it; the devices must stay open so long.
func New(devices []*cuda.Device) (*Communicator, error) {
	if len(devices) < 1 || len(devices) > MaxRanks {
		return nil, fmt.Errorf("gpu: %d ranks, want 1…%d", len(devices), MaxRanks)
	}
	c := &Communicator{ranks: len(devices), devices: slices.Clone(devices), moves: map[shape]*Moves{}, streams: make([]cuda.Stream, len(devices))}
	for r, d := range devices {
		i := slices.IndexFunc(c.sites, func(s site) bool { return s.device == d })
		if i < 0 {
			i = len(c.sites)
			c.sites = append(c.sites, site{device: d})
		}
		c.sites[i].ranks = append(c.sites[i].ranks, r)
	}
	for i := range c.sites {
		for k := range c.sites {
			if a, b := c.sites[i].device, c.sites[k].device; !a.Reaches(b) {
				return nil, errors.Join(fmt.Errorf("gpu: %v and %v are not connected: kernels on one cannot use memory of the other: %w", a, b, errors.ErrUnsupported), c.Close())
			}
		}
		if err := c.sites[i].open(); err != nil {
			return nil, errors.Join(fmt.Errorf("gpu: %d ranks on %v: %w", len(c.sites[i].ranks), c.sites[i].device, err), c.Close())
		}
	}
	var err error
	if c.links, err = newLinks(c.sites, c.ranks); err != nil {
		return nil, errors.Join(fmt.Errorf("gpu: memory for traffic between %d GPUs: %w", len(c.sites), err), c.Close())
	}
	return c, nil
}

// Close frees what New made. Calls that are queued are still done; ranks that wait for others to call get ErrClosed.
func (c *Communicator) Close() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.fail(ErrClosed)
	c.err = ErrClosed
	err = c.links.close()
	for i := range c.sites {
		err = errors.Join(err, c.sites[i].close())
	}
	return err
}

// Group queues a collective for all ranks, calls[r] being rank r's. On one GPU it is one launch on the first rank's stream, which
// the other ranks' streams are joined to before and behind; on several it is one on each, which wait for each other, or whose
// streams meet by events before, between phases, and behind. It does not wait for a GPU and, but for the first call of a shape, allocates nothing. After an error
// that is not the driver's nothing was queued.
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
	s := shape{kind: calls[0].Kind, root: calls[0].Root, algorithm: c.algorithm(&calls[0]), scale: calls[0].scales()}
	for r := range calls {
		if !calls[r].same(&calls[0]) {
			return &MismatchError{r, 0, calls[r].String(), calls[0].String()}
		}
		if calls[r].inPlace(r) {
			s.inPlace |= 1 << r
		}
	}
	if calls[0].Count == 0 && s.kind != collective.Barrier {
		return nil
	}
	if done, err := c.across(calls); done || err != nil {
		return err
	}
	m, err := c.lower(s)
	if err != nil {
		return err
	}
	for r := range calls {
		c.streams[r] = calls[r].Stream
	}
	c.build.begin(m, calls)
	err = c.run(^uint64(0), len(m.Phases), func(d *cuda.Device, phase int) error {
		if phase < len(m.Phases) {
			return c.build.phase(d, c.devices, m.Phases[phase])
		}
		if calls[0].divides() {
			return c.build.divide(d, c.devices, m)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("gpu: %v: %w", &calls[0], err)
	}
	return nil
}

// run queues phases of work between the streams of the ranks that take part, and after them what needs no other GPU. add has the
// builder make a device's programs of a phase, or of what comes after the last.
func (c *Communicator) run(part uint64, phases int, add func(d *cuda.Device, phase int) error) error {
	c.active = c.active[:0]
	for i := range c.sites {
		if c.sites[i].take(c.streams, part) {
			c.active = append(c.active, &c.sites[i])
		}
	}
	if len(c.active) == 1 {
		s := c.active[0]
		for phase := range phases + 1 {
			if err := add(s.device, phase); err != nil {
				return err
			}
		}
		return s.launch(c.build.programs())
	}
	for _, s := range c.active {
		if err := s.launch(nil); err != nil {
			return err
		}
	}
	for phase := range phases + 1 {
		if err := c.meet(); err != nil {
			return err
		}
		for _, s := range c.active {
			c.build.used = 0
			if err := add(s.device, phase); err != nil {
				return err
			}
			others := s.others
			if phase < phases {
				others = nil
			}
			if err := s.device.Launch(c.build.programs(), s.lead, others, s.join); err != nil {
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

// algorithm is the one asked for, or the one whose moves are fewest; on several GPUs, each of which does the moves of its ranks,
// the fewest on each.
func (c *Communicator) algorithm(call *Call) string {
	switch {
	case call.Algorithm != "":
		return call.Algorithm
	case call.Kind == collective.AllReduce && len(c.sites) > 1:
		return "twoshot"
	case call.Kind == collective.AllReduce:
		return "oneshot"
	case call.Kind == collective.AllToAll:
		return "pairwise"
	}
	return "direct"
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
