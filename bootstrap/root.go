package bootstrap

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
)

// RootConfig says how a root listens.
type RootConfig struct {
	// Address is where to listen, "host:port"; port 0 lets the kernel (or Ports) choose.
	Address string
	// Ports limits the choice when Address has port 0.
	Ports PortRange
	// ID is the world's id. Zero: a new one is made, with the listener's address in it, or with Advertise.
	ID ID
	// Advertise are the addresses that a new id names, for a listener behind the wildcard address; port 0 means the listener's.
	Advertise []netip.AddrPort
	// Timeout counts from the first rank that joins; 0 means DefaultTimeout.
	Timeout time.Duration
	Network Network
	Log     *slog.Logger // nil: no log
}

// Root brings the ranks of one world together: it collects where each of them listens, and tells all of them when the last
// has come. It watches over them until they have met, so that all hear of one that is lost on the way: whose connection
// ends without goodbye, or that is silent for the Config.SilentAfter of the first rank. It takes part in nothing after that, and tells
// whoever comes later that the id is used up. Its methods may be called from any goroutine.
type Root struct {
	id      ID
	addr    netip.AddrPort
	ln      net.Listener
	timeout time.Duration
	log     *slog.Logger
	wg      sync.WaitGroup

	mu      sync.Mutex
	world   int     // 0 until the first rank has joined
	model   *member // the first that joined; the others must agree with it
	members map[int]*member
	left    map[int]bool // joined and went away; true: as their time was over
	news    bool         // since the last progress was sent
	others  impostors
	refusal *RefusedError
	table   *table // set when complete
	meeting meeting
	over    chan struct{}   // closed when refused, or when all ranks have met
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	first   time.Time
}

const (
	reportTick = 50 * time.Millisecond
	logEvery   = 3 * time.Second // between two progress lines in the log
)

// progressEvery is the time between two progress frames to the ranks of a world: often in a small one, since each rank names
// the missing by the last frame it got.
func progressEvery(world int) time.Duration {
	return min(time.Duration(world)*2*time.Millisecond, time.Second)
}

