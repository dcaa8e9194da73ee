package collective

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	in0, in1     = Slot{In, 0}, Slot{In, 1}
	out0, out1   = Slot{Out, 0}, Slot{Out, 1}
	temp0, temp1 = Slot{Temp, 0}, Slot{Temp, 1}
)

// program is rank 0's schedule of two ranks' all-reduce, with pieces and two blocks of Temp.
func program(pieces int, steps ...[]Instr) Schedule {
	return Schedule{Shape: Shape{Kind: AllReduce, Ranks: 2}, Pieces: pieces, Temps: 2, Steps: steps}
}

func TestCompileNamesTheInstrThatIsWrong(t *testing.T) {
	good := []Instr{send(1, in0)}
	for _, c := range []struct {
		what string
		bad  Instr
		want string
	}{
		{"itself as peer", send(0, in0), "send 0 in[0]: peer 0, want another rank of 2"},
		{"a peer outside", recv(2, out0), "recv 2 out[0]: peer 2"},
		{"a negative peer", recv(-1, out0), "peer -1"},
		{"a peer without message", Instr{Code: Copy, Peer: 1, Dst: out0, Srcs: []Slot{in0}}, "peer 1, want 0"},
		{"a slot outside", recv(1, Slot{Out, 2}), "out[2] is outside out, which has 2 chunks"},
		{"a negative slot", recv(1, Slot{Out, -1}), "out[-1] is outside"},
		{"a source outside", copySlot(out0, Slot{Temp, 4}), "temp[4] is outside temp, which has 4 chunks"},
		{"a write of the input", copySlot(in0, out0), "copy in[0] = out[0]: a schedule does not write its input"},
		{"two sources of a send", Instr{Code: Send, Peer: 1, Srcs: []Slot{in0, in0}}, "2 sources, want 1…1"},
		{"no source", Instr{Code: Fold, Dst: out0}, "0 sources, want 1…65535"},
		{"too many sources", fold(out0, slices.Repeat([]Slot{in0}, 65536)...), "65536 sources"},
		{"a destination of a send", Instr{Code: Send, Peer: 1, Dst: out0, Srcs: []Slot{in0}}, "destination out[0], want none"},
		{"no wire", Instr{Code: RecvReduce, Peer: 1, Dst: out0, Srcs: []Slot{in0, in0}}, "0 of the sources are the wire"},
		{"two wires", Instr{Code: RecvReduce, Peer: 1, Dst: out0, Srcs: []Slot{{Space: Wire}, {Space: Wire}}}, "2 of the sources are the wire"},
		{"a wire elsewhere", copySlot(out0, Slot{Space: Wire}), "wire, want in, out or temp"},
		{"writing the wire", recv(1, Slot{Space: Wire}), "wire, want in, out or temp"},
		{"a view", copySlot(out0, Slot{Space: view}), "view[0], want in, out or temp"},
		{"another length", copySlot(out0, in1), "in[1] is piece 1 of its block and out[0] piece 0: the lengths differ"},
		{"an unknown code", Instr{Code: viewOp, Peer: 1, Dst: out0}, "unknown code"},
		{"a code outside", Instr{Code: 77}, "unknown code"},
	} {
		_, err := Compile(program(2, good, []Instr{c.bad}), Options{})
		require.ErrorContains(t, err, c.want, c.what)
		require.ErrorContains(t, err, "rank 0, step 1", c.what)
	}
	_, err := Compile(program(2, []Instr{recv(1, out0), copySlot(out0, in0)}), Options{})
	require.ErrorContains(t, err, "copy out[0] = in[0]: the destination is written twice in one step")
}

func TestCompileNamesMissingBuffers(t *testing.T) {
	s := Schedule{Shape: Shape{Kind: Broadcast, Ranks: 3, Root: 2}, Rank: 1, Pieces: 1, Steps: [][]Instr{{send(0, in0)}}}
	_, err := Compile(s, Options{})
	require.ErrorContains(t, err, "rank 1 has no in in broadcast with root 2")
	s.Shape.Kind, s.Steps = Reduce, [][]Instr{{recv(0, out0)}}
	_, err = Compile(s, Options{})
	require.ErrorContains(t, err, "rank 1 has no out in reduce with root 2")
}

