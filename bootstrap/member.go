package bootstrap

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/gccl-project/gccl/bootstrap/auth"
)

// member is a rank that has joined.
type member struct {
	joinRequest
	conn net.Conn
	send sync.Mutex    // held while a frame is written
	gone chan struct{} // closed when the connection has ended
}

// claimGrace is how long a second claim of a rank waits for the connection of the first to end: a rank that gave up and joins
// again may be faster than the news of its going.
const claimGrace = 250 * time.Millisecond

func (m *member) who() string {
	return fmt.Sprintf("%s, pid %d, from %s", m.host, m.pid, m.conn.RemoteAddr())
}

// write sends a frame; a peer that does not read loses its connection.
func (m *member) write(frame []byte) {
	m.send.Lock()
	defer m.send.Unlock()
	m.conn.SetWriteDeadline(time.Now().Add(auth.Timeout))
	if _, err := m.conn.Write(frame); err != nil {
		m.conn.Close()
	}
}

// enter adds m to the world. It returns the frame that answers m for good, or nil if m is to wait.
func (r *Root) enter(m *member) []byte {
	r.mu.Lock()
	rank := int(m.rank)
	old := r.members[rank]
	again := old != nil && old.token == m.token
	if old != nil && !again && r.table == nil && r.refusal == nil {
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
		again = old != nil && old.token == m.token
	}
	if r.table != nil && again {
		defer r.mu.Unlock()
		return makeFrame(frameTable, r.table.body()) // its first connection broke before it could read the table
	}
	if r.table != nil || r.refusal != nil {
		defer r.mu.Unlock()
		e := r.refusal
		if e == nil {
			e = &RefusedError{Code: RefusedUsed, Ranks: []int{rank},
				Text: fmt.Sprintf("this id has already made a world of %d ranks; rank %d (%s) comes too late: one id is for one world", r.world, rank, m.who())}
			r.log.Warn("refused a rank", "rank", rank, "reason", e.Text)
		}
		return makeFrame(frameRefused, e.body())
	}
	if e := r.checkLocked(m, old); e != nil {
		r.mu.Unlock()
		r.refuse(e, false)
		return makeFrame(frameRefused, e.body())
	}
	if old != nil {
		old.conn.Close()
	}
	if r.model == nil {
		r.model, r.world, r.first = m, int(m.world), time.Now()
	}
	r.members[rank] = m
	delete(r.left, rank)
	r.news = true
	if len(r.members) == r.world {
		defer r.mu.Unlock()
		return r.completeLocked(m)
	}
	frame := makeFrame(frameProgress, r.progressLocked().body())
	r.mu.Unlock()
	m.write(frame)
	return nil
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

// leave takes note of a connection that ended.
func (r *Root) leave(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer close(m.gone)
	rank := int(m.rank)
	if r.members[rank] != m || r.table != nil || r.refusal != nil {
		return
	}
	delete(r.members, rank)
	r.left[rank] = true
	r.news = true
	r.log.Warn("a rank left before the world was complete", "rank", rank, "host", m.host, "pid", m.pid, "peer", m.conn.RemoteAddr())
}

func (r *Root) progressLocked() progress {
	p := progress{world: r.world}
	for rank := range r.world {
		switch {
		case r.members[rank] != nil:
			p.joined++
		case r.left[rank]:
			p.joined++
			p.left = append(p.left, rank)
		default:
			p.missing = append(p.missing, rank)
		}
	}
	return p
}

// broadcast writes a frame to many members, each on a goroutine of the root's.
func (r *Root) broadcastLocked(frame []byte, except *member) {
	for _, m := range r.members {
		if m != except {
			r.wg.Go(func() { m.write(frame) })
		}
	}
}

// refuse ends the world and tells everybody. Quietly: without a log line.
func (r *Root) refuse(e *RefusedError, quietly bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refusal != nil || r.table != nil {
		return
	}
	e.Root = r.addr.String()
	r.refusal = e
	r.endLocked(makeFrame(frameRefused, e.body()), nil)
	if !quietly {
		r.log.Error("refused the world", "reason", e.Text)
	}
}

// endLocked sends the last frame to all members. They hang up when they have it, or are cut off in the end.
func (r *Root) endLocked(frame []byte, except *member) {
	r.broadcastLocked(frame, except)
	for _, m := range r.members {
		m.conn.SetReadDeadline(time.Now().Add(2 * auth.Timeout))
	}
	close(r.over)
}

// completeLocked makes the table and sends it to everybody but the last to come, for whom it is returned.
func (r *Root) completeLocked(last *member) []byte {
	t := &table{}
	rand.Read(t.nonce[:])
	e := r.substituteLocked()
	if e != nil {
		e.Root = r.addr.String()
		r.refusal = e
		r.log.Error("refused the world", "reason", e.Text)
		frame := makeFrame(frameRefused, e.body())
		r.endLocked(frame, last)
		return frame
	}
	for rank := range r.world {
		t.addrs = append(t.addrs, r.members[rank].listen)
	}
	r.table = t
	frame := makeFrame(frameTable, t.body())
	r.endLocked(frame, last)
	r.log.Info("all ranks joined", "world", r.world, "elapsed", time.Since(r.first))
	return frame
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
