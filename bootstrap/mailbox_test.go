package bootstrap_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

var bg = context.Background()

// Every rank sends to every rank, itself included, several tags in another order than they are received, sizes from nothing to
// more than a connection's buffers.
func TestMessagesMatchByRankAndTag(t *testing.T) {
	exchange := func(ctx context.Context, s bootstrap.Session) {
		for to := range s.Size() {
			for _, tag := range []uint64{3, 1, 2, 1 << 63} {
				for k := range 3 {
					if !assert.NoError(t, s.Send(ctx, to, tag, block(s.Rank()+int(tag%7), k))) {
						return
					}
				}
			}
		}
		for from := range s.Size() {
			for _, tag := range []uint64{1 << 63, 2, 3, 1} {
				for k := range 3 {
					got, err := s.Recv(ctx, from, tag)
					if !assert.NoError(t, err) {
						return
					}
					if !bytes.Equal(block(from+int(tag%7), k), got) {
						t.Errorf("message %d of tag %d from %d to %d is wrong", k, tag, from, s.Rank())
					}
				}
			}
		}
		assert.NoError(t, s.Barrier(ctx))
	}
	for _, n := range []int{1, 2, 3, 7} {
		job(t, n, func(s bootstrap.Session) { exchange(bg, s) })
	}
	checkLeaks(t)
	loopback(t, 6, exchange)
}

func TestBigMessagesBothWays(t *testing.T) {
	loopback(t, 2, func(ctx context.Context, s bootstrap.Session) {
		want := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // 16 MiB
		for range 3 {
			assert.NoError(t, s.Send(ctx, 1-s.Rank(), 5, want))
		}
		for range 3 {
			got, err := s.Recv(ctx, 1-s.Rank(), 5)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(want, got))
		}
	})
}

func TestRecvFirstAndFromSeveralGoroutines(t *testing.T) {
	job(t, 2, func(s bootstrap.Session) {
		if s.Rank() == 0 {
			time.Sleep(time.Second)
			for k := range 10 {
				assert.NoError(t, s.Send(bg, 1, 9, []byte{byte(k)}))
			}
			_, err := s.Recv(bg, 1, 10)
			assert.NoError(t, err)
			return
		}
		got := make([]int, 10)
		each(10, func(int) {
			b, err := s.Recv(bg, 0, 9)
			if assert.NoError(t, err) {
				got[b[0]]++
			}
		})
		assert.Equal(t, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, got)
		assert.NoError(t, s.Send(bg, 0, 10, nil))
	})
}

func TestRecvEndsWithItsContext(t *testing.T) {
	job(t, 2, func(s bootstrap.Session) {
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		_, err := s.Recv(ctx, 1-s.Rank(), 1)
		var late *bootstrap.LateError
		if assert.ErrorAs(t, err, &late) {
			assert.Equal(t, []int{1 - s.Rank()}, late.Missing)
		}
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.NoError(t, s.Barrier(bg))
		// The one that gave up takes no message away.
		assert.NoError(t, s.Send(bg, 1-s.Rank(), 1, []byte("late")))
		got, err := s.Recv(bg, 1-s.Rank(), 1)
		assert.NoError(t, err)
		assert.Equal(t, "late", string(got))
		assert.NoError(t, s.Barrier(bg))
	})
}

func TestBadRanksAndSizes(t *testing.T) {
	job(t, 2, func(s bootstrap.Session) {
		assert.ErrorContains(t, s.Send(bg, 2, 0, nil), "rank 2; this session has ranks 0 to 1")
		assert.ErrorContains(t, s.Send(bg, -1, 0, nil), "rank -1")
		assert.ErrorContains(t, s.Send(bg, 1, 0, make([]byte, bootstrap.MaxPayload+1)), "67108865 bytes")
		_, err := s.Recv(bg, 2, 0)
		assert.ErrorContains(t, err, "rank 2; this session has ranks 0 to 1")
		assert.NoError(t, s.Barrier(bg))
	})
}

func TestTooManyUnexpectedMessages(t *testing.T) {
	job(t, 3, func(s bootstrap.Session) {
		if s.Rank() == 0 {
			for k := 0; ; k++ {
				err := s.Send(bg, 1, uint64(k), make([]byte, 1<<20))
				if err != nil {
					assert.ErrorIs(t, err, bootstrap.ErrAborted)
					assert.Greater(t, k, 64)
					break
				}
			}
		}
		n, ok := <-s.Aborted()
		assert.True(t, ok)
		assert.Equal(t, 1, n.From)
		assert.Contains(t, n.Reason, "rank 0 sent a message (tag 0x40, 1048576 bytes) for which nobody called Recv")
	})
}

// Messages that were sent before a rank closed still arrive, also those over a connection that is younger than the news.
func TestMessagesOfARankThatClosed(t *testing.T) {
	for seed := range 20 {
		inMemory(t, func(t *testing.T, n *bootstraptest.Net, id bootstrap.ID) {
			sessions := joinAll(t, n, id, 7)
			from, to := seed%7, (seed%7+3)%7 // no neighbours
			each(7, func(r int) {
				s := sessions[r]
				switch r {
				case from:
					for k := range 3 {
						assert.NoError(t, s.Send(bg, to, 1, []byte(fmt.Sprint(k))))
					}
					s.Close()
				case to:
					time.Sleep(time.Duration(seed%3) * time.Second)
					for k := range 3 {
						got, err := s.Recv(bg, from, 1)
						assert.NoError(t, err)
						assert.Equal(t, fmt.Sprint(k), string(got))
					}
					_, err := s.Recv(bg, from, 1)
					assert.ErrorIs(t, err, bootstrap.ErrClosed)
					assert.ErrorContains(t, err, fmt.Sprintf("rank %d (192.0.2.%d:", from, from+1))
					assert.ErrorIs(t, s.Send(bg, from, 1, nil), bootstrap.ErrClosed)
				default:
					time.Sleep(time.Minute)
				}
			})
			closeAll(sessions)
			require.Zero(t, n.Conns())
		})
	}
}
