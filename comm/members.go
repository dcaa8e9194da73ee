package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
)

// Shrink makes a smaller communicator: of the ranks that are alive, where this one has failed, whose ranks agree on who
// that is; else of all ranks but those excluded, which do not call. Old ranks keep their order. It shares connections
// and memory with c, which is still to be closed. A rank that the others have given up gets an error.
func (c *Comm) Shrink(ctx context.Context, exclude ...int) (*Comm, error) {
	ctx, cancel := context.WithTimeout(ctx, c.family.cfg.InitTimeout)
	defer cancel()
	c.mu.Lock()
	c.splits++
	count := c.splits
	c.mu.Unlock()
	for _, r := range exclude {
		if r < 0 || r >= c.Size() || r == c.rank {
			return nil, argument("shrink without rank %d, want other ranks than %d in 0…%d", r, c.rank, c.Size()-1)
		}
	}
	if errors.Is(c.reason(), ErrClosed) {
		return nil, fmt.Errorf("comm %s: shrink: %w", c.name(), ErrClosed)
	}
	if c.reason() != nil && len(exclude) > 0 {
		return nil, c.refusal("shrink", c.verdict())
	}
	var alive []int
	var broken <-chan struct{}
	switch {
	case c.session == nil:
		alive = []int{0}
	case c.reason() != nil:
		_ = c.verdict() // all calls have returned, and the others know
		sub, alive, err := bootstrap.Regroup(ctx, c.session)
		if err != nil {
			return nil, c.unmade("shrink", false, causeOf(err))
		}
		if len(alive) > 1 {
			return c.member(ctx, "shrink", sub, sub.ID(), alive)
		}
		if err := sub.Close(); err != nil {
			return nil, fmt.Errorf("comm %s: shrink: %w", c.name(), err)
		}
		return c.member(ctx, "shrink", nil, childID(childID(c.id, count, shrunk), uint64(c.world[c.rank]), alone), alive)
	default:
		broken = c.broken
		for r := range c.Size() {
			alive = append(alive, r)
		}
	}
	alive = slices.DeleteFunc(slices.Clone(alive), func(r int) bool { return slices.Contains(exclude, r) })
	return c.child(ctx, "shrink", broken, alive, childID(c.id, count, shrunk))
}

// shrunk stands for a colour in the id of a communicator that Shrink makes.
const shrunk = -2

// alone stands for a colour in the id of a communicator of one rank.
const alone = -3

// making is a Split or Shrink under way, and who takes part.
type making struct {
	op      string
	members []int
}

// begin says what is under way; the result ends it.
func (c *Comm) begin(op string, members []int) (done func()) {
	m := &making{op, members}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.making = m
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.making == m {
			c.making = nil
		}
	}
}

// child makes a communicator of some of our ranks, in this order, of which we are one. When broken closes first, c has
// failed, and so does op. The id is for one rank alone; several have their session's, on which they agree whatever they did before.
func (c *Comm) child(ctx context.Context, op string, broken <-chan struct{}, members []int, id uint64) (*Comm, error) {
	id = childID(id, uint64(c.world[c.rank]), alone) // there may be other such on other ranks
	var sub bootstrap.Session
	if len(members) > 1 {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var waiting sync.WaitGroup
		if broken != nil {
			waiting.Go(func() {
				select {
				case <-broken:
					cancel()
				case <-ctx.Done():
				}
			})
		}
		done := c.begin(op, members)
		var err error
		sub, err = c.session.Sub(ctx, members)
		done()
		cancel()
		waiting.Wait()
		if err != nil {
			why := causeOf(err)
			why.secondhand = broken != nil && why.class == "peer gone"
			if broken != nil && errors.As(err, new(*bootstrap.AbortedError)) {
				// Another member gave it up. If that is because of what befell c, we shall hear; else c is as before.
				word := time.NewTimer(firsthand)
				defer word.Stop()
				select {
				case <-broken:
					return nil, c.refusal(op, c.verdict())
				case <-word.C:
					return nil, c.refusal(op, why)
				}
			}
			return nil, c.unmade(op, broken != nil, why)
		}
		id = sub.ID()
	}
	return c.member(ctx, op, sub, id, members)
}

