package comm

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/collective/tune"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/topology"
)

// What ranks tell each other comes from processes that have proven the secret, and may be of another release, or broken.

// FuzzState: whatever a rank says of itself when it is asked, the diagnosis ends, asks nobody twice, and says something.
func FuzzState(f *testing.F) {
	call := agreed{Kind: KindAllReduce, DType: kernels.Float32, Count: 1024, Algorithm: "ring"}
	other := call
	other.Count++
	for _, s := range []rankState{
		{}, {Begun: 3, Calls: []callState{{2, call, true}, {3, call, false}}, Waits: []int{0, 2, 3}}, {Begun: 3, Calls: []callState{{3, other, false}}},
		{Begun: 2, Calls: []callState{{2, call, false}}, Waits: []int{-1, 1 << 40}}, {Begun: 1, Busy: []string{"barrier"}, Failed: "why"},
		{Pair: [2]uint64{1, 9}, Pairs: [2][]callState{{{3, other, false}}, {{3, call, true}}}}, {Pair: [2]uint64{1, 1}, Waits: []int{2}},
	} {
		b, err := json.Marshal(s)
		require.NoError(f, err)
		for lane := range byte(3) {
			for how := range byte(8) {
				f.Add(b, lane, how)
			}
		}
	}
	f.Add([]byte(`{"Begun":-1}`), byte(0), byte(0))
	f.Add([]byte("{"), byte(0), byte(0))
	f.Fuzz(func(t *testing.T, b []byte, lane, how byte) {
		var s rankState
		if json.Unmarshal(b, &s) != nil {
			return
		}
		asked := map[int]bool{}
		k := stuck{seq: 3, call: call, lane: int(lane%3) - 1, peers: []int{1}}
		got := diagnose(0, k, func(r int) testimony {
			require.False(t, asked[r])
			asked[r] = true
			switch { // the first one is as the bytes say, and others may be gone
			case r == 1 && how < 4:
				return testimony{state: &s}
			case how%4 == 1:
				return testimony{dead: "it is dead"}
			case how%4 == 2:
				return testimony{dead: "it closed", left: true, said: true, begun: s.Begun}
			case how%4 == 3:
				return testimony{err: ErrTimeout}
			}
			return testimony{state: &s}
		})
		require.NotEmpty(t, got.class)
		require.NotEmpty(t, got.ranks)
		require.LessOrEqual(t, len(asked), 1+len(s.Waits))
	})
}

// FuzzWorldHello: whatever a rank says when the world begins, it is refused with words, or can be worked with.
func FuzzWorldHello(f *testing.F) {
	model, err := tune.Default("tcp")
	require.NoError(f, err)
	model.Lanes, model.MaxMessage = 1, 1<<20
	mine := hello{Version: wireVersion, Lanes: 1, MaxMessage: 1 << 20, Host: "a", Boot: "b", Threads: 2, Processors: []int{0, 1}, Addresses: map[string][]byte{"tcp": {1}, "shm": {2}}, Model: map[string]tune.Model{"tcp": model, "shm": model}}
	for _, change := range []func(*hello){
		func(*hello) {}, func(h *hello) { h.Version++ }, func(h *hello) { h.Lanes++ }, func(h *hello) { h.MaxMessage++ }, func(h *hello) { h.Checksum = true },
		func(h *hello) { h.Addresses = map[string][]byte{"mem": nil} }, func(h *hello) { h.Addresses = map[string][]byte{"tcp": {}} },
		func(h *hello) { h.Model = map[string]tune.Model{"tcp": {Lanes: -1}} }, func(h *hello) { h.Processors, h.Threads = nil, -5 },
	} {
		h := mine
		change(&h)
		b, err := json.Marshal(h)
		require.NoError(f, err)
		f.Add(b, true, true)
		f.Add(b, true, false)
	}
	f.Add([]byte("null"), false, false)
	f.Add([]byte("["), false, false)
	f.Fuzz(func(t *testing.T, b []byte, here, there bool) {
		var h hello
		if json.Unmarshal(b, &h) != nil || mine.agree(&h) != nil {
			return
		}
		require.NotEmpty(t, h.place())
		require.Positive(t, crowds([]hello{mine, h}))
		name, reason := choose(&mine, &h, here && there, func() topology.Reason { return "" })
		require.NotEmpty(t, reason)
		if name != "" {
			require.NotNil(t, h.Addresses[name])
		}
		models := []tune.Model{model}
		if m, ok := h.Model[name]; ok {
			models = append(models, m)
		}
		if all, err := tune.Combine(models); err == nil {
			require.NoError(t, all.Validate())
		}
	})
}

// FuzzCause: whatever another rank gives as the reason of its abort, what we make of it is told on in the same words.
func FuzzCause(f *testing.F) {
	for _, text := range []string{"mismatch; words", "; words", "no class; words", "plain", "", "context canceled", "timeout; a; b"} {
		f.Add(text, 1)
	}
	f.Fuzz(func(t *testing.T, text string, rank int) {
		c := parseCause(bootstrap.Notice{From: 2, Ranks: []int{rank}, Reason: text})
		require.Equal(t, []int{rank}, culprits(c))
		require.NotEmpty(t, c.Error())
		again := parseCause(bootstrap.Notice{From: 2, Ranks: c.Culprits(), Reason: wire{c}.Error()})
		require.Equal(t, c, again)
	})
}
