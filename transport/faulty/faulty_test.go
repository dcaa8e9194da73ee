package faulty_test

import (
	"sync"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/faulty"
	"github.com/gccl-project/gccl/transport/mem"
	"github.com/stretchr/testify/require"
)

func frame(rank, peer int32, seq uint64) transport.Frame {
	return transport.Frame{Transport: "tcp", Key: transport.Key{Comm: 5, Self: rank, Peer: peer}, Seq: seq, Bytes: 100}
}

func TestConditions(t *testing.T) {
	base := transport.Frame{Transport: "shm", Key: transport.Key{Comm: 0xab, Channel: -1, Self: 2, Peer: 3}, Stream: 4, Seq: 9, Bytes: 100}
	for when, want := range map[string]bool{
		"":              true,
		"transport=shm": true, "transport=tcp": false,
		"rank=2": true, "rank=3": false,
		"peer=3": true, "peer=2": false,
		"comm=0xab": true, "comm=171": true, "comm=0": false,
		"channel=-1": true, "channel=0": false,
		"stream=4": true, "stream=5": false,
		"min=100": true, "min=101": false,
		"after=1": false, "every=1": true, "every=2": false,
		"prob=0": false, "prob=1": true,
		"transport=shm,rank=2,peer=3,comm=0xab,channel=-1,stream=4,min=1,prob=1": true,
		"transport=shm,rank=2,peer=3,comm=0xab,channel=-1,stream=4,min=1,prob=0": false,
	} {
		hook, err := faulty.Parse(when + ":drop")
		require.NoError(t, err, when)
		require.Equal(t, transport.Fate{Drop: want}, hook(base), when)
	}
}

func TestFates(t *testing.T) {
	for text, want := range map[string]transport.Fate{
		"drop":                       {Drop: true},
		"reset":                      {Reset: true},
		"twice":                      {Twice: true},
		"delay=50ms":                 {Delay: 50 * time.Millisecond},
		"flip=3":                     {Flip: 3},
		" delay=1h2s + flip=0x10 ":   {Delay: time.Hour + 2*time.Second, Flip: 16},
		"twice+delay=1us":            {Twice: true, Delay: time.Microsecond},
		"flip=2147483647+drop+twice": {Flip: 2147483647, Drop: true, Twice: true},
	} {
		hook, err := faulty.Parse(":" + text)
		require.NoError(t, err, text)
		require.Equal(t, want, hook(frame(0, 1, 0)), text)
	}
}

// TestCounts: which of 12 messages of a connection have the fate, with another
// connection's messages in between.
func TestCounts(t *testing.T) {
	for when, want := range map[string][]int{
		"after=9":                 {9, 10, 11},
		"after=3,times=1":         {3},
		"every=5":                 {4, 9},
		"after=2,every=4,times=2": {5, 9},
		"times=2":                 {0, 1},
	} {
		hook, err := faulty.Parse("rank=0," + when + ":drop")
		require.NoError(t, err)
		var got []int
		for i := range 12 {
			if hook(frame(0, 1, uint64(i))).Drop {
				got = append(got, i)
			}
			hook(frame(0, 2, uint64(i)))
			require.False(t, hook(frame(1, 0, uint64(i))).Drop, "another rank")
		}
		require.Equal(t, want, got, when)
	}
}

func TestFirstRuleDecides(t *testing.T) {
	hook, err := faulty.Parse("after=1,times=1:twice; after=2:drop; :flip=1")
	require.NoError(t, err)
	var got []transport.Fate
	for i := range 4 {
		got = append(got, hook(frame(0, 1, uint64(i))))
	}
	// The second rule is not asked about the message that the first one decides.
	require.Equal(t, []transport.Fate{{Flip: 1}, {Twice: true}, {Flip: 1}, {Drop: true}}, got)
}

