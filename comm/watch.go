package comm

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/transport"
)

// How a communicator looks for what is wrong.
const (
	firstLook = 200 * time.Millisecond // a call stands still for so long before other ranks are asked
	askFor    = time.Second            // a rank that does not answer in this time is silent
	hearsay   = 2 * time.Second        // a rank that lost a connection waits so long for word of why
	firsthand = 250 * time.Millisecond // shorter if the connection was not closed by that rank, but broke
	onTheWay  = 5 * time.Second        // a rank that closed may have sent what we need, and it arrives so much later
	unmet     = 400 * time.Millisecond // the same of one that we never heard of on the message's connection: its data and this news are as fast
	juryEvery = 50 * time.Millisecond
	juryFor   = 500 * time.Millisecond // ranks that have not called by then do not count; shorter than hearsay
	lastWords = 100 * time.Millisecond // calls in flight may end so long after the death of a rank: what it sent may be there
)

// health is what is known about calls that stand still and about the communicator's failure.
type health struct {
	failed atomic.Pointer[failure]        // what went wrong first, as far as we saw
	broken chan struct{}                  // closed when failed is set
	wreck  atomic.Pointer[[]RecordedLane] // where the lanes stood then

	judged    chan struct{}         // closed by the watcher when it ends
	judgement atomic.Pointer[cause] // set before: whose fault it was; nil: nobody's, or failed says it

	stuck    atomic.Pointer[stuck] // the call that was last seen to stand still
	departed atomic.Int64          // when a rank was last found to have closed, in ns since 1970
	look     chan struct{}         // one token: stuck is worth looking into
	makes    chan struct{}         // … making is
	found    struct {              // by the watcher, when it last looked
		seq     uint64
		call    agreed
		finding finding
		gone    time.Time        // since when ranks that the call waits for have been found to have closed
		again   <-chan time.Time // when to look once more
	}
}

type failure struct{ err error }

// fail records what went wrong first; the watcher finds out whose fault it was and tells the others.
func (c *Comm) fail(err error) {
	if c.failed.CompareAndSwap(nil, &failure{err}) {
		close(c.broken)
	}
}

// reason is why the communicator is of no more use, or nil.
func (c *Comm) reason() error {
	if f := c.failed.Load(); f != nil {
		return f.err
	}
	return nil
}

// verdict is the reason that all ranks agree on, as far as they can. It waits for the watcher to find it.
func (c *Comm) verdict() error {
	if c.port != nil {
		<-c.judged
		if why := c.judgement.Load(); why != nil {
			return why
		}
	}
	return c.reason()
}

// watch carries failures between this communicator and the other ranks, and looks into calls that do not move.
func (c *Comm) watch() {
	defer c.watcher.Done()
	defer close(c.judged)
	c.session.Farewell(c.begun) // before Close, which waits for us
	fates := c.session.Fates()
	var death *cause
	var doom <-chan time.Time
	for {
		select {
		case n, ok := <-c.session.Aborted():
			if ok {
				c.heard(n)
			}
			return
		case f, ok := <-fates:
			if !ok {
				fates = nil
			} else if f.Status == bootstrap.Dead && death == nil {
				death, doom = deathOf(f), time.After(lastWords)
			} else if f.Status == bootstrap.Closed {
				c.departed.Store(time.Now().UnixNano())
			}
		case <-doom:
			c.fail(death)
		case <-c.look:
			c.investigate()
		case <-c.makes:
			c.compareMaking()
		case <-c.found.again:
			c.found.again = nil
			c.investigate()
		case <-c.broken:
			c.settle()
			return
		case <-c.closing:
			if c.reason() != nil { // else the others would only see that we close
				c.settle()
			}
			return
		}
	}
}

// settle finds out why the communicator broke, and tells the others.
func (c *Comm) settle() {
	why := causeOf(c.reason())
	switch {
	case errors.As(c.reason(), new(*cause)) && !why.secondhand:
	case why.class == "peer gone":
		if why = c.whoLeft(why); why == nil {
			return // another rank has said it
		}
	case why.class == "mismatch" && len(why.ranks) == 1:
		if seq := c.mismatched(why.ranks[0]); seq != 0 {
			why = c.jury(seq, why)
		} else if text := c.mismatchedPair(why.ranks[0]); text != "" {
			why.text = text
		}
	}
	select {
	case n, ok := <-c.session.Aborted(): // another rank was faster: all should say the same
		if ok {
			c.heard(n)
			return
		}
	default:
	}
	said := *why // which others may be reading
	said.ranks = culprits(why)
	why = &said
	c.judgement.Store(why)
	c.session.Abort(wire{why})
	c.failPorts()
	c.dump()
}

