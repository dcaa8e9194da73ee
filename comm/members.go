package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
)

// Shrink makes a smaller communicator. Without exclude it is of the ranks that are alive, which all of them call, and agree on who that
// is: whether c has failed, or fails meanwhile, or not all have heard of that yet. With exclude it is of all ranks but those, which do
// not call, and c must be whole. Old ranks keep their order. It shares connections and memory with c, which is still to be closed. A rank
// that the others have given up gets an error. Where c and communicators made from it fail together, shrink c: the others then know which.
// Of a ctx that has ended before, and of ranks that are in something else, what is said of Split holds.
func (c *Comm) Shrink(ctx context.Context, exclude ...int) (*Comm, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, c.family.cfg.InitTimeout)
	defer cancel()
	c.mu.Lock()
	c.splits++
	id := childID(c.id, c.splits, shrunk)
	c.mu.Unlock()
	for _, r := range exclude {
		if r < 0 || r >= c.Size() || r == c.rank {
			return nil, argument("shrink without rank %d, want other ranks than %d in 0…%d", r, c.rank, c.Size()-1)
		}
	}
	failed := c.reason()
	switch {
	case errors.Is(failed, ErrClosed):
		return nil, fmt.Errorf("comm %s: shrink: %w", c.name(), ErrClosed)
	case c.session == nil:
		return c.child(ctx, "shrink", []int{0}, id)
	case len(exclude) == 0:
		return c.regroup(ctx, failed == nil, id)
	case failed != nil:
		return nil, c.refusal("shrink", c.verdict())
	}
	members := slices.DeleteFunc(c.everybody(), func(r int) bool { return slices.Contains(exclude, r) })
	m := c.begin(fmt.Sprintf("shrink without ranks %v", slices.Compact(slices.Sorted(slices.Values(exclude)))), members)
	defer c.end(m)
	return c.child(ctx, "shrink", members, id)
}

// regroup is Shrink without exclude, of a communicator that is whole as far as we know, or has failed. The id is for one rank alone.
func (c *Comm) regroup(ctx context.Context, whole bool, id uint64) (*Comm, error) {
	if !whole {
		_ = c.verdict() // all calls have returned, and the others know
	}
	m := c.begin(regrouping, c.everybody())
	sub, alive, err := c.session.Regroup(ctx)
	c.end(m)
	if err != nil {
		return nil, c.unmade("shrink", whole, causeOf(err))
	}
	if len(alive) > 1 {
		return c.member(ctx, "shrink", sub, sub.ID(), alive)
	}
	if err := sub.Close(); err != nil {
		return nil, fmt.Errorf("comm %s: shrink: %w", c.name(), err)
	}
	return c.member(ctx, "shrink", nil, childID(id, uint64(c.world[c.rank]), alone), alive)
}

// everybody is the ranks from 0 on.
func (c *Comm) everybody() []int {
	all := make([]int, c.Size())
	for r := range all {
		all[r] = r
	}
	return all
}

// shrunk stands for a colour in the id of a communicator that Shrink makes.
const shrunk = -2

// alone stands for a colour in the id of a communicator of one rank.
const alone = -3

// child makes a communicator of some of our ranks, in this order, of which we are one. When c breaks first, so does op. The id is for one
// rank alone; several have their session's, on which they agree whatever they did before.
func (c *Comm) child(ctx context.Context, op string, members []int, id uint64) (*Comm, error) {
	id = childID(id, uint64(c.world[c.rank]), alone) // there may be other such on other ranks
	var sub bootstrap.Session
	if len(members) > 1 {
		whole, stop := c.whileWhole(ctx)
		var err error
		sub, err = c.session.Sub(whole, members)
		stop()
		if err != nil {
			why := causeOf(err)
			why.secondhand = why.class == "peer gone"
			if errors.As(err, new(*bootstrap.AbortedError)) {
				// Another member gave it up. If that is because of what befell c, we shall hear; else c is as before.
				word := time.NewTimer(firsthand)
				defer word.Stop()
				select {
				case <-c.broken:
					return nil, c.refusal(op, c.verdict())
				case <-word.C:
					return nil, c.refusal(op, why)
				}
			}
			return nil, c.unmade(op, true, why)
		}
		id = sub.ID()
	}
	return c.member(ctx, op, sub, id, members)
}

