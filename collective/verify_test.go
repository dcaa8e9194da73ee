package collective

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// pairOf returns two ranks' schedules of an all-reduce that do the same, the other one the peer.
func pairOf(temps int, steps func(peer int) [][]Instr) []Schedule {
	var all []Schedule
	for r := range 2 {
		all = append(all, Schedule{Shape: Shape{Kind: AllReduce, Ranks: 2}, Rank: r, Pieces: 1, Temps: temps, Steps: steps(1 - r)})
	}
	return all
}

func TestVerifyNamesTheWrongValue(t *testing.T) {
	// Both put their own operand first.
	err := Verify(pairOf(0, func(peer int) [][]Instr {
		return [][]Instr{{send(peer, in0), reduceRecv(peer, in0, out0)}}
	}), Options{})
	var value *WrongValueError
	require.ErrorAs(t, err, &value)
	require.Equal(t, WrongValueError{Rank: 1, Chunk: 0, Got: "(r1.0 + r0.0)", Want: "(r0.0 + r1.0), as on rank 0 (the same bits on all ranks)"}, *value)

	// One forgets itself.
	all := pairOf(0, func(peer int) [][]Instr { return [][]Instr{{send(peer, in0), recv(peer, out0)}} })
	require.ErrorAs(t, Verify(all, Options{}), &value)
	require.Equal(t, "r1.0", value.Got)
	require.Equal(t, "the sum of r0.0 … r1.0", value.Want)

	// Nothing is ever written.
	all = pairOf(0, func(int) [][]Instr { return nil })
	require.ErrorAs(t, Verify(all, Options{}), &value)
	require.Equal(t, "nothing", value.Got)
	require.ErrorAs(t, Verify(all, Options{InPlace: true}), &value)
	require.Equal(t, "r0.0", value.Got)
}

func TestVerifyNamesWhoWaits(t *testing.T) {
	err := Verify(pairOf(0, func(peer int) [][]Instr { return [][]Instr{{recv(peer, out0)}, {send(peer, out0)}} }), Options{})
	var deadlock *DeadlockError
	require.ErrorAs(t, err, &deadlock)
	require.Equal(t, "linear", deadlock.Reading)
	require.Equal(t, []string{
		"rank 0 waits at its op 0 of 2: receive of message 0 from rank 1 into out[0.0]",
		"rank 1 waits at its op 0 of 2: receive of message 0 from rank 0 into out[0.0]",
	}, deadlock.Waiting)

	crowd := DeadlockError{"linear", slices.Repeat([]string{"x"}, 100)}
	require.Contains(t, crowd.Error(), "and 92 more")
}

// Two messages each way before anything is received need room for two.
func TestVerifyWantsOneMessageOfRoomOnly(t *testing.T) {
	all := pairOf(2, func(peer int) [][]Instr {
		return [][]Instr{{send(peer, in0)}, {send(peer, in0)}, {recv(peer, temp0)}, {recv(peer, temp1)}, {fold(out0, in0, temp0)}}
	})
	for r := range all {
		all[r].Steps[4] = []Instr{fold(out0, []Slot{in0, temp0}[r], []Slot{temp0, in0}[r])}
	}
	v, why := judgeSchedules(all, 5)
	require.Equal(t, cramped, v, why)
	var deadlock *DeadlockError
	require.ErrorAs(t, Verify(all, Options{}), &deadlock)
}

func TestVerifyNamesMessagesThatNobodyWants(t *testing.T) {
	all := schedulesOf(Algorithm{Kind: AllReduce, Build: oneshot}, 3, 0)
	all[1].Steps = append(all[1].Steps, []Instr{send(2, in0)})
	var hazard *HazardError
	require.ErrorAs(t, Verify(all, Options{}), &hazard)
	require.Equal(t, "collective: rank 1: message 1 to rank 2: is sent and never used", hazard.Error())
}

func TestVerifyNamesPiecesOfOtherLengths(t *testing.T) {
	all := schedulesOf(Algorithm{Kind: AllReduce, Build: ringAllReduce}, 2, 0)
	all[0].Steps[0][0] = send(1, in1)
	var hazard *HazardError
	require.ErrorAs(t, Verify(all, Options{}), &hazard)
	require.Contains(t, hazard.Why, "got piece 1 of a block, want piece 0")
}

func TestVerifyWantsAllRanks(t *testing.T) {
	all := schedulesOf(Algorithm{Kind: AllReduce, Build: oneshot}, 3, 0)
	require.ErrorContains(t, Verify(all[:2], Options{}), "schedule 0 of 2")
	require.ErrorContains(t, Verify([]Schedule{all[0], all[2], all[1]}, Options{}), "schedule 1 of 3 is of rank 2")
	all[2].Pieces = 2
	require.ErrorContains(t, Verify(all, Options{}), "schedule 2 of 3 is of rank 2")
	require.ErrorContains(t, Verify(nil, Options{}), "no schedules")
}

// If both sides of an exchange in place lent, each would wait for the other to let go.
func TestLendingAnExchangeInPlaceWouldDeadlock(t *testing.T) {
	plans := compiled(t, schedulesOf(Algorithm{Kind: AllReduce, Build: doublingAllReduce}, 2, 0), Options{InPlace: true})
	require.NoError(t, verifyPlans(plans))
	for _, p := range plans {
		require.Zero(t, p.Srcs[0].Flags&Lend)
		p.Srcs[0].Flags |= Lend
	}
	var deadlock *DeadlockError
	require.ErrorAs(t, verifyPlans(plans), &deadlock)
	require.Contains(t, deadlock.Error(), "reuse of message 0 to rank 1")
}

// A value that doubles with each step has more leaves than anybody can count.
func TestVerifyEndsOnHugeValues(t *testing.T) {
	all := pairOf(1, func(int) [][]Instr {
		steps := [][]Instr{{fold(out0, in0, in0)}}
		for range 200 {
			steps = append(steps, []Instr{fold(out0, out0, out0)})
		}
		return steps
	})
	var value *WrongValueError
	require.True(t, errors.As(Verify(all, Options{}), &value))
	require.Less(t, len(value.Got), 10*maxText)
	require.Contains(t, value.Got, "…")
}

func TestVerifyIsTheSameEveryTime(t *testing.T) {
	all := schedulesOf(Algorithm{Kind: AllReduce, Build: ringAllReduce}, 5, 0)
	all[3].Steps[2] = nil
	want := Verify(all, Options{}).Error()
	for range 20 {
		require.EqualError(t, Verify(all, Options{}), want)
	}
}

func BenchmarkVerify(b *testing.B) {
	for _, n := range []int{8, 64} {
		all := schedulesOf(Algorithm{Kind: AllReduce, Build: ringAllReduce}, n, 0)
		b.Run(fmt.Sprintf("ring/ranks=%d", n), func(b *testing.B) {
			for b.Loop() {
				if err := Verify(all, Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
