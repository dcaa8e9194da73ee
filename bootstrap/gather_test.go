package bootstrap_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// block is what a rank contributes to the k-th gather of a test: of another length for each, and big now and then.
func block(rank, k int) []byte {
	n := (rank*7 + k*13) % 50
	if (rank+k)%5 == 0 {
		n += 40_000
	}
	return bytes.Repeat([]byte{byte(rank), byte(k)}, n)
}

func gatherMany(t testing.TB, ctx context.Context, s bootstrap.Session, times int) {
	for k := range times {
		got, err := s.AllGather(ctx, block(s.Rank(), k))
		if !assert.NoError(t, err) || !assert.Len(t, got, s.Size()) {
			return
		}
		for r := range got {
			if !bytes.Equal(got[r], block(r, k)) {
				t.Errorf("gather %d on rank %d of %d: the block of rank %d is wrong (%d bytes)", k, s.Rank(), s.Size(), r, len(got[r]))
				return
			}
			clear(got[r]) // it is ours: nobody else may see this
		}
		if k%3 == 0 && !assert.NoError(t, s.Barrier(ctx)) {
			return
		}
	}
}

func TestAllGatherInMemory(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 64} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			job(t, n, func(s bootstrap.Session) { gatherMany(t, context.Background(), s, max(2, 10-n)) })
		})
	}
}

func TestAllGatherOverSockets(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 64} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			checkLeaks(t)
			loopback(t, n, func(ctx context.Context, s bootstrap.Session) { gatherMany(t, ctx, s, 4-n/32) })
		})
	}
}

// A barrier holds everybody until the last one comes.
func TestBarrierHolds(t *testing.T) {
	start := make([]time.Time, 6)
	var mu sync.Mutex
	job(t, 6, func(s bootstrap.Session) {
		time.Sleep(time.Duration(s.Rank()) * time.Second)
		mu.Lock()
		start[s.Rank()] = time.Now()
		mu.Unlock()
		assert.NoError(t, s.Barrier(context.Background()))
		mu.Lock()
		defer mu.Unlock()
		for r, at := range start {
			assert.False(t, at.IsZero(), "rank %d left the barrier before rank %d came", s.Rank(), r)
		}
	})
}

// Calls from several goroutines of a rank are done one after the other; here all bring the same, so the order is no matter.
func TestConcurrentCollectives(t *testing.T) {
	job(t, 3, func(s bootstrap.Session) {
		each(8, func(int) {
			got, err := s.AllGather(context.Background(), []byte{byte(s.Rank())})
			assert.NoError(t, err)
			assert.Equal(t, [][]byte{{0}, {1}, {2}}, got)
		})
	})
}

// Only the rank that did not call is named, whatever its place in the ring.
func TestUC02_LateRankIsNamed(t *testing.T) {
	job(t, 8, func(s bootstrap.Session) {
		for range 2 {
			assert.NoError(t, s.Barrier(context.Background()))
		}
		if s.Rank() == 5 {
			time.Sleep(5 * time.Second)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_, err := s.AllGather(ctx, []byte("x"))
		var late *bootstrap.LateError
		if assert.ErrorAs(t, err, &late) {
			assert.Equal(t, []int{5}, late.Missing)
			assert.Equal(t, uint64(4), late.Seq, "joining is the first")
			assert.Equal(t, 2*time.Second, late.Elapsed)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.ErrorIs(t, err, bootstrap.ErrTimeout)
			assert.Contains(t, err.Error(), "AllGather 4: nothing from ranks 5 after 2s")
		}
		assert.ErrorContains(t, s.Barrier(context.Background()), "collective 4 of this session was abandoned")
		time.Sleep(3 * time.Second)
	})
}

func TestBlocksThatAreTooLarge(t *testing.T) {
	s, err := bootstrap.Join(context.Background(), bootstrap.Config{World: 1})
	require.NoError(t, err)
	_, err = s.AllGather(context.Background(), make([]byte, bootstrap.MaxPayload+1))
	require.ErrorContains(t, err, "67108865 bytes")
	require.NoError(t, s.Close())

	job(t, 3, func(s bootstrap.Session) { // each is allowed, all together are not
		_, err := s.AllGather(context.Background(), make([]byte, bootstrap.MaxPayload/3+1))
		assert.ErrorIs(t, err, bootstrap.ErrAborted)
		assert.ErrorContains(t, err, "more than 67108864 bytes together")
	})
}

// A rank may close as soon as its last collective is done, while others still wait for blocks.
func TestClosingRightAfterACollective(t *testing.T) {
	for _, n := range []int{2, 3, 8, 33} {
		inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
			sessions := joinAll(t, net, id, n)
			each(n, func(r int) {
				_, err := sessions[r].AllGather(context.Background(), make([]byte, 100_000))
				assert.NoError(t, err)
				sessions[r].Close()
			})
		})
	}
	checkLeaks(t)
	for range 5 {
		loopback(t, 8, func(ctx context.Context, s bootstrap.Session) {
			_, err := s.AllGather(ctx, make([]byte, 100_000))
			assert.NoError(t, err)
		})
	}
}

func BenchmarkAllGather(b *testing.B) {
	for _, n := range []int{2, 8, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			loopback(b, n, func(ctx context.Context, s bootstrap.Session) {
				for range b.N {
					if _, err := s.AllGather(ctx, make([]byte, 200)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// What a rank sent before it closed may be lost where word of its end came another way: then a collective that waits for it ends within the
// limit for silence, counted from the call or the word, whichever is later. Until then it may still come.
func TestGatherLosesWhatWasSentBeforeAClose(t *testing.T) {
	inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
		s := joinAll(t, net, id, 2)
		each(2, func(r int) { assert.NoError(t, s[r].Barrier(bg)) })
		bootstrap.HearClosed(s[0], 1, 100)
		time.Sleep(time.Minute) // nothing is asked for, so nothing is missed
		for range 2 {
			go func() {
				time.Sleep(bootstrap.DefaultSilentAfter / 2)
				assert.NoError(t, s[1].Barrier(bg))
			}()
			require.NoError(t, s[0].Barrier(bg), "it was on its way")
		}
		begun := time.Now()
		ctx, cancel := context.WithTimeout(bg, time.Minute)
		defer cancel()
		err := s[0].Barrier(ctx)
		var gone *bootstrap.PeerError
		require.ErrorAs(t, err, &gone)
		require.Equal(t, bootstrap.Closed, gone.Status)
		require.Equal(t, 1, gone.Rank)
		require.ErrorContains(t, err, "did not arrive within 4s")
		require.WithinRange(t, time.Now(), begun.Add(bootstrap.DefaultSilentAfter), begun.Add(bootstrap.DefaultSilentAfter+2*bootstrap.DefaultHeartbeat))
		closeAll(s)
	})
}

// Word that a rank has closed may come a shorter way than what it waited for before, which goes from rank to rank, and where these are many, or slow, is on
// its way for longer than anybody may be silent.
func TestGatherComesFromFarBehindAClose(t *testing.T) {
	inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
		const n = 32
		net.Delay(func() time.Duration { return 400 * time.Millisecond })
		s := joinAll(t, net, id, n)
		each(n, func(r int) {
			if r == 5 {
				time.Sleep(30 * time.Second)
			}
			assert.NoError(t, s[r].Barrier(bg), "rank %d", r)
			assert.NoError(t, s[r].Close())
		})
	})
}
