//go:build linux && cgo

package verbs

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"syscall"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// newcomers are the two ends of a link that is being made between endpoints of two devices each, of which some make no QP, or one that is not taken to
// RTR: refuses has what the devices of either end say.
func newcomers(refuses [2][2]error, unconnected [2][2]error) (ends [2]*link, qps *[2][2]*puppet) {
	qps = new([2][2]*puppet)
	for i := range ends {
		e := &endpoint{config: Config{Slot: 1 << 10, Slots: 8, Log: slog.New(slog.DiscardHandler)}, options: transport.Options{Streams: 1, MaxMessage: 100}}
		e.ctx, e.event, e.epoll, e.cache = context.Background(), -1, -1, newCache(nil, e.config)
		for k := range 2 {
			e.nics = append(e.nics, &nic{index: k, device: &ibv.Device{}, queues: map[uint32]*queue{}, port: ibv.Port{LinkLayer: ibv.Ethernet}, mtu: 5,
				take: func([]ibv.Completion) (int, error) { return 0, nil }})
		}
		half := e.config.layout(1)
		l := &link{e: e, rank: i, half: half, memory: block{of: &chunk{}, bytes: make([]byte, 2*half)}, lanes: []lane{newLane(8)}}
		l.rx, l.tx = l.memory.bytes[:half], l.memory.bytes[half:]
		l.makes = func(n *nic) (*queue, error) {
			if err := refuses[i][n.index]; err != nil {
				return nil, n.explain(err)
			}
			p := &puppet{modify: unconnected[i][n.index]}
			qps[i][n.index] = p
			q := &queue{link: l, nic: n, qp: p, state: ibv.Init, sq: 64, ours: goodRecord()}
			q.ours.qpn, q.ours.bytes = uint32(16*(i+1)+n.index), uint64(half)
			n.enter(q)
			return q, nil
		}
		ends[i] = l
	}
	return ends, qps
}

// makeLink does what attempt and greet do.
func makeLink(ends [2]*link) error {
	if err := ends[0].fill(2); err != nil {
		return ends[0].own(err)
	}
	if err := ends[1].fill(2); err != nil {
		return ends[1].own(err)
	}
	heard := func(l *link) []record {
		all, err := parseRecords(appendRecords(nil, l.records()))
		if err != nil {
			panic(err)
		}
		return all
	}
	if err := ends[1].connect(heard(ends[0])); err != nil {
		return err
	}
	return ends[0].connect(heard(ends[1]))
}