// whoLeft finds out why a peer's connection ended: it died or closed its communicator; or it is alive and closed the
// connection because of what a third one did, of which it or another will tell us. Nil: they did.
func (c *Comm) whoLeft(lost *cause) *cause {
	indirect := lost.secondhand || errors.Is(c.reason(), transport.ErrLeft)
	patience := time.NewTimer(hearsay)
	if !indirect {
		patience.Reset(firsthand) // ours are the news that others wait for
	}
	defer patience.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	var closed time.Time
	for {
		select {
		case n, ok := <-c.session.Aborted(): // it said why before it closed
			if ok {
				c.heard(n)
				return nil
			}
			return lost
		default:
		}
		if indirect {
			for r := range c.Size() { // most likely the peer left because of a death
				if c.session.Status(r) == bootstrap.Dead && !slices.Contains(lost.ranks, r) {
					return c.left(r)
				}
			}
		}
		for _, r := range lost.ranks {
			switch why := c.left(r); {
			case why == nil:
			case c.session.Status(r) == bootstrap.Dead, !closed.IsZero() && time.Since(closed) >= firsthand:
				return why
			case closed.IsZero(): // it may have aborted before, and word of that come another way
				closed = time.Now()
			}
		}
		select {
		case n, ok := <-c.session.Aborted():
			if ok {
				c.heard(n)
				return nil
			}
			return lost
		case <-again.C:
		case <-c.closing:
			return lost
		case <-patience.C:
			if !indirect {
				return lost
			}
			for r := range c.Size() { // nobody told: then whoever has left was the first
				if why := c.left(r); why != nil {
					return why
				}
			}
			return lost
		}
	}
}

// left says that a rank is dead or has closed the communicator, or nil.
func (c *Comm) left(r int) *cause {
	if r == c.rank {
		return nil
	}
	var how string
	switch c.session.Status(r) {
	case bootstrap.Dead:
		how = "its process ended or was cut off"
	case bootstrap.Closed:
		how = "it closed the communicator"
	default:
		return nil
	}
	return &cause{class: "peer gone", ranks: []int{r}, text: fmt.Sprintf("rank %d is gone: %s", r, how), from: -1}
}

// heard takes another rank's word for what went wrong; but if we lack memory ourselves, only we can say how much.
func (c *Comm) heard(n bootstrap.Notice) {
	why := parseCause(n)
	if own := c.reason(); errors.Is(own, transport.ErrSpace) {
		why = causeOf(own)
	}
	c.judgement.Store(why)
	c.fail(why)
	c.failPorts()
	c.dump()
}

func deathOf(f bootstrap.Fate) *cause {
	return &cause{class: "peer gone", ranks: []int{f.Rank}, text: fmt.Sprintf("rank %d is gone: %s", f.Rank, f.Reason), from: -1}
}

// stalled is asked by the driver about a call that does not move. It leaves word for the watcher, which may take its
// time, and never fails the call itself.
func (c *Comm) stalled(call *engine.Call, elapsed time.Duration, peers []int) error {
	r := call.Note.(*run)
	// Has anybody closed since we were last asked? Twice for what came just then is better than never.
	news := c.departed.Load() >= time.Now().Add(r.elapsed-elapsed-10*time.Millisecond).UnixNano()
	r.elapsed = elapsed
	if elapsed < r.nextLook && !news {
		return nil
	}
	limits := c.family.cfg
	r.nextLook = max(3*elapsed, firstLook)
	for _, at := range []time.Duration{limits.CallTimeout, limits.CallTimeout - askFor, limits.WarnAfter} {
		if elapsed < at && at < r.nextLook {
			r.nextLook = at
		}
	}
	if elapsed >= limits.CallTimeout {
		r.nextLook = elapsed + askFor // the watcher is late
	}
	if elapsed < firstLook {
		return nil
	}
	c.stuck.Store(&stuck{run: r, seq: r.seq, call: r.prepared.agreed(), lane: r.lane, peers: r.ranks(slices.Clone(peers)), since: elapsed})
	select {
	case c.look <- struct{}{}:
	default:
	}
	return nil
}

