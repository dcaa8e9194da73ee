package comm

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/kernels"
)

// Whose fault it is, from what ranks say of themselves. Rank 0 asks about its collective 3.
func TestDiagnose(t *testing.T) {
	sum := agreed{Kind: KindAllReduce, DType: kernels.Float32, Count: 1024, Algorithm: "ring"}
	other := sum
	other.Count = 1022
	in := func(waits ...int) testimony {
		return testimony{state: &rankState{Begun: 3, Calls: []callState{{2, sum, true}, {3, sum, false}}, Waits: waits}}
	}
	behind := func(begun uint64, done bool) testimony {
		return testimony{state: &rankState{Begun: begun, Calls: []callState{{begun, sum, done}}}}
	}
	for _, c := range []struct {
		name  string
		waits []int
		says  map[int]testimony
		class string
		ranks []int
		text  []string
	}{
		{"one is late", []int{1}, map[int]testimony{1: behind(2, true)}, "late", []int{1}, []string{"rank 1 has not called sequence 3: it began 2 and finished 2"}},
		{"whoever waits for the late one is not to blame", []int{1, 2}, map[int]testimony{1: in(2, 5), 2: in(5), 5: behind(2, true)}, "late", []int{5}, []string{"rank 5 has not called"}},
		{"two are late", []int{4, 1}, map[int]testimony{1: behind(0, true), 4: behind(1, true)}, "late", []int{1, 4}, nil},
		{"late, since still in the call before", []int{1}, map[int]testimony{1: behind(2, false)}, "late", []int{1}, []string{"finished 1, it is in all_reduce of 1024 float sum by ring"}},
		{"late, since one is late in the call before", []int{1}, map[int]testimony{1: {state: &rankState{Begun: 2, Calls: []callState{{2, sum, false}}, Waits: []int{4}}}, 4: behind(1, true)}, "late", []int{4}, []string{"rank 4 has not called sequence 3: it began 1"}},
		{"late, in the call before, for us", []int{1}, map[int]testimony{1: {state: &rankState{Begun: 2, Calls: []callState{{2, sum, false}}, Waits: []int{0}}}}, "late", []int{1}, nil},
		{"closed", []int{1, 2}, map[int]testimony{1: behind(2, true), 2: {dead: "it closed the communicator", left: true}}, "left", []int{2}, nil},
		{"closed before the call", []int{2}, map[int]testimony{2: {dead: "it closed the communicator", left: true, said: true, begun: 2}}, "peer gone", []int{2}, []string{"it had begun is sequence 2"}},
		{"closed, and may have sent before", []int{2}, map[int]testimony{2: {dead: "it closed the communicator", left: true, said: true, begun: 3}}, "left", []int{2}, nil},
		{"another count", []int{1}, map[int]testimony{1: {state: &rankState{Begun: 3, Calls: []callState{{3, other, false}}}}}, "mismatch", []int{1}, []string{"rank 1 called all_reduce of 1022 float sum by ring, rank 0 all_reduce of 1024 float sum by ring (sequence 3)"}},
		{"another count, found behind a rank that waits", []int{1}, map[int]testimony{1: in(2), 2: {state: &rankState{Begun: 4, Calls: []callState{{3, other, true}, {4, sum, false}}}}}, "mismatch", []int{2}, nil},
		{"a dead one outweighs a late one", []int{1, 2}, map[int]testimony{1: behind(2, true), 2: {dead: "rank 2 is gone: its process ended"}}, "peer gone", []int{2}, []string{"rank 2 is gone: its process ended"}},
		{"no answer", []int{1}, map[int]testimony{1: {err: errors.New("deadline exceeded")}}, "silent", []int{1}, []string{"rank 1 does not answer"}},
		{"all are in the call", []int{1}, map[int]testimony{1: in(0)}, "late", []int{1}, []string{"all of them are in the call"}},
		{"busy on another communicator", []int{1}, map[int]testimony{1: {state: &rankState{Begun: 2, Busy: []string{"barrier, sequence 1, of communicator b, waiting for ranks [0]"}}}}, "late", []int{1}, []string{"and it is in barrier, sequence 1, of communicator b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := diagnose(0, stuck{seq: 3, call: sum, lane: -1, peers: c.waits}, func(r int) testimony {
				w, ok := c.says[r]
				require.True(t, ok, "rank %d was asked", r)
				return w
			})
			require.Equal(t, c.class, f.class)
			require.Equal(t, c.ranks, f.ranks)
			for _, text := range c.text {
				require.Contains(t, f.text, text)
			}
			require.Equal(t, c.class == "mismatch" || c.class == "peer gone", f.final())
		})
	}
}

