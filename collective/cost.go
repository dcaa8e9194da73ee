package collective

// Cost is what a schedule does on its rank, for documentation, tests and the tuner. Bytes
// are in pieces, of which Schedule.Pieces make one block.
type Cost struct {
	Steps     int // steps with a message of this rank
	Sends     int // messages, each of one piece, sent
	Receives  int // messages received
	Duplex    int // sum over the steps of the larger of sends and receives: pieces through a full-duplex port
	MaxFanout int // most sends in one step
	MaxFanin  int // most receives in one step
	Folds     int // pieces written by folds
	Folded    int // pieces read by folds, those from the wire included
	Copied    int // pieces copied
}

// Cost counts what the schedule does.
func (s *Schedule) Cost() Cost {
	c, _ := s.CostBy(func(int32) bool { return false })
	return c
}

// CostBy is Cost in two parts: messages with peers that are near, with the folds that receive them, and all else.
func (s *Schedule) CostBy(near func(peer int32) bool) (far, nearby Cost) {
	parts := [2]*Cost{&far, &nearby}
	for _, step := range s.Steps {
		var sends, receives [2]int
		for i := range step {
			in, part := &step[i], 0
			if in.Code <= RecvReduce && near(in.Peer) {
				part = 1
			}
			c := parts[part]
			switch in.Code {
			case Send:
				sends[part]++
			case Recv, RecvReduce:
				receives[part]++
			case Copy:
				c.Copied++
			}
			if in.Code == RecvReduce || in.Code == Fold {
				c.Folds++
				c.Folded += len(in.Srcs)
			}
		}
		for part, c := range parts {
			n, m := sends[part], receives[part]
			c.Sends += n
			c.Receives += m
			c.Duplex += max(n, m)
			c.MaxFanout = max(c.MaxFanout, n)
			c.MaxFanin = max(c.MaxFanin, m)
			if n+m > 0 {
				c.Steps++
			}
		}
	}
	return far, nearby
}

// Hops returns how many messages follow one another at least, from the first that any
// rank sends to the last that any rank needs: the α of an α-β model. What one rank sends counts as
// sent at once; Cost.Steps tells how often a rank has to send. It wants the schedules of all
// ranks, as Verify does, and gives -1 where a rank waits for ever.
func Hops(all []Schedule) int {
	type pair struct{ from, to int }
	flying := map[pair][]int{} // per message, the messages that came before it and itself
	at, clock := make([]int, len(all)), make([]int, len(all))
	taken := map[pair]int{}
	// arrive returns when all messages of rank r's next step are there, or false.
	arrive := func(r int) (int, bool) {
		wait, want := clock[r], map[int]int{}
		for _, in := range all[r].Steps[at[r]] {
			if in.Code != Recv && in.Code != RecvReduce {
				continue
			}
			p := pair{int(in.Peer), r}
			i := taken[p] + want[p.from]
			if i >= len(flying[p]) {
				return 0, false
			}
			wait = max(wait, flying[p][i])
			want[p.from]++
		}
		for from, n := range want {
			taken[pair{from, r}] += n
		}
		return wait, true
	}
	sent := make([]bool, len(all))
	for moved := true; moved; {
		moved = false
		for r := range all {
			for at[r] < len(all[r].Steps) {
				if !sent[r] {
					for _, in := range all[r].Steps[at[r]] {
						if in.Code == Send {
							p := pair{r, int(in.Peer)}
							flying[p] = append(flying[p], clock[r]+1)
						}
					}
					sent[r], moved = true, true
				}
				t, ok := arrive(r)
				if !ok {
					break
				}
				clock[r], sent[r], moved = t, false, true
				at[r]++
			}
		}
	}
	hops := 0
	for r := range all {
		if at[r] < len(all[r].Steps) {
			return -1
		}
		hops = max(hops, clock[r])
	}
	return hops
}