// TestProbability: about the share that was asked for, the same in every order
// and for every goroutine, another with another seed.
func TestProbability(t *testing.T) {
	const n = 20000
	dropped := func(text string, order func(i int) int) (map[int]bool, int) {
		hook, err := faulty.Parse(text)
		require.NoError(t, err)
		var mu sync.Mutex
		all := map[int]bool{}
		var wg sync.WaitGroup
		for part := range 4 {
			wg.Go(func() {
				for i := part; i < n; i += 4 {
					k := order(i)
					if hook(frame(0, int32(1+k%3), uint64(k))).Drop {
						mu.Lock()
						all[k] = true
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		return all, len(all)
	}
	forward := func(i int) int { return i }
	backward := func(i int) int { return n - 1 - i }
	first, count := dropped("seed=7;prob=0.1:drop", forward)
	require.InDelta(t, n/10, count, n/50)
	again, _ := dropped("seed=7;prob=0.1:drop", backward)
	require.Equal(t, first, again)
	other, count := dropped("seed=8;prob=0.1:drop", forward)
	require.InDelta(t, n/10, count, n/50)
	both := 0
	for k := range other {
		if first[k] {
			both++
		}
	}
	require.Less(t, both, n/50, "seeds are independent")
}

func TestErrorsNameTheToken(t *testing.T) {
	for text, want := range map[string]string{
		"nonsense":                       `item "nonsense"`,
		"seed=x":                         `"seed=x", want a number`,
		"seed=1;seed=2":                  `second seed "seed=2"`,
		";":                              `item ""`,
		":drop;":                         `item ""`,
		"rank=1:":                        `fate ""`,
		"rank=1:explode":                 `fate "explode"`,
		"rank=1:drop=3":                  `fate "drop=3"`,
		"rank=1:drop+drop":               `repeated token "drop"`,
		"rank=1,rank=2:drop":             `repeated token "rank=2"`,
		"rank=-1:drop":                   `condition "rank=-1", want a number from 0`,
		"rank=2147483648:drop":           `condition "rank=2147483648"`,
		"channel=-2:drop":                `condition "channel=-2", want a number from -1`,
		"stream=64:drop":                 `"stream=64", want a number from 0 to 63`,
		"prob=1.5:drop":                  `condition "prob=1.5", want prob=0 to prob=1`,
		"prob=NaN:drop":                  `condition "prob=NaN"`,
		"prob=:drop":                     `condition "prob="`,
		"color=red:drop":                 `condition "color=red", want transport, rank`,
		"transport=:drop":                `condition "transport="`,
		"transport=TCP:drop":             `condition "transport=TCP"`,
		",rank=1:drop":                   `condition ""`,
		"after=0:drop":                   `"after=0", want a number from 1`,
		"times=-1:drop":                  `"times=-1"`,
		":delay=5":                       `fate "delay=5", want a duration`,
		":delay=-5ms":                    `fate "delay=-5ms"`,
		":delay":                         `fate "delay"`,
		":flip=0":                        `"flip=0", want a number from 1`,
		":reorder=1":                     `fate "reorder=1"`,
		":truncate":                      `"truncate", want a number from 1`,
		"rank=1:drop:reset":              `fate "drop:reset"`,
		"comm=18446744073709551616:drop": `"comm=18446744073709551616"`,
	} {
		hook, err := faulty.Parse(text)
		require.ErrorContains(t, err, want, text)
		require.Nil(t, hook)
	}
}

func TestString(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		" seed=0x7 ; transport=tcp , rank=2,peer=0,after=100 : reset": "seed=7;transport=tcp,rank=2,peer=0,after=100:reset",
		":flip=3+delay=50ms":                                 ":delay=50ms+flip=3",
		"transport=mem:truncate=0x10+reorder":                "transport=mem:reorder+truncate=16",
		"prob=0.01,comm=10:drop;every=2,times=3,min=5:twice": "comm=0xa,prob=0.01:drop;min=5,every=2,times=3:twice",
		"channel=-1,stream=0:reset":                          "channel=-1,stream=0:reset",
	} {
		r, err := faulty.ParseRules(text)
		require.NoError(t, err, text)
		require.Equal(t, want, r.String())
	}
}

func FuzzRoundTrip(f *testing.F) {
	f.Add("seed=7;transport=tcp,rank=2,peer=0,after=100:reset")
	f.Add("prob=0.01,every=3,times=9,min=4,stream=1,channel=-1,comm=0xff:delay=50ms+flip=3+twice+drop")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := faulty.ParseRules(text)
		if err != nil {
			return
		}
		again, err := faulty.ParseRules(r.String())
		require.NoError(t, err, "%q", r.String())
		require.Equal(t, r, again)
	})
}

// TestOverTransport sends through an endpoint that has a Hook of ours.
func TestOverTransport(t *testing.T) {
	hook, err := faulty.Parse("transport=mem,rank=0,after=2,times=1:drop")
	require.NoError(t, err)
	var n mem.Network
	a, err := n.Open(transport.Options{Streams: 1, MaxMessage: 64, Hook: hook})
	require.NoError(t, err)
	b, err := n.Open(transport.Options{Streams: 1, MaxMessage: 64})
	require.NoError(t, err)
	from, err := a.Conn(transport.Key{Self: 0, Peer: 1}, b.Address())
	require.NoError(t, err)
	to, err := b.Conn(transport.Key{Self: 1, Peer: 0}, a.Address())
	require.NoError(t, err)
	for range 4 {
		ok, err := from.Stream(0).Send(1, transport.Buf{})
		require.True(t, ok)
		require.NoError(t, err)
	}
	for range 2 {
		ok, err := to.Stream(0).Recv(1, transport.Buf{})
		require.True(t, ok)
		require.NoError(t, err)
	}
	_, err = to.Stream(0).Recv(1, transport.Buf{})
	require.ErrorIs(t, err, transport.ErrSequence)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}