// ListenRoot starts a root; ctx bounds only this call. The caller closes it after [Root.Wait], or to give its world up.
func ListenRoot(ctx context.Context, c RootConfig) (*Root, error) {
	if err := c.Ports.check(); err != nil {
		return nil, fmt.Errorf("bootstrap root: %w", err)
	}
	n := c.Network.orTCP()
	ln, err := listenRoot(ctx, c, n)
	if err != nil {
		return nil, fmt.Errorf("bootstrap root: %w", err)
	}
	r := &Root{
		id: c.ID, ln: ln, timeout: c.Timeout, log: c.Log,
		members: map[int]*member{}, left: map[int]bool{}, over: make(chan struct{}),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if r.timeout <= 0 {
		r.timeout = DefaultTimeout
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.addr, err = addrPortOf(ln.Addr()); err == nil {
		if r.id == (ID{}) {
			r.id, err = NewID(advertised(c.Advertise, r.addr)...)
		} else {
			err = r.id.check()
		}
	}
	if err != nil {
		ln.Close()
		return nil, fmt.Errorf("bootstrap root: %w", err)
	}
	r.meeting.start(DefaultHeartbeat, DefaultSilentAfter)
	gate := &auth.Gate{Secret: r.id.Secret(), Service: rootService, Log: r.log, Failed: r.turnedAway}
	r.wg.Go(func() {
		if err := gate.Serve(ln, r.serve); err != nil {
			r.log.Error("the root cannot accept connections any more", "address", r.addr, "error", err)
		}
	})
	r.wg.Go(r.report)
	r.wg.Go(r.keepWatch)
	return r, nil
}

func listenRoot(ctx context.Context, c RootConfig, n Network) (net.Listener, error) {
	host, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		return nil, fmt.Errorf("root address %q: want host:port, with IPv6 in brackets: %w", c.Address, err)
	}
	if port == "0" {
		return c.Ports.listen(ctx, n, host, 2)
	}
	ln, err := n.Listen(ctx, c.Address)
	if err != nil {
		return nil, bindError(c.Address, err)
	}
	return ln, nil
}

func advertised(given []netip.AddrPort, listener netip.AddrPort) []netip.AddrPort {
	if len(given) == 0 {
		return []netip.AddrPort{listener}
	}
	given = slices.Clone(given)
	for i, a := range given {
		if a.Port() == 0 {
			given[i] = netip.AddrPortFrom(a.Addr(), listener.Port())
		}
	}
	return given
}

// ID returns the world's id, to be passed to all ranks.
func (r *Root) ID() ID { return r.id }

// Addr returns the address that the root listens at.
func (r *Root) Addr() netip.AddrPort { return r.addr }

// Wait returns nil when all ranks have joined and met, and a [*RefusedError] when the world is refused, the ranks are not complete in
// time, one is lost or gives up, or the root is closed first.
func (r *Root) Wait(ctx context.Context) error {
	select {
	case <-r.over:
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.refusal != nil {
			return r.refusal
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("bootstrap root at %s: %w", r.addr, ctx.Err())
	}
}

// Close stops the root and waits until nothing of it is left. Ranks that wait for the world are refused; ranks that have the world's
// table and have not met go on, with nobody to watch over them. Closing twice is fine.
func (r *Root) Close() error {
	r.mu.Lock()
	// Who serves the root closes it when its own time is over, which began a moment before: that is the deadline for the others, too.
	late := r.world > 0 && time.Since(r.first) >= r.timeout-reportTick
	r.mu.Unlock()
	if late {
		r.refuse(r.missing(), true)
	}
	r.refuse(&RefusedError{Code: RefusedClosed, Text: "it was closed before all ranks had joined"}, true)
	r.mu.Lock()
	for _, m := range r.members {
		if !m.done && r.table != nil {
			m.end(makeFrame(frameRootClosed, nil))
		}
	}
	r.cancel()
	if r.table != nil {
		r.failLocked(&RefusedError{Code: RefusedClosed, Text: "it was closed before all ranks had met"})
	}
	r.mu.Unlock()
	r.ln.Close()
	r.wg.Wait()
	return nil
}

// serve speaks with one proven peer.
func (r *Root) serve(conn net.Conn) {
	m := &member{outbox: outbox{conn: conn}, gone: make(chan struct{})}
	stop := context.AfterFunc(r.ctx, func() { r.linger(m) })
	defer stop()
	conn.SetWriteDeadline(time.Now().Add(auth.Timeout))
	r.patience(m, auth.Timeout)
	br := bufio.NewReaderSize(conn, maxJoinBody)
	t, body, err := readFrame(br, maxJoinBody)
	if err == nil && t == frameJoin {
		m.joinRequest, err = parseJoin(body)
	} else if err == nil {
		err = &protocolError{fmt.Sprintf("a frame of type %d instead of a join request", t)}
	}
	if err != nil {
		if r.ctx.Err() == nil {
			r.log.Warn("a peer that knows the secret did not ask to join", "peer", conn.RemoteAddr(), "error", err)
		}
		conn.Close()
		return
	}
	conn.SetWriteDeadline(time.Time{})
	r.patience(m, 0)
	m.heard.Store(int64(r.meeting.own()))
	if !r.enter(m) {
		// The peer closes when it has read the answer. Closing first could reset what is still on its way.
		r.patience(m, auth.Timeout)
	}
	bye, err := r.hear(m, br)
	close(m.gone)
	m.end()
	m.wait()
	conn.Close()
	r.leave(m, bye, err)
}

// patience bounds what m may take from now on to say something more, or to hang up; 0 is no bound.
func (r *Root) patience(m *member, d time.Duration) {
	var until time.Time
	if d > 0 {
		until = time.Now().Add(d)
	}
	m.conn.SetReadDeadline(until)
	if r.ctx.Err() != nil {
		r.linger(m)
	}
}

// linger cuts off who does not hang up soon though the root was closed, or m was lost before that.
func (r *Root) linger(m *member) {
	since := time.Now()
	if lost := m.lost.Load(); lost != nil {
		since = *lost
	}
	m.conn.SetReadDeadline(since.Add(lingerAbort))
}

// missing is the refusal at the deadline.
func (r *Root) missing() *RefusedError {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.progressLocked()
	ranks := p.missing
	if len(ranks) == 0 {
		ranks = p.left
	}
	return &RefusedError{Code: RefusedMissing, Ranks: ranks,
		Text: progressText(p.world, p.joined, p.missing, p.left) + " at the timeout" + r.others.text()}
}

// turnedAway counts who could not prove the secret.
func (r *Root) turnedAway(e *auth.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.news = r.others.add(e) || r.news
}

// impostors is what there is to say of them.
func (r *Root) impostors() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.others.text()
}

// report tells ranks and log how far the world is, and ends it at the deadline.
func (r *Root) report() {
	tick := time.NewTicker(reportTick)
	defer tick.Stop()
	logged, sent := time.Now(), time.Now()
	for {
		select {
		case <-r.over:
			return
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		r.mu.Lock()
		if r.table != nil {
			r.mu.Unlock()
			return
		}
		begun := r.world > 0
		late := begun && time.Since(r.first) >= r.timeout
		if begun && !late && r.refusal == nil {
			p := r.progressLocked()
			if r.news && time.Since(sent) >= progressEvery(r.world) {
				r.news, sent = false, time.Now()
				r.broadcastLocked(makeFrame(frameProgress, p.body()))
			}
			if time.Since(logged) >= logEvery {
				logged = time.Now()
				r.log.Info(fmt.Sprintf("%d of %d ranks joined, missing: %s%s", p.joined-len(r.left), p.world, formatRanks(append(p.left, p.missing...)), r.others.text()))
			}
		}
		r.mu.Unlock()
		if late {
			r.refuse(r.missing(), false)
		}
	}
}