// member is our membership in a communicator of some of our ranks, which have a session of their own unless there is one alone.
func (c *Comm) member(ctx context.Context, op string, s bootstrap.Session, id uint64, members []int) (*Comm, error) {
	world := make([]int, len(members))
	for i, r := range members {
		world[i] = c.world[r]
	}
	child := newComm(id, slices.Index(members, c.rank), world, c.family, s)
	if err := child.joinGPU(ctx); err != nil {
		child.Abort(err)
		return nil, errors.Join(c.refusal(op, err), child.Close())
	}
	return child, nil
}

// unmade is the error of an op that was to make a communicator and could not. Where ours is whole, it fails, too: the ranks no longer
// agree about what comes next.
func (c *Comm) unmade(op string, whole bool, why *cause) error {
	if !whole {
		return c.refusal(op, why)
	}
	c.fail(why)
	return c.refusal(op, c.verdict())
}

// refusal is the error of an op on a communicator that has failed because of err.
func (c *Comm) refusal(op string, err error) error {
	return &Error{Comm: c.name(), Rank: c.rank, Op: op, Ranks: culprits(err), Err: &aborted{err}}
}

// Invite prepares for Grow, on one rank: it returns an id for a world of the ranks of c and as many new ones, which join
// with it by New as ranks Size, Size+1, … of Size+more. The id holds a secret; how it gets to them is the caller's affair.
func (c *Comm) Invite(ctx context.Context, more int) (bootstrap.ID, error) {
	if more < 1 {
		return bootstrap.ID{}, argument("invite %d ranks, want at least 1", more)
	}
	at, err := choosePlace(c.family.cfg.Interface, c.family.cfg.ID.Roots(""))
	if err != nil {
		return bootstrap.ID{}, fmt.Errorf("comm %s: invite: %w", c.name(), err)
	}
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: at.hostPort(), Ports: c.family.cfg.Ports, Timeout: c.family.cfg.InitTimeout, Log: c.family.log})
	if err != nil {
		return bootstrap.ID{}, fmt.Errorf("comm %s: invite: %w", c.name(), err)
	}
	if old := c.invitation.Swap(&invitation{root, more}); old != nil {
		old.root.Close()
	}
	return root.ID(), nil
}

// invitation is a root that waits for a grown world.
type invitation struct {
	root *bootstrap.Root
	more int
}

// Grow makes a larger communicator of all ranks of c, which must all call it, and the new ones that join with the id of Invite,
// which one rank has called before. Old ranks keep their numbers. The result is independent of c, which is still to be closed.
func (c *Comm) Grow(ctx context.Context) (*Comm, error) {
	var mine []byte
	inv := c.invitation.Swap(nil)
	if inv != nil {
		defer inv.root.Close()
		mine = append(inv.root.ID().Bytes(), byte(inv.more>>24), byte(inv.more>>16), byte(inv.more>>8), byte(inv.more))
	}
	all := [][]byte{mine}
	if c.session != nil {
		ctx, cancel := context.WithTimeout(ctx, c.family.cfg.InitTimeout)
		defer cancel()
		var err error
		if all, err = c.session.AllGather(ctx, mine); err != nil {
			return nil, fmt.Errorf("comm %s: grow: %w", c.name(), err)
		}
	}
	all = slices.DeleteFunc(all, func(b []byte) bool { return len(b) == 0 })
	if len(all) != 1 || len(all[0]) != bootstrap.IDSize+4 {
		return nil, argument("grow: %d ranks have called Invite, want exactly one", len(all))
	}
	b := all[0]
	id, err := bootstrap.IDFromBytes(b[:bootstrap.IDSize])
	if err != nil {
		return nil, fmt.Errorf("comm %s: grow: %w", c.name(), err)
	}
	more := int(b[len(b)-4])<<24 | int(b[len(b)-3])<<16 | int(b[len(b)-2])<<8 | int(b[len(b)-1])
	cfg := c.family.cfg
	cfg.ID, cfg.Rank, cfg.Size = id, c.rank, c.Size()+more
	return New(ctx, cfg)
}
