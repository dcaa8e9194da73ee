package comm

import (
	"context"
	"slices"
	"strings"
	"time"
)

// making is a Split, Shrink or Grow under way. Ranks are told apart from such as are in another making, or in a collective, by their numbers:
// any two of them count the makings in which both take part.
type making struct {
	op      string // the same on all who take part in it
	members []int  // who is waited for
	began   time.Time
	look    *time.Timer // sends word to the watcher
}

// regrouping is the op of a Shrink without exclude. Who calls that may know of a failure before others hear of it.
const regrouping = "shrink"

// regroupFor is how long one that the others are not in may mean that: longer than a rank takes to be known to be silent.
const regroupFor = 10 * time.Second

// begin says what is under way, until end.
func (c *Comm) begin(op string, members []int) *making {
	m := &making{op: op, members: members, began: time.Now()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		c.made = make([]uint64, c.Size())
	}
	for _, r := range members {
		c.made[r]++
	}
	c.making = m
	m.look = time.AfterFunc(firstLook, func() {
		select {
		case c.makes <- struct{}{}:
		default:
		}
	})
	return m
}

func (c *Comm) end(m *making) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.look.Stop()
	if c.making == m {
		c.making = nil
	}
}

// narrow says that what is under way only waits for some of its members any more.
func (c *Comm) narrow(m *making, members []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.members = members
}

// gatherFor is an AllGather in a making of all ranks. What each gives goes behind the op, so that ranks which are in others tell at once.
func (c *Comm) gatherFor(ctx context.Context, m *making, b []byte) ([][]byte, error) {
	all, err := c.session.AllGather(ctx, append([]byte(m.op+"\n"), b...))
	if err != nil {
		return nil, c.unmade(m.op, true, causeOf(err))
	}
	calls := map[int]agreed{}
	for r := range all {
		op, block, _ := strings.Cut(string(all[r]), "\n")
		all[r], calls[r] = []byte(block), agreed{Making: op}
	}
	if distinct(calls) {
		return nil, c.unmade(m.op, true, convict(0, calls))
	}
	return all, nil
}

// compareMaking asks the ranks on both sides of us, in the list of those that take part in what is under way, whether they are in something else, and
// has the communicator fail if one is: where some are, there are two such neighbours, unless a rank between them is in nothing yet.
func (c *Comm) compareMaking() {
	c.mu.Lock()
	m := c.making
	if m == nil || !slices.Contains(m.members, c.rank) {
		c.mu.Unlock()
		return
	}
	op, members, me := m.op, m.members, slices.Index(m.members, c.rank)
	c.mu.Unlock()
	stood := time.Since(m.began)
	for r, t := range c.askAll(slices.Compact([]int{members[(me+1)%len(members)], members[(me+len(members)-1)%len(members)]})) {
		theirs, over, known := c.instead(r, t.state)
		if !known || over || theirs.Making == op || stood < regroupFor && (op == regrouping || theirs.Making == regrouping) {
			continue
		}
		two := map[int]agreed{c.rank: {Making: op}, r: theirs}
		vote := func(r int, s *rankState) (agreed, bool) {
			theirs, _, known := c.instead(r, s)
			return theirs, known
		}
		why := c.juryOn(0, two, vote, convict(0, two))
		c.mu.Lock()
		still := c.making == m
		c.mu.Unlock()
		if still {
			c.fail(why)
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.making == m {
		m.look.Reset(min(max(firstLook, stood), 2*time.Second))
	}
}

// instead says what rank r is in while we are in a making, of those things that stand in one order on all ranks, so that it cannot come to ours
// before the end of its own: that making, another one, or a collective that we have not called, and whether that is over: it may have needed nothing
// of us.
func (c *Comm) instead(r int, s *rankState) (is agreed, over, known bool) {
	if s == nil || s.Failed != "" {
		return is, false, false
	}
	own := c.state(r)
	switch {
	case s.Made == own.Made && s.Making != "":
		return agreed{Making: s.Making}, false, true
	case s.Made >= own.Made:
		return is, false, false
	case s.OnGPU > own.OnGPU && s.Stands:
		return agreed{Making: "a collective on GPU memory"}, false, true
	}
	for _, call := range s.Calls {
		if call.Seq > own.Begun {
			return call.Call, call.Done, true
		}
	}
	return is, false, false
}
