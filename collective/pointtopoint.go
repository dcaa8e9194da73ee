package collective

import "fmt"

// PointToPoint returns the plan of rank, one of ranks, for one message to (send) or from
// another rank: a single Send of block 0 of In, or Recv into block 0 of Out. Its shape is
// a broadcast with the sender as root, in which only peer takes part.
func PointToPoint(ranks, rank, peer int, send bool) (*Plan, error) {
	s := Schedule{Shape: Shape{Kind: Broadcast, Ranks: ranks, Root: peer}, Rank: rank, Pieces: 1}
	in := Instr{Code: Recv, Peer: int32(peer), Dst: Slot{Space: Out}}
	if send {
		s.Shape.Root = rank
		in = Instr{Code: Send, Peer: int32(peer), Srcs: []Slot{{Space: In}}}
	}
	if peer < 0 || peer >= ranks || peer == rank {
		return nil, fmt.Errorf("collective: rank %d of %d sends to or receives from rank %d, want another rank", rank, ranks, peer)
	}
	s.Steps = [][]Instr{{in}}
	return Compile(s, Options{})
}