// investigate asks the ranks that a call waits for, and those they wait for, what is wrong; it fails the communicator when that is
// clear or time is up.
func (c *Comm) investigate() {
	k := c.stuck.Load()
	if c.over(k) {
		return
	}
	f := c.findOut(*k)
	if c.over(k) {
		return
	}
	limits := c.family.cfg
	if k.since >= limits.CallTimeout && c.found.seq == k.seq && c.found.call == k.call && !f.final() {
		// What was found shortly before: by now others may have given up as well, and say nothing.
		f = c.found.finding
	}
	patience := onTheWay
	switch {
	case !slices.ContainsFunc(f.ranks, func(r int) bool { return slices.Contains(k.peers, r) }):
		patience += onTheWay / 2 // the rank that waits for those who left can say more
	case k.lane >= 0 && f.class == "left" && !c.met(k.peers[0]):
		patience = unmet
	}
	if f.class != "left" {
		c.found.gone = time.Time{}
	} else if c.found.gone.IsZero() || c.found.seq != k.seq || c.found.call != k.call {
		c.found.gone, c.found.again = time.Now(), time.After(patience)
	} else {
		c.found.again = time.After(patience / 2)
	}
	c.found.seq, c.found.call, c.found.finding = k.seq, k.call, f
	what := fmt.Sprintf("%v (sequence %d) of rank %d waited %v for ranks %v", k, k.seq, c.rank, k.since.Round(time.Millisecond), f.ranks)
	switch {
	case f.class == "mismatch" && k.lane < 0:
		c.fail(c.jury(k.seq, &cause{class: f.class, ranks: f.ranks, text: f.text, from: -1}))
	case f.class == "left" && time.Since(c.found.gone) >= patience:
		why := &cause{class: "peer gone", ranks: f.ranks, text: f.text, from: -1}
		if k.lane < 0 { // those who closed may have been through with it, which they cannot say any more, but with another one
			why = c.jury(k.seq, why)
		}
		c.fail(why)
	case f.final():
		c.fail(&cause{class: f.class, ranks: f.ranks, text: f.text, from: -1})
	case k.since >= limits.CallTimeout:
		c.fail(&cause{class: "timeout", ranks: f.ranks, text: what + ": " + f.text, from: -1})
	case k.since >= limits.WarnAfter:
		c.log.Warn("a call waits", "call", k.String(), "seq", k.seq, "for", k.since.Round(time.Millisecond), "ranks", f.ranks, "because", f.text)
	}
}

// met reports whether a peer has been at the other end of the connection for messages with it.
func (c *Comm) met(peer int) (yes bool) {
	c.family.driver.Exclusive(func() {
		conn := c.conns[transport.Key{Comm: c.id, Channel: transport.PointToPoint, Self: int32(c.rank), Peer: int32(peer)}]
		yes = conn != nil && conn.Met()
	})
	return yes
}

func (c *Comm) over(k *stuck) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return k.over()
}

// over reports whether the call is done. The communicator's lock is held.
func (k *stuck) over() bool { return k.run.seq != k.seq || k.run.Done() }

// findOut diagnoses with the session's help. The ranks that the call waits for are asked at the same time.
func (c *Comm) findOut(k stuck) finding {
	first := c.askAll(k.peers)
	return diagnose(c.rank, k, func(r int) testimony {
		if t, ok := first[r]; ok {
			return t
		}
		return c.askAll([]int{r})[r]
	})
}

// jury asks all ranks what they called as collective seq, and finds against those in the minority, so that every rank that asks
// comes to the same verdict. For ranks that have not called yet it waits a little, unless their votes do not matter. Where
// nobody else says what it called, the finding stands that it was asked about.
func (c *Comm) jury(seq uint64, otherwise *cause) *cause {
	calls := map[int]agreed{}
	vote := func(_ int, s *rankState) (agreed, bool) {
		theirs := s.find(seq)
		if theirs == nil {
			return agreed{}, false
		}
		return theirs.Call, true
	}
	own := c.state(c.rank)
	if mine, ok := vote(c.rank, &own); ok {
		calls[c.rank] = mine
	}
	return c.juryOn(seq, calls, vote, otherwise)
}