func TestCompileRefusesNumbersOutOfRange(t *testing.T) {
	for want, s := range map[string]Schedule{
		"0 pieces":                    {Shape: Shape{Kind: AllReduce, Ranks: 2}},
		"16777217 pieces":             {Shape: Shape{Kind: AllReduce, Ranks: 2}, Pieces: 1<<24 + 1},
		"-1 blocks of temp":           {Shape: Shape{Kind: AllReduce, Ranks: 2}, Pieces: 1, Temps: -1},
		"281474976710656 chunks of i": {Shape: Shape{Kind: AllToAll, Ranks: 1 << 24}, Pieces: 1 << 24},
		"rank 2, want 0…1":            {Shape: Shape{Kind: AllReduce, Ranks: 2}, Rank: 2, Pieces: 1},
		"-5 ranks":                    {Shape: Shape{Kind: AllReduce, Ranks: -5}, Pieces: 1},
		"root -1":                     {Shape: Shape{Kind: Reduce, Ranks: 2, Root: -1}, Pieces: 1},
		"kind(200)":                   {Shape: Shape{Kind: 200, Ranks: 2}, Pieces: 1},
	} {
		_, err := Compile(s, Options{})
		require.ErrorContains(t, err, want)
	}
	// At the bound, what Compile adds still has numbers.
	s := Schedule{Shape: Shape{Kind: AllReduce, Ranks: 2}, Pieces: 1 << 24, Temps: 32, Steps: [][]Instr{{copySlot(Slot{Temp, 32<<24 - 1}, Slot{In, 1<<24 - 1})}, {send(1, Slot{In, 1<<24 - 1})}}}
	p, err := Compile(s, Options{Scale: true})
	require.NoError(t, err)
	require.Equal(t, 2, p.Temps)
	for _, r := range p.Srcs {
		require.True(t, r.Piece == 1<<24-1 && r.Block >= 0 && r.Block < math.MaxInt16, "%+v", r)
	}
}

// opsOf prints a plan's ops in short.
func opsOf(t *testing.T, s Schedule, opt Options) []string {
	t.Helper()
	p, err := Compile(s, opt)
	require.NoError(t, err)
	var lines []string
	for i := range p.Ops {
		lines = append(lines, p.Describe(i))
	}
	return lines
}

func TestCompileSplitsRecvReduce(t *testing.T) {
	require.Equal(t, []string{
		"send of in[0.0] to rank 1 (message 0), lent",
		"view 0 of message 0 from rank 1",
		"fold out[0.0] = in[0.0] + view[0.0] last",
	}, opsOf(t, program(1, []Instr{send(1, in0), reduceRecv(1, in0, out0)}), Options{}))
	// In place the fold writes what was sent: it is not lent, and waited for.
	require.Equal(t, []string{
		"send of in[0.0] to rank 1 (message 0)",
		"view 0 of message 0 from rank 1",
		"reuse of message 0 to rank 1 (0 behind)",
		"fold out[0.0] = in[0.0] + view[0.0] last",
	}, opsOf(t, program(1, []Instr{send(1, in0), reduceRecv(1, in0, out0)}), Options{InPlace: true}))
	// Scaled values go on the wire.
	require.Equal(t, []string{
		"copy temp[0.0] = in[0.0] scaled",
		"send of temp[0.0] to rank 1 (message 0), lent",
		"view 0 of message 0 from rank 1",
		"fold out[0.0] = temp[0.0] + view[0.0] last",
	}, opsOf(t, program(1, []Instr{send(1, in0), reduceRecv(1, in0, out0)}), Options{Scale: true}))
}

