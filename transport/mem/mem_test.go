package mem_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/mem"
	"github.com/gccl-project/gccl/transport/transporttest"
	"github.com/stretchr/testify/require"
)

func open(tb testing.TB, options []transport.Options) []transport.Endpoint {
	var n mem.Network
	var all []transport.Endpoint
	for _, o := range options {
		e, err := n.Open(o)
		require.NoError(tb, err)
		all = append(all, e)
	}
	return all
}

func TestContract(t *testing.T) { transporttest.Run(t, open) }

// TestContractWithCredit: as between hosts that share no memory.
func TestContractWithCredit(t *testing.T) {
	transporttest.Run(t, func(tb testing.TB, options []transport.Options) []transport.Endpoint {
		n := mem.Network{Credit: func(a, b string) int { return 32 << 10 }}
		var all []transport.Endpoint
		for i, o := range options {
			e, err := n.Host(fmt.Sprint("host ", i)).Open(o)
			require.NoError(tb, err)
			all = append(all, e)
		}
		return all
	})
}

func BenchmarkMem(b *testing.B) { transporttest.Bench(b, open) }

// TestVirtualTime runs a job of two ranks in a bubble: delays cost no real time,
// a delayed message wakes its sleeping receiver, and the run is the same again.
func TestVirtualTime(t *testing.T) {
	const delay = 3 * time.Hour
	run := func() (trace []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			woken := make(chan struct{}, 1)
			o := transport.Options{Streams: 2, MaxMessage: 64}
			slow := o
			slow.Hook = func(f transport.Frame) transport.Fate {
				if f.Seq%3 == 1 {
					return transport.Fate{Delay: delay}
				}
				return transport.Fate{}
			}
			o.Wake = func() {
				select {
				case woken <- struct{}{}:
				default:
				}
			}
			eps := open(t, []transport.Options{slow, o})
			a, err := eps[0].Conn(transport.Key{Self: 0, Peer: 1}, eps[1].Address())
			require.NoError(t, err)
			b, err := eps[1].Conn(transport.Key{Self: 1, Peer: 0}, eps[0].Address())
			require.NoError(t, err)
			for range 6 {
				ok, err := a.Stream(0).Send(1, transport.Buf{})
				require.NoError(t, err)
				require.True(t, ok)
			}
			for len(trace) < 6 {
				ok, err := b.Stream(0).Recv(1, transport.Buf{})
				require.NoError(t, err)
				if ok {
					trace = append(trace, time.Since(start))
				} else {
					<-woken
				}
			}
			// What is still delayed when its sender closes comes then.
			_, err = a.Stream(1).Send(1, transport.Buf{})
			require.NoError(t, err)
			_, err = a.Stream(1).Send(1, transport.Buf{})
			require.NoError(t, err)
			ok, err := b.Stream(1).Recv(1, transport.Buf{})
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, eps[0].Close())
			ok, err = b.Stream(1).Recv(1, transport.Buf{})
			require.NoError(t, err)
			require.True(t, ok)
			_, err = b.Stream(1).Recv(1, transport.Buf{})
			require.ErrorIs(t, err, transport.ErrGone)
			require.NoError(t, eps[1].Close())
		})
		return trace
	}
	want := []time.Duration{0, delay, delay, delay, delay, delay}
	require.Equal(t, want, run())
	require.Equal(t, want, run())
}

// TestDelayedBeforeConnClose: what was sent before Close arrives, even late.
func TestDelayedBeforeConnClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := transport.Options{Streams: 1, MaxMessage: 64}
		slow := o
		slow.Hook = func(transport.Frame) transport.Fate { return transport.Fate{Delay: time.Minute} }
		eps := open(t, []transport.Options{slow, o})
		a, _ := eps[0].Conn(transport.Key{Self: 0, Peer: 1}, eps[1].Address())
		b, _ := eps[1].Conn(transport.Key{Self: 1, Peer: 0}, eps[0].Address())
		ok, err := a.Stream(0).Send(1, transport.Buf{})
		require.True(t, ok)
		require.NoError(t, err)
		require.NoError(t, a.Close())
		ok, err = b.Stream(0).Recv(1, transport.Buf{})
		require.False(t, ok)
		require.NoError(t, err, "it is under way")
		time.Sleep(2 * time.Minute)
		ok, err = b.Stream(0).Recv(1, transport.Buf{})
		require.True(t, ok)
		require.NoError(t, err)
		_, err = b.Stream(0).Recv(1, transport.Buf{})
		require.ErrorIs(t, err, transport.ErrGone)
		for _, e := range eps {
			require.NoError(t, e.Close())
		}
	})
}

func TestBadOptions(t *testing.T) {
	var n mem.Network
	for want, o := range map[string]transport.Options{
		"Streams is 0, want 1 to 64":       {MaxMessage: 64},
		"Streams is 65, want 1 to 64":      {Streams: 65, MaxMessage: 64},
		"MaxMessage is 63 bytes, want 64":  {Streams: 1, MaxMessage: 63},
		"MaxMessage is 67108865 bytes":     {Streams: 1, MaxMessage: 64<<20 + 1},
		"MaxMessage is -1 bytes, want 64 ": {Streams: 1, MaxMessage: -1},
	} {
		_, err := n.Open(o)
		require.ErrorContains(t, err, want)
	}
	o := transport.Options{Streams: 1, MaxMessage: 64}
	e, err := n.Open(o)
	require.NoError(t, err)
	for _, k := range []transport.Key{{}, {Self: -1}, {Peer: -1}, {Peer: 1, Channel: -2}} {
		_, err := e.Conn(k, e.Address())
		require.ErrorContains(t, err, "ranks must be")
	}
	_, err = e.Conn(transport.Key{Peer: 1}, e.Address())
	require.ErrorContains(t, err, "our own address")
	require.NoError(t, e.Close())
}