// whileWhole returns a context that ends with ctx, and when c breaks; stop ends it.
func (c *Comm) whileWhole(ctx context.Context) (whole context.Context, stop func()) {
	whole, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case <-c.broken:
			cancel()
		case <-whole.Done():
		}
	})
	return whole, func() { cancel(); waiting.Wait() }
}

// member is our membership in a communicator of some of our ranks, which have a session of their own unless there is one alone.
func (c *Comm) member(ctx context.Context, op string, s bootstrap.Session, id uint64, members []int) (*Comm, error) {
	world := make([]int, len(members))
	for i, r := range members {
		world[i] = c.world[r]
	}
	if !c.family.hold() { // closed meanwhile
		err := c.refusal(op, ErrClosed)
		if s != nil {
			err = errors.Join(err, s.Close())
		}
		return nil, err
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
	if c.reason() != nil {
		return bootstrap.ID{}, c.refusal("invite", c.verdict())
	}
	cfg := &c.family.cfg
	at, err := inviteAt(cfg)
	if err != nil {
		return bootstrap.ID{}, fmt.Errorf("comm %s: invite: %w", c.name(), err)
	}
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: at, Ports: cfg.Ports, Timeout: cfg.InitTimeout, Network: cfg.Network, Log: cfg.Logger})
	if err != nil {
		return bootstrap.ID{}, fmt.Errorf("comm %s: invite: %w", c.name(), err)
	}
	mine := &invitation{root, more}
	if old := c.invitation.Swap(mine); old != nil {
		old.root.Close()
	}
	if c.life.Err() != nil { // Close may have looked before it was there
		if c.invitation.CompareAndSwap(mine, nil) {
			root.Close()
		}
		return bootstrap.ID{}, c.refusal("invite", ErrClosed)
	}
	return root.ID(), nil
}

// inviteAt is where the root of a grown world listens. On a network of a test's, which has no interfaces, it is the host of this world's.
func inviteAt(cfg *Config) (string, error) {
	roots := cfg.ID.Roots("")
	if cfg.Network.Dial == nil {
		at, err := choosePlace(cfg.Interface, roots)
		return at.hostPort(), err
	}
	if len(roots) == 0 {
		return "", fmt.Errorf("the id names no host on Config.Network: %w", ErrUnsupported)
	}
	host, _, err := net.SplitHostPort(roots[0])
	return net.JoinHostPort(host, "0"), err
}

// invitation is a root that waits for a grown world.
type invitation struct {
	root *bootstrap.Root
	more int
}

// Grow makes a larger communicator of all ranks of c, which must all call it, and the new ones that join with the id of Invite,
// which one rank has called before. Old ranks keep their numbers. The result is independent of c, which is still to be closed. When c
// fails meanwhile, all of its ranks get an error; when new ranks don't come, c is as before. Of a ctx that has ended before, and of ranks that
// are in something else, what is said of Split holds.
func (c *Comm) Grow(ctx context.Context) (*Comm, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var mine []byte
	inv := c.invitation.Swap(nil)
	if inv != nil {
		defer inv.root.Close()
		mine = append(inv.root.ID().Bytes(), byte(inv.more>>24), byte(inv.more>>16), byte(inv.more>>8), byte(inv.more))
	}
	if c.reason() != nil {
		return nil, c.refusal("grow", c.verdict())
	}
	all := [][]byte{mine}
	if c.session != nil {
		ctx, cancel := context.WithTimeout(ctx, c.family.cfg.InitTimeout)
		defer cancel()
		m := c.begin("grow", c.everybody())
		var err error
		all, err = c.gatherFor(ctx, m, mine)
		c.end(m)
		if err != nil {
			return nil, err
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
	ctx, stop := c.whileWhole(ctx) // who is in c and has not come to New yet will not
	defer stop()
	grown, err := New(ctx, cfg)
	if err != nil && c.reason() != nil {
		return nil, c.refusal("grow", c.verdict())
	}
	return grown, err
}
