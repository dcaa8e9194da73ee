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
	spare    []*meeting     // that nobody has a ticket of
	posted   map[way][]half // messages that wait for their other end
	err      error          // why no more calls are taken
	closed   bool
	checked  Call // what is being checked: on the stack it would not stay
	moves    map[shape]*Moves
	hot      shape // of the last call: to compare takes less than to look up
	hotMoves *Moves
	build    builder
	streams  []cuda.Stream // of the batch at hand, by rank
	active   []*site       // its sites

	held    int        // Holds that have not been released
	batch   []job      // that are queued by the last Release
	waiting []*meeting // of each of them
	part    uint64     // ranks that take part in the batch
	turns   []round
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
	siteOf := make([]int, len(devices))
	for r, d := range devices {
		i := slices.Index(devices[:r], d)
		if i < 0 {
			i = len(c.sites)
			c.sites = append(c.sites, site{device: d})
		} else {
			i = siteOf[i]
		}
		siteOf[r] = i
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
	c.flush()
	if slices.Equal(calls, c.build.last) {
		return c.again()
	}
	if err := c.check(0, &calls[0]); err != nil {
		return err
	}
	j, err := c.prepare(calls)
	if err != nil || j.moves == nil {
		return err
	}
	c.include(&j)
	c.batch = append(c.batch, j)
	err = c.run(c.batch)
	clear(c.batch)
	c.batch, c.part = c.batch[:0], 0
	return err
}

// Behind looks at the oldest launch that is not done, of those that several streams of a GPU take part in, or linked GPUs, and no graph captures. It returns its
// number and the ranks whose streams have not come to it while the others' wait, or ranks nil when all is done. It does not wait,
// neither for the GPU nor for a launch that the driver does not take because too many are queued. Launches between streams of a GPU are told
// apart from the first look on, unless the host is too far ahead of the GPU: then the ranks are more than those that are late. So they may
// be over several GPUs that are not linked: the first rank of one that waits for another is named as well.
func (c *Communicator) Behind() (launch uint64, ranks []int) {
	last := uint64(0)
	look := func(n uint64, late []int) {
		if last = max(last, n); late != nil {
			launch = max(launch, n)
		}
		for _, r := range late {
			if !slices.Contains(ranks, r) {
				ranks = append(ranks, r)
			}
		}
	}
	for i := range c.sites {
		look(c.sites[i].behind())
	}
	if c.links != nil {
		look(c.links.marks.behind(c.sites))
	}
	if ranks == nil {
		return last, nil
	}
	return launch, ranks
}

// check returns an error that names what makes no sense in a rank's call, whoever else calls.
func (c *Communicator) check(rank int, call *Call) error {
	if err := call.check(c.ranks); err != nil {
		return err
	}
	if call.Kind.Reduces() && call.DType.Size() == 1 {
		for i := range c.sites {
			if err := c.sites[i].device.Folds(call.DType); err != nil {
				return fmt.Errorf("gpu: rank %d: %v: %w", rank, call, err)
			}
		}
	}
	return c.admits(call)
}

// admits returns an error that lists the algorithms that can be had, if a call names none of them: whether a schedule lowers does not depend on
// which ranks' calls are in place.
func (c *Communicator) admits(call *Call) error {
	if call.Algorithm == "" {
		return nil
	}
	s := shape{kind: call.Kind, root: call.Root, algorithm: call.Algorithm, scale: call.scales()}
	_, err := c.lookup(s)
	if err == nil {
		return nil
	}
	var names []string
	for _, a := range collective.Catalog(call.Kind) {
		if s.algorithm = a.Name; a.Name != call.Algorithm {
			if _, no := c.lookup(s); no == nil {
				names = append(names, a.Name)
			}
		}
	}
	return fmt.Errorf("gpu: %v: of %d ranks in one process, want one of %v: %w: %w", call, c.ranks, names, errors.ErrUnsupported, err)
}

// prepare makes a job of all ranks' calls; without moves there is nothing to do. The lock is held.
func (c *Communicator) prepare(calls []Call) (j job, err error) {
	s := shape{kind: calls[0].Kind, root: calls[0].Root, algorithm: c.algorithm(&calls[0]), scale: calls[0].scales()}
	for r := range calls {
		if !calls[r].same(&calls[0]) {
			return j, &MismatchError{r, 0, calls[r].String(), calls[0].String()}
		}
		if calls[r].inPlace(r) {
			s.inPlace |= 1 << r
		}
	}
	j.calls = calls
	if calls[0].Count == 0 && s.kind != collective.Barrier {
		return j, nil
	}
	j.moves, err = c.lower(s)
	return j, err
}

// again queues what was queued last: to repeat a call on the same memory is common, and then its programs are there. The lock is held.
func (c *Communicator) again() error { return c.active[0].launch(c.build.programs()) }

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
	if c.hotMoves != nil && c.hot == s {
		return c.hotMoves, nil
	}
	m, err := c.lookup(s)
	if err == nil {
		c.hot, c.hotMoves = s, m
	}
	return m, err
}

func (c *Communicator) lookup(s shape) (*Moves, error) {
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