// TestConnectWithoutADevice: a device that has failed, at either end, or that does not lead to the peer's, costs a new connection that device alone;
// where there is none left, TCP carries it, or the rank whose device it is is to blame.
func TestConnectWithoutADevice(t *testing.T) {
	gone, out := syscall.EIO, syscall.ENETUNREACH
	for name, test := range map[string]struct {
		refuses, unconnected [2][2]error
		live                 int
		culprit              int // where nothing is left and there is no fallback; -1: nobody is known
	}{
		"nothing is wrong":            {live: 2},
		"one of ours":                 {refuses: [2][2]error{{gone, nil}, {nil, nil}}, live: 1},
		"one of the peer's":           {refuses: [2][2]error{{nil, nil}, {nil, gone}}, live: 1},
		"the same of both":            {refuses: [2][2]error{{nil, gone}, {nil, gone}}, live: 1},
		"no way by one":               {unconnected: [2][2]error{{nil, nil}, {out, nil}}, live: 1},
		"no way by one, at the other": {unconnected: [2][2]error{{out, nil}, {nil, nil}}, live: 1},
		"both of ours":                {refuses: [2][2]error{{gone, gone}, {nil, nil}}, culprit: 0},
		"both of the peer's":          {refuses: [2][2]error{{nil, nil}, {gone, gone}}, culprit: 1},
		"no way at all":               {unconnected: [2][2]error{{nil, nil}, {out, out}}, culprit: -1},
	} {
		for _, fallback := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", with fallback"}[fallback], func(t *testing.T) {
				ends, qps := newcomers(test.refuses, test.unconnected)
				for _, l := range ends {
					l.e.config.Fallback = fallback
				}
				err := makeLink(ends)
				if test.live == 0 && !fallback {
					require.Error(t, err)
					var own *transport.OwnError
					require.Equal(t, test.culprit >= 0, errors.As(err, &own), "%v", err)
					if test.culprit >= 0 {
						require.Equal(t, test.culprit, own.Rank)
					}
					return
				}
				require.NoError(t, err)
				var conns [2]*conn
				a, b := net.Pipe()
				for i, l := range ends {
					require.GreaterOrEqual(t, l.live, test.live)
					l.socket = [2]net.Conn{a, b}[i]
					conns[i] = newConn(l.e, transport.Key{Self: int32(i), Peer: int32(1 - i)}, address{})
					l.e.conns = []*conn{conns[i]}
					ctx, cancel := context.WithCancel(context.Background())
					cancel() // nobody mends
					l.e.ctx = ctx
					l.e.watchers.Go(l.watch)
					conns[i].arrived.Store(l)
				}
				for range 100 { // words come as immediates
					for i, c := range conns {
						require.True(t, c.ready())
						c.e.Progress()
						for k, p := range qps[i] {
							if p == nil {
								continue
							}
							for _, r := range p.posted {
								if q := ends[1-i].queues[k]; !q.broken {
									require.NoError(t, ends[1-i].arrive(r.Imm))
								}
							}
							p.posted = nil
						}
					}
				}
				for _, l := range ends {
					require.NoError(t, l.failed)
					require.Equal(t, test.live, l.live, "rank %d", l.rank)
					for k, q := range l.queues {
						require.Equal(t, ends[0].queues[k].broken, q.broken, "both ends know")
						if q.broken {
							require.True(t, q.redone, "it may be mended")
							require.True(t, q.qp == nil || q.state == ibv.Err)
						}
					}
					require.True(t, l.whole())
				}
				if test.live == 0 {
					got := make([]byte, 3)
					ok, err := conns[0].Stream(0).Send(1, bufOf([]byte("abc")))
					require.NoError(t, err)
					require.True(t, ok)
					for ok = false; !ok; {
						conns[0].e.Progress()
						conns[1].e.Progress()
						ok, err = conns[1].Stream(0).Recv(1, bufOf(got))
						require.NoError(t, err)
					}
					require.Equal(t, "abc", string(got))
				}
				for _, l := range ends {
					require.NoError(t, l.shut())
					l.e.watchers.Wait()
				}
			})
		}
	}
}

// TestShortageIsNoFailedDevice: a device that has no room for one QP more has it not made up for by others, for it would be no different there, and who
// is short is to be told.
func TestShortageIsNoFailedDevice(t *testing.T) {
	ends, _ := newcomers([2][2]error{{syscall.ENOMEM}}, [2][2]error{})
	require.ErrorIs(t, makeLink(ends), syscall.ENOMEM)
}

// TestConnectAfterADeviceFailed: new connections over other devices, or TCP, when one has failed; else an error that blames who has it.
func TestConnectAfterADeviceFailed(t *testing.T) {
	for _, test := range []struct {
		name     string
		devices  [2][]string
		fallback bool
	}{
		{"others", [2][]string{{"rxe1", "rxe3"}, {"rxe2", "rxe4"}}, false},
		{"TCP", [2][]string{{"rxe1"}, {"rxe2"}}, true},
		{"nothing else", [2][]string{{"rxe1"}, {"rxe2"}}, false},
	} {
		for rank := range 2 {
			t.Run(test.name, func(t *testing.T) {
				one, other := rails(t)
				one.Devices, other.Devices = only(test.devices[0]...), only(test.devices[1]...)
				one.Fallback, other.Fallback = test.fallback, test.fallback
				d := newDuo(t, testOptions(), one, other)
				d.pass(0, message(1000))
				d.eps[rank].note(d.eps[rank].nics[0], ibv.EventDeviceFatal, 0)
				d.until("the failure to be known", func() bool { return d.eps[rank].nics[0].failed() != nil })
				for i := range d.conns {
					var err error
					d.conns[i], err = d.eps[i].Conn(transport.Key{Comm: 8, Self: int32(i), Peer: int32(1 - i)}, d.eps[1-i].Address())
					require.NoError(t, err)
				}
				if !test.fallback && len(test.devices[0]) == 1 {
					errs := d.fails()
					require.ErrorContains(t, errs[rank], "the device has failed")
					require.NotErrorIs(t, errs[rank], transport.ErrGone)
					for _, err := range errs {
						require.ErrorContains(t, err, "this is rank "+string(rune('0'+rank))+"'s own failure")
					}
					return
				}
				d.pass(0, message(3000))
				d.traffic(20, 50_000, func(int) {})
				p, err := d.eps[rank].Alloc(1 << 20)
				require.NoError(t, err)
				require.NoError(t, d.eps[rank].Free(p))
			})
		}
	}
}