func TestCompileReadsTempsWhereTheyArrive(t *testing.T) {
	require.Equal(t, []string{
		"view 0 of message 0 from rank 1",
		"fold out[0.0] = in[0.0] + view[0.0] last",
	}, opsOf(t, program(1, []Instr{recv(1, temp1)}, []Instr{fold(out0, in0, temp1)}), Options{}))
	for what, s := range map[string]Schedule{
		"sent on":     program(1, []Instr{recv(1, temp1)}, []Instr{send(1, temp1), copySlot(out0, temp1)}),
		"too late":    program(1, []Instr{recv(1, temp1)}, nil, []Instr{copySlot(out0, temp1)}),
		"twice":       program(1, []Instr{recv(1, temp1)}, []Instr{copySlot(out0, temp1)}, []Instr{recv(1, temp1)}),
		"next coming": program(1, []Instr{recv(1, temp1)}, []Instr{copySlot(out0, temp1), recv(1, temp0)}),
	} {
		require.Equal(t, "receive of message 0 from rank 1 into temp[0.0]", opsOf(t, s, Options{})[0], what)
	}
}

func TestCompileReceivesTwoMessagesOfOnePeerInAStep(t *testing.T) {
	require.Equal(t, []string{
		"receive of message 0 from rank 1 into temp[0.0]",
		"view 0 of message 1 from rank 1",
		"fold out[0.0] = in[0.0] + temp[0.0]",
		"fold out[0.1] = in[0.1] + view[0.1] last",
	}, opsOf(t, program(2, []Instr{reduceRecv(1, in0, out0), reduceRecv(1, in1, out1)}), Options{}))
}

func TestCompileDoesLocalWorkBeforeItWaits(t *testing.T) {
	require.Equal(t, []string{
		"send of in[0.0] to rank 1 (message 0), lent",
		"copy out[0.1] = in[0.1]",
		"view 0 of message 0 from rank 1",
		"fold out[0.0] = in[0.0] + view[0.0] last",
	}, opsOf(t, program(2, []Instr{reduceRecv(1, in0, out0), copySlot(out1, in1), send(1, in0)}), Options{}))
}

func TestCompileBreaksCirclesWithTemp(t *testing.T) {
	require.Equal(t, []string{
		"copy temp[0.0] = temp[1.0]",
		"copy temp[1.0] = temp[2.0]",
		"copy temp[2.0] = temp[0.0]",
	}, opsOf(t, program(1, []Instr{copySlot(temp0, temp1), copySlot(temp1, temp0)}), Options{}))
}

func TestCompileRestoresAnInputThatWasOverwritten(t *testing.T) {
	s := program(1, []Instr{recv(1, out0)}, []Instr{copySlot(out0, in0)})
	require.Equal(t, []string{
		"copy temp[0.0] = out[0.0]",
		"receive of message 0 from rank 1 into out[0.0]",
		"copy out[0.0] = temp[0.0]",
	}, renameIn(opsOf(t, s, Options{InPlace: true})))
	require.Empty(t, opsOf(t, program(1, []Instr{copySlot(out0, in0)}), Options{InPlace: true}))
	require.NotEmpty(t, opsOf(t, program(1, []Instr{copySlot(out0, in0)}), Options{InPlace: true, Scale: true}))
}

// renameIn gives in-place memory its one name.
func renameIn(lines []string) []string {
	for i, l := range lines {
		if l == "copy temp[0.0] = in[0.0]" {
			lines[i] = "copy temp[0.0] = out[0.0]"
		}
	}
	return lines
}

func TestCompileLeavesTempOutThatNobodyUses(t *testing.T) {
	for _, a := range catalog {
		for n := 2; n <= 9; n++ {
			for _, s := range schedulesOf(a, n, 0) {
				p, err := Compile(s, Options{})
				require.NoError(t, err)
				used := map[int32]bool{}
				for i := range p.Ops {
					if p.Ops[i].Dst.Space == Temp {
						used[p.Ops[i].Dst.Block] = true
					}
				}
				require.Len(t, used, p.Temps, "%s, %d ranks, rank %d", a.title(), n, s.Rank)
				if a.RankOrder {
					require.Zero(t, p.Temps, "%s, %d ranks: folds read what arrives", a.title(), n)
				}
			}
		}
	}
}

