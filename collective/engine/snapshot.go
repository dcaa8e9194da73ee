package engine

import "github.com/gccl-project/gccl/collective"

// LaneState is where a lane with a task stands. What each peer's stream did last follows from the plan and the program
// counter, so that nothing needs to be recorded while calls run.
type LaneState struct {
	Lane   int
	Queued int    // tasks behind the running one
	Note   any    // of the running task's call
	Tag    uint32 // of its messages
	Round  int
	Rounds int
	Op     int // next op of the plan; Ops means that the round's messages are waited for
	Ops    int
	Doing  string // that op
	Waits  int    // the peer that it waits for, -1 if none
	Peers  []PeerState
}

// PeerState is a lane's stream to one peer.
type PeerState struct {
	Peer     int
	Sent     uint64 // messages sent, since the first
	Released uint64 // of these, messages whose memory is ours again
	Last     string // last instr done with the peer in this round
	Next     string // next instr with it
}

// Snapshot returns the lanes of the port that have tasks. It must be called from within Driver.Exclusive or
// PortOptions.Broken.
func (p *Port) Snapshot() []LaneState {
	var out []LaneState
	for i, l := range p.lanes {
		if len(l.queue) == 0 {
			continue
		}
		t := l.queue[0]
		s := LaneState{Lane: i, Queued: len(l.queue) - 1, Note: t.call.Note, Tag: t.Tag, Round: l.round, Rounds: t.Layout.Rounds(), Op: l.pc, Ops: len(l.ops), Doing: "waiting for messages sent to be read", Waits: -1}
		if l.pc < len(l.ops) {
			s.Doing = t.Plan.Describe(l.pc)
		}
		if l.waits != nil {
			s.Waits = l.waits.peer
		}
		for peer := range l.links {
			k := &l.links[peer]
			if k.stream == nil {
				continue
			}
			ps := PeerState{Peer: peer, Sent: k.sent}
			ps.Released, _ = k.stream.Sent()
			for j := range l.ops {
				o := &l.ops[j]
				if int(o.Peer) != peer || o.Code == collective.OpFold || o.Code == collective.OpCopy {
					continue
				}
				if j < l.pc {
					ps.Last = t.Plan.Describe(j)
				} else {
					ps.Next = t.Plan.Describe(j)
					break
				}
			}
			s.Peers = append(s.Peers, ps)
		}
		out = append(out, s)
	}
	return out
}