// juryOn is jury of what vote finds in a rank's state; some of the votes are known.
func (c *Comm) juryOn(seq uint64, calls map[int]agreed, vote func(r int, s *rankState) (agreed, bool), otherwise *cause) *cause {
	var others []int
	for r := range c.Size() {
		if _, known := calls[r]; !known && r != c.rank {
			others = append(others, r)
		}
	}
	votes := map[agreed]int{}
	for began := time.Now(); ; time.Sleep(juryEvery) {
		for r, t := range c.askAll(others) {
			if t.state != nil {
				if theirs, ok := vote(r, t.state); ok {
					calls[r] = theirs
				}
			}
		}
		clear(votes)
		most := 0
		for _, call := range calls {
			votes[call]++
			most = max(most, votes[call])
		}
		others = slices.DeleteFunc(others, func(r int) bool { _, ok := calls[r]; return ok })
		if len(others) == 0 || 2*most > c.Size() || time.Since(began) > juryFor || c.life.Err() != nil {
			break
		}
	}
	if len(votes) < 2 {
		return otherwise
	}
	return convict(seq, calls)
}

// mismatched returns the first of our collectives in flight that the peer called in another way, or 0.
func (c *Comm) mismatched(peer int) uint64 {
	own := c.state(peer)
	t := c.insist(peer)
	if t.state == nil {
		return 0
	}
	for _, mine := range own.Calls {
		if theirs := t.state.find(mine.Seq); theirs != nil && theirs.Call != mine.Call {
			return mine.Seq
		}
	}
	return 0
}

// mismatchedPair says of the first of our messages with a peer that it has in another way how that is, or nothing.
func (c *Comm) mismatchedPair(peer int) string {
	own := c.state(peer)
	t := c.insist(peer)
	if t.state == nil {
		return ""
	}
	for lane := range own.Pairs {
		for _, mine := range own.Pairs[lane] {
			if theirs := t.state.findPair(1-lane, mine.Seq); theirs != nil && theirs.Call != mine.Call {
				return pairWords(peer, theirs.Call, c.rank, mine.Call, lane, mine.Seq)
			}
		}
	}
	return ""
}

// insist asks a rank that is known to be there, and may be slow to answer.
func (c *Comm) insist(peer int) (t testimony) {
	for range 3 {
		if t = c.askAll([]int{peer})[peer]; t.err == nil || c.life.Err() != nil {
			break
		}
	}
	return t
}

// askAll has ranks testify, at the same time; a number asks for their parts, too, and what call had it there.
func (c *Comm) askAll(ranks []int, number ...uint64) map[int]testimony {
	ctx, cancel := context.WithTimeout(c.life, askFor)
	defer cancel()
	says := make([]testimony, len(ranks))
	var question []byte
	for _, n := range number {
		question = binary.LittleEndian.AppendUint64(question, n)
	}
	var asking errgroup.Group
	asking.SetLimit(64)
	for i, r := range ranks {
		asking.Go(func() error {
			says[i] = c.ask(ctx, r, question)
			return nil
		})
	}
	asking.Wait()
	out := make(map[int]testimony, len(ranks))
	for i, r := range ranks {
		out[r] = says[i]
	}
	return out
}

// ask has a rank testify.
func (c *Comm) ask(ctx context.Context, r int, question []byte) testimony {
	b, err := c.session.Ask(ctx, r, question)
	if why := c.left(r); why != nil {
		t := testimony{dead: why.text, left: c.session.Status(r) == bootstrap.Closed}
		t.begun, t.said = c.session.FarewellOf(r)
		return t
	}
	if err != nil {
		return testimony{err: err}
	}
	var s rankState
	if err := json.Unmarshal(b, &s); err != nil {
		return testimony{err: fmt.Errorf("its answer makes no sense: %w", err)}
	}
	return testimony{state: &s}
}

// begun is the sequence number of the last collective that we began.
func (c *Comm) begun() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq
}
