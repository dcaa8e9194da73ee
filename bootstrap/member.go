package bootstrap

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
)

// member is a rank that has joined.
type member struct {
	joinRequest
	outbox
	life  awaited                   // of the root's watch
	heard atomic.Int64              // when something came from it, in own time of that watch
	gone  chan struct{}             // closed when the connection has ended
	late  bool                      // it left as its time was over; of who reads from it
	done  bool                      // it has met the others, or was lost, or gave up; under the root's lock
	lost  atomic.Pointer[time.Time] // when it was, if it was
}

// claimGrace is how long a second claim of a rank waits for the connection of the first to end: a rank that gave up and joins
// again may be faster than the news of its going.
const claimGrace = 250 * time.Millisecond

func (m *member) who() string {
	return fmt.Sprintf("%s, pid %d, from %s", m.host, m.pid, m.conn.RemoteAddr())
}

func (m *member) isGone() bool {
	select {
	case <-m.gone:
		return true
	default:
		return false
	}
}

// enter adds m to the world and reports whether it is in. If not, it gets an answer that is for good.
func (r *Root) enter(m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rank := int(m.rank)
	m.life.rank = rank
	old := r.members[rank]
	if old != nil && old.token != m.token && r.table == nil && r.refusal == nil {
		r.mu.Unlock()
		timer := time.NewTimer(claimGrace)
		select {
		case <-old.gone:
		case <-r.over:
		case <-timer.C:
		}
		timer.Stop()
		r.mu.Lock()
		old = r.members[rank]
	}
	again := old != nil && old.token == m.token
	switch {
	case r.refusal != nil:
		m.put(makeFrame(frameRefused, r.refusal.body()))
		return false
	case r.table != nil && again && !old.done: // its first connection broke before it could read the table
		old.conn.Close()
		r.members[rank] = m
		m.put(makeFrame(frameTable, r.table.body()))
		return true
	case r.table != nil:
		e := &RefusedError{Code: RefusedUsed, Ranks: []int{rank},
			Text: fmt.Sprintf("this id has already made a world of %d ranks; rank %d (%s) comes too late: one id is for one world", r.world, rank, m.who())}
		r.log.Warn("refused a rank", "rank", rank, "reason", e.Text)
		m.put(makeFrame(frameRefused, e.body()))
		return false
	}
	if old != nil && old.isGone() {
		old = nil // this is its successor
	}
	if e := r.checkLocked(m, old); e != nil {
		r.refuseLocked(e, false)
		m.put(makeFrame(frameRefused, e.body()))
		return false
	}
	if old != nil {
		old.conn.Close()
	}
	if r.model == nil {
		r.model, r.world, r.first = m, int(m.world), time.Now()
		r.meeting.every, r.meeting.limit = time.Duration(m.heartbeat)*time.Millisecond, time.Duration(m.silentAfter)*time.Millisecond
	}
	r.members[rank] = m
	delete(r.left, rank)
	r.news = true
	if len(r.members) == r.world {
		r.completeLocked()
	} else {
		m.put(makeFrame(frameProgress, r.progressLocked().body()))
	}
	return true
}

func (r *Root) checkLocked(m, old *member) *RefusedError {
	rank := int(m.rank)
	refuse := func(code Refusal, format string, args ...any) *RefusedError {
		return &RefusedError{Code: code, Ranks: []int{rank}, Text: fmt.Sprintf(format, args...)}
	}
	if m.proto != protocolVersion {
		return refuse(RefusedVersion, "rank %d (from %s) speaks bootstrap protocol %d, the root %d: all ranks need the same release", m.rank, m.conn.RemoteAddr(), m.proto, protocolVersion)
	}
	if m.world == 0 || m.world > maxWorld || m.rank >= m.world {
		return refuse(RefusedRank, "rank %d of a world of %d (%s): ranks go from 0 to the world's size less 1", m.rank, m.world, m.who())
	}
	if o := r.model; o != nil && m.world != o.world {
		return refuse(RefusedWorld, "rank %d (%s) says that the world has %d ranks, rank %d (%s) says %d", m.rank, m.who(), m.world, o.rank, o.who(), o.world)
	}
	if o := r.model; o != nil && m.version != o.version {
		return refuse(RefusedVersion, "rank %d (%s) runs release %q, rank %d (%s) runs %q", m.rank, m.who(), m.version, o.rank, o.who(), o.version)
	}
	if old != nil && old.token != m.token {
		return refuse(RefusedDuplicate, "rank %d claimed twice (first by %s, again by %s)", m.rank, old.who(), m.who())
	}
	return nil
}

