package comm_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// sent is a message between two ranks of a test.
type sent struct{ from, to, count, number int }

func (m sent) value(i int) int32 { return int32(m.number*7919 + m.from*31 + m.to*17 + i) }

// messagesOf is the same rounds of messages on every rank: of each direction none, one or several, of no element up to some rounds of the engine's.
func messagesOf(ranks, rounds int) (list [][]sent) {
	draw := rand.New(rand.NewPCG(5, 7))
	counts := []int{0, 1, 2, 3, 100, 1000, 5000, 20_000, 300_000}
	number := 0
	for range rounds {
		var round []sent
		several := draw.IntN(3) == 0
		for from := range ranks {
			for to := range ranks {
				n := draw.IntN(2)
				if several {
					n = draw.IntN(3)
				}
				for range n {
					number++
					round = append(round, sent{from, to, counts[draw.IntN(len(counts))], number})
				}
			}
		}
		list = append(list, round)
	}
	return list
}

// TestGroupsOfMessages: what ranks group, in whichever order, comes as it was sent, whether or not their peers group it, to others and to
// oneself, with few messages and many, several of one direction, too; also while other goroutines use the same driver, and messages that are
// like those before in other memory.
func TestGroupsOfMessages(t *testing.T) {
	const ranks, rounds, same = 3, 60, 3
	for name, edit := range transports() {
		t.Run(name, func(t *testing.T) {
			drivers := make([]*engine.Driver, ranks)
			for r := range drivers {
				drivers[r] = engine.NewDriver()
			}
			mine := func(r int, c *comm.Config) {
				edit(r, c)
				c.Driver = drivers[r]
			}
			comms, others := world(t, ranks, mine), world(t, ranks, mine)
			stop := make(chan struct{})
			var busy errgroup.Group
			for r, c := range others {
				busy.Go(func() error {
					x := []int64{0}
					for n := int64(0); ; n++ {
						x[0] = 1
						if n > 0 {
							select {
							case <-stop:
								x[0] = 0
							default:
							}
						}
						if err := comm.AllReduce(background, c, x, x, kernels.Sum); err != nil {
							return fmt.Errorf("rank %d: %w", r, err)
						}
						if x[0] < ranks {
							return nil
						}
						time.Sleep(100 * time.Microsecond)
					}
				})
			}
			var done errgroup.Group
			for r, c := range comms {
				done.Go(func() error {
					draw := rand.New(rand.NewPCG(uint64(r), 1))
					for k, round := range messagesOf(ranks, rounds) {
						for range same {
							if err := oneRound(c, r, round, draw, k%4); err != nil {
								return fmt.Errorf("rank %d, round %d: %w", r, k, err)
							}
						}
					}
					return nil
				})
			}
			require.NoError(t, done.Wait())
			close(stop)
			require.NoError(t, busy.Wait())
		})
	}
}