// The same for a receive that nobody sends to, and one that gets another message.
func TestDiagnosePair(t *testing.T) {
	msg := agreed{Kind: KindSend, DType: kernels.Int8, Count: 5}
	k := stuck{seq: 2, call: msg, lane: receiving, peers: []int{7}}
	f := diagnose(0, k, func(int) testimony { return testimony{state: &rankState{Pair: [2]uint64{1, 9}}} })
	require.Equal(t, "late", f.class)
	require.Contains(t, f.text, "rank 7 has not called send number 2 with us, its last is 1")

	long := msg
	long.Count = 6
	f = diagnose(0, k, func(int) testimony {
		return testimony{state: &rankState{Pair: [2]uint64{2, 0}, Pairs: [2][]callState{sending: {{2, long, false}}}}}
	})
	require.Equal(t, "mismatch", f.class)

	// The sender is in a collective, for a rank that is late there.
	f = diagnose(0, k, func(r int) testimony {
		if r == 7 {
			return testimony{state: &rankState{Begun: 3, Calls: []callState{{3, msg, false}}, Waits: []int{4}}}
		}
		return testimony{state: &rankState{Begun: 2, Calls: []callState{{2, msg, true}}}}
	})
	require.Equal(t, []int{4}, f.ranks)
}

// The minority is to blame; between two, the higher rank.
func TestConvict(t *testing.T) {
	a, b := agreed{Kind: KindAllReduce, Count: 1024}, agreed{Kind: KindAllReduce, Count: 1022}
	for _, c := range []struct {
		calls map[int]agreed
		ranks []int
	}{
		{map[int]agreed{0: a, 1: a, 2: a, 3: b}, []int{3}},
		{map[int]agreed{0: b, 1: a, 2: a, 3: a}, []int{0}},
		{map[int]agreed{0: a, 1: b}, []int{1}},
		{map[int]agreed{0: b, 1: a, 2: a, 3: b}, []int{1, 2}},
	} {
		got := convict(7, c.calls)
		require.Equal(t, c.ranks, got.ranks)
		require.Contains(t, got.text, "1024")
		require.Contains(t, got.text, "1022")
		require.Contains(t, got.text, "sequence 7")
	}
}

// A cause comes through the words that ranks tell each other.
func TestCauseOverTheWire(t *testing.T) {
	for class := range classes {
		c := &cause{class: class, ranks: []int{2, 5}, text: "a; ranks [1]; b", from: -1}
		got := parseCause(noticeOf(3, wire{c}))
		require.Equal(t, &cause{class: class, ranks: []int{2, 5}, text: c.text, from: 3}, got)
		require.ErrorIs(t, got, classes[class])
	}
	got := parseCause(noticeOf(1, errors.New("plain words")))
	require.Equal(t, "rank 1 gave up: plain words", got.Error())
}

func noticeOf(from int, err error) bootstrap.Notice {
	n := bootstrap.Notice{From: from, Reason: err.Error()}
	if w, ok := err.(wire); ok {
		n.Ranks = w.Culprits()
	}
	return n
}

// Ranks of one process answer each for itself: a call is elsewhere only for other communicators.
func TestCallsElsewhereAreOtherCommunicators(t *testing.T) {
	join := func() []*Comm {
		comms, errs := joinAll(t, 2, func(_ int, c *Config) { c.Transport = "tcp" })
		for r := range comms {
			require.NoError(t, errs[r])
			t.Cleanup(func() { comms[r].Close() })
		}
		return comms
	}
	here, there := join(), join()
	done := make(chan error, 1)
	go func() { done <- here[0].Do(t.Context(), Call{Kind: KindBarrier}) }()
	for here[0].stuck.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	require.Empty(t, here[1].elsewhere())
	require.Len(t, there[1].elsewhere(), 1)
	require.Contains(t, there[1].elsewhere()[0], "by direct, sequence 1, of communicator "+here[0].name()+", waiting for ranks [1]")
	require.NoError(t, here[1].Do(t.Context(), Call{Kind: KindBarrier}))
	require.NoError(t, <-done)
}