func (r *Root) progressLocked() progress {
	p := progress{home: r.homeLocked(), world: r.world, others: r.others.text()}
	var gaveUp []int
	for rank := range r.world {
		late, left := r.left[rank]
		switch {
		case r.members[rank] != nil:
			p.joined++
		case left:
			p.joined++
			if late {
				gaveUp = append(gaveUp, rank)
			} else {
				p.left = append(p.left, rank)
			}
		default:
			p.missing = append(p.missing, rank)
		}
	}
	if len(p.missing)+len(p.left) == 0 {
		p.left = gaveUp // else they did so because of those
	}
	return p
}

// homeLocked returns the rank that lives in this process, if that is one.
func (r *Root) homeLocked() int {
	host, _ := os.Hostname()
	home := nobody
	for rank, m := range r.members {
		if int(m.pid) != os.Getpid() || m.host != host {
			continue
		}
		local, err1 := addrPortOf(m.conn.LocalAddr())
		remote, err2 := addrPortOf(m.conn.RemoteAddr())
		if err1 != nil || err2 != nil || local.Addr() != remote.Addr() {
			continue // another host, where the same names and numbers are in use
		}
		if home != nobody {
			return nobody
		}
		home = rank
	}
	return home
}

// broadcastLocked sends a frame to all members that it concerns still.
func (r *Root) broadcastLocked(frame []byte) {
	for _, m := range r.members {
		if !m.done {
			m.put(frame)
		}
	}
}

// refuse ends the world and tells everybody. Quietly: without a log line.
func (r *Root) refuse(e *RefusedError, quietly bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuseLocked(e, quietly)
}

func (r *Root) refuseLocked(e *RefusedError, quietly bool) {
	if r.refusal != nil || r.table != nil {
		return
	}
	e.Root = r.addr.String()
	r.refusal = e
	r.broadcastLocked(makeFrame(frameRefused, e.body()))
	for _, m := range r.members { // they hang up when they have it, or are cut off in the end
		r.patience(m, 2*auth.Timeout)
	}
	close(r.over)
	if !quietly {
		r.log.Error("refused the world", "reason", e.Text)
	}
}

// completeLocked makes the table and sends it to everybody.
func (r *Root) completeLocked() {
	t := &table{home: r.homeLocked()}
	rand.Read(t.nonce[:])
	if e := r.substituteLocked(); e != nil {
		r.refuseLocked(e, false)
		return
	}
	for rank := range r.world {
		t.addrs = append(t.addrs, r.members[rank].listen)
	}
	r.table, r.meeting.lost = t, make([]bool, r.world)
	r.broadcastLocked(makeFrame(frameTable, t.body()))
	r.log.Info("all ranks joined", "comm", logID(t.session(r.id)), "size", r.world, "elapsed", time.Since(r.first))
}

// substituteLocked replaces loopback addresses, which ranks on this host found themselves behind, where ranks on other hosts
// are to reach them: by the address at which those reached the root.
func (r *Root) substituteLocked() *RefusedError {
	var outside netip.Addr
	var from *member
	for rank := range r.world {
		m := r.members[rank]
		local, err1 := addrPortOf(m.conn.LocalAddr())
		remote, err2 := addrPortOf(m.conn.RemoteAddr())
		if err1 == nil && err2 == nil && !remote.Addr().IsLoopback() && remote.Addr() != local.Addr() {
			outside, from = local.Addr(), m
			break
		}
	}
	if from == nil {
		return nil
	}
	for rank := range r.world {
		m := r.members[rank]
		switch {
		case !m.listen.Addr().IsLoopback():
		case m.wildcard:
			m.listen = netip.AddrPortFrom(outside, m.listen.Port())
		default:
			return &RefusedError{Code: RefusedUnreachable, Ranks: []int{rank},
				Text: fmt.Sprintf("rank %d listens at %s, which rank %d (%s) on another host cannot reach: give rank %d an address or interface that the others can reach", rank, m.listen, from.rank, from.who(), rank)}
		}
	}
	return nil
}