// oneRound does a rank's part of a round: its first messages in a Group or all of them, what is left one by one.
func oneRound(c *comm.Comm, r int, round []sent, draw *rand.Rand, way int) error {
	var calls []comm.Call
	var check []func() error
	for _, m := range round {
		if m.from == r {
			src := make([]int32, m.count)
			for i := range src {
				src[i] = m.value(i)
			}
			calls = append(calls, comm.Call{Comm: c, Kind: comm.KindSend, Peer: m.to, Count: m.count, DType: kernels.Int32, Src: kernels.MemOf(src)})
		}
		if m.to == r {
			dst := make([]int32, m.count)
			calls = append(calls, comm.Call{Comm: c, Kind: comm.KindRecv, Peer: m.from, Count: m.count, DType: kernels.Int32, Dst: kernels.MemOf(dst)})
			check = append(check, func() error {
				for i, x := range dst {
					if x != m.value(i) {
						return fmt.Errorf("%+v: element %d is %d, want %d", m, i, x, m.value(i))
					}
				}
				return nil
			})
		}
	}
	if way < 2 { // any order but that of a direction's
		shuffled := make([]comm.Call, 0, len(calls))
		for len(calls) > 0 {
			i := draw.IntN(len(calls))
			for j := range i {
				if calls[j].Kind == calls[i].Kind && calls[j].Peer == calls[i].Peer {
					i = j
					break
				}
			}
			shuffled = append(shuffled, calls[i])
			calls = append(calls[:i], calls[i+1:]...)
		}
		calls = shuffled
	}
	var rest []*comm.Pending
	if way == 3 && r == 0 {
		for _, call := range calls {
			rest = append(rest, c.Start(call))
		}
		calls = nil
	}
	if err := comm.Group(background, calls...); err != nil {
		return err
	}
	for _, p := range rest {
		if err := p.Wait(background); err != nil {
			return err
		}
	}
	for _, f := range check {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// TestGroupOfMessagesFails: a wrong argument, another count on the other side, a context that ends and a peer that has left are each said, and the
// messages that came before are right.
func TestGroupOfMessagesFails(t *testing.T) {
	both := func(c *comm.Comm, out, in []int32) []comm.Call {
		peer := 1 - c.Rank()
		return []comm.Call{
			{Comm: c, Kind: comm.KindRecv, Peer: peer, Count: len(in), DType: kernels.Int32, Dst: kernels.MemOf(in)},
			{Comm: c, Kind: comm.KindSend, Peer: peer, Count: len(out), DType: kernels.Int32, Src: kernels.MemOf(out)},
		}
	}
	begin := func(t *testing.T) []*comm.Comm {
		comms := world(t, 2, func(r int, c *comm.Config) {
			transports()["shm"](r, c)
			c.Driver = engine.NewDriver()
		})
		for range 3 {
			each(2, func(r int) {
				in := []int32{0}
				require.NoError(t, comm.Group(background, both(comms[r], []int32{int32(r + 1)}, in)...))
				require.Equal(t, int32(2-r), in[0])
			})
		}
		return comms
	}
	t.Run("argument", func(t *testing.T) {
		comms := begin(t)
		wrong := []func(*comm.Call){
			func(x *comm.Call) { x.Src.Bytes-- }, func(x *comm.Call) { x.Src.Ptr = nil }, func(x *comm.Call) { x.Count = -1 }, func(x *comm.Call) { x.Root = 1 },
			func(x *comm.Call) { x.Peer = 2 }, func(x *comm.Call) { x.Peer = -1 }, func(x *comm.Call) { x.DType = 99 }, func(x *comm.Call) { x.Comm = nil },
		}
		for i, wrong := range wrong {
			send := both(comms[0], []int32{1}, []int32{0})[1:]
			wrong(&send[0])
			require.ErrorIs(t, comm.Group(background, send[0], send[0]), comm.ErrArgument, i)
		}
		each(2, func(r int) {
			in := []int32{0}
			require.NoError(t, comm.Group(background, both(comms[r], []int32{int32(r + 5)}, in)...))
			require.Equal(t, int32(6-r), in[0])
		})
	})
	t.Run("mismatch", func(t *testing.T) {
		comms := begin(t)
		each(2, func(r int) {
			err := comm.Group(background, both(comms[r], make([]int32, 1), make([]int32, 1+r))...)
			if r == 1 { // rank 0 has what it wants
				require.ErrorIs(t, err, comm.ErrAborted)
				require.ErrorContains(t, err, "rank 0 sent 1 int32, rank 1 received 2 int32")
			}
		})
	})
	t.Run("context", func(t *testing.T) {
		comms := begin(t)
		ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
		defer cancel()
		err := comm.Group(ctx, both(comms[0], []int32{1}, []int32{0})...)
		require.ErrorIs(t, err, comm.ErrAborted)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("left", func(t *testing.T) {
		comms := begin(t)
		require.NoError(t, comms[1].Close())
		err := comm.Group(background, both(comms[0], []int32{1}, []int32{0})...)
		require.ErrorIs(t, err, comm.ErrAborted)
		require.ErrorContains(t, err, "rank 1")
	})
}