func TestCompileKeepsTheWire(t *testing.T) {
	type sent struct {
		peer  int32
		msg   uint32
		piece int32
	}
	for _, a := range catalog {
		for n := 2; n <= 8; n++ {
			for _, s := range schedulesOf(a, n, 0) {
				var wires [4][]sent
				for i, opt := range allOptions {
					p, err := Compile(s, opt)
					require.NoError(t, err)
					for k := range p.Ops {
						if o := &p.Ops[k]; o.Code == OpSend {
							wires[i] = append(wires[i], sent{o.Peer, o.Msg, p.Sources(o)[0].Piece})
						}
					}
				}
				for i := range wires {
					require.Equal(t, wires[0], wires[i], "%s, %d ranks, %+v", a.title(), n, allOptions[i])
				}
			}
		}
	}
}

func TestPlanBytes(t *testing.T) {
	small, err := Compile(ringAllReduce(Shape{Kind: AllReduce, Ranks: 2}, 0), Options{})
	require.NoError(t, err)
	large, err := Compile(ringAllReduce(Shape{Kind: AllReduce, Ranks: 64}, 0), Options{})
	require.NoError(t, err)
	require.Less(t, small.Bytes(), 1000)
	most := len(large.Ops)*32 + len(large.Srcs)*12 + 1000
	require.LessOrEqual(t, large.Bytes(), most, "an op has at most 32 bytes")
	require.Greater(t, large.Bytes(), most/2)
}

func TestPointToPoint(t *testing.T) {
	p, err := PointToPoint(4, 1, 3, true)
	require.NoError(t, err)
	require.Len(t, p.Linear(), 1)
	require.Equal(t, "send of in[0.0] to rank 3 (message 0), lent", p.Describe(0))
	q, err := PointToPoint(4, 3, 1, false)
	require.NoError(t, err)
	require.Len(t, q.Linear(), 1)
	require.Equal(t, "receive of message 0 from rank 1 into out[0.0]", q.Describe(0))
	for _, peer := range []int{-1, 1, 4} {
		_, err = PointToPoint(4, 1, peer, true)
		require.ErrorContains(t, err, "rank 1 of 4")
	}
	_, err = PointToPoint(4, 9, 1, true)
	require.Error(t, err)
	_, err = PointToPoint(0, 0, 1, true)
	require.Error(t, err)
}

// Landings are receives into Out whose memory nothing of this rank's touches before, and of which each peer's first message is none.
func TestLandings(t *testing.T) {
	for _, k := range Kinds() {
		for _, a := range Catalog(k) {
			for n := 2; n <= 7; n++ {
				for r := range n {
					s := Shape{Kind: k, Ranks: n}
					for _, inPlace := range []bool{false, true} {
						p, err := Compile(a.Build(s, r), Options{InPlace: inPlace})
						require.NoError(t, err)
						m := newMemory(s, r, p.Pieces, inPlace)
						peers := map[int32]bool{}
						for _, i := range p.Landings {
							o := &p.Ops[i]
							require.Equal(t, OpRecv, o.Code)
							require.Equal(t, Out, o.Dst.Space)
							require.Positive(t, o.Msg)
							require.False(t, peers[o.Peer], "one of a peer")
							peers[o.Peer] = true
							for j := range p.Ops[:i] {
								before := &p.Ops[j]
								for _, src := range p.Sources(before) {
									require.NotEqual(t, m.ref(o.Dst), m.ref(src), "%v %s n=%d rank %d: op %d reads what op %d receives", k, a.Name, n, r, j, i)
								}
								if before.Code != OpSend && before.Code != OpReuse {
									require.NotEqual(t, m.ref(o.Dst), m.ref(before.Dst))
								}
							}
						}
						if a.Name == "twoshot" && !inPlace {
							require.Len(t, p.Landings, n-1, "the point of it")
						}
						if k == AllGather && a.Name == "direct" {
							require.Empty(t, p.Landings)
						}
					}
				}
			}
		}
	}
}
