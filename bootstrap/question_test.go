package bootstrap_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/bootstrap/bootstraptest"
)

// Questions of all to all, many at once, are answered while everybody's own part waits in a collective that cannot complete.
func TestQuestions(t *testing.T) {
	var asked atomic.Int32
	run := func(ctx context.Context, s bootstrap.Session) {
		s.Answer(func(from int, q []byte) []byte {
			return append(binary.BigEndian.AppendUint32(nil, uint32(from*1000+s.Rank())), q...)
		})
		assert.NoError(t, s.Barrier(ctx)) // all have called Answer
		var stuck sync.WaitGroup
		if s.Rank() != 0 {
			stuck.Go(func() {
				assert.ErrorIs(t, s.Barrier(ctx), bootstrap.ErrAborted)
			})
		}
		for k := range 3 {
			if k == 2 && s.Rank() == 0 {
				s.Abort(errors.New("the third time on an aborted session"))
			}
			each(s.Size()*20, func(i int) {
				to := i % s.Size()
				text := bytes.Repeat([]byte{byte(i)}, []int{0, 5, 10_000}[i%3])
				got, err := s.Ask(ctx, to, text)
				if assert.NoError(t, err) {
					assert.True(t, bytes.Equal(append(binary.BigEndian.AppendUint32(nil, uint32(s.Rank()*1000+to)), text...), got))
				}
			})
		}
		stuck.Wait()
		asked.Add(1)
		for int(asked.Load()) < s.Size() { // nobody closes before all have asked
			time.Sleep(time.Millisecond)
		}
	}
	job(t, 5, func(s bootstrap.Session) { run(bg, s) })
	checkLeaks(t)
	asked.Store(0)
	loopback(t, 4, run)
}

// Each question of more than may be under way at once gets its answer.
func TestMoreQuestionsThanPlaces(t *testing.T) {
	job(t, 2, func(s bootstrap.Session) {
		s.Answer(func(_ int, q []byte) []byte { return q })
		assert.NoError(t, s.Barrier(bg))
		each(2000, func(i int) {
			got, err := s.Ask(bg, 1-s.Rank(), []byte{byte(i)})
			assert.NoError(t, err)
			assert.Equal(t, []byte{byte(i)}, got)
		})
		assert.NoError(t, s.Barrier(bg))
	})
}

func TestQuestionsThatGetNoAnswer(t *testing.T) {
	inMemory(t, func(t *testing.T, net *bootstraptest.Net, id bootstrap.ID) {
		s := joinAll(t, net, id, 5)
		_, err := s[0].Ask(bg, 1, nil)
		require.ErrorIs(t, err, bootstrap.ErrNoAnswer)
		require.ErrorContains(t, err, "rank 1 (192.0.2.2:")
		require.ErrorContains(t, err, "it has not called Answer")
		_, err = s[0].Ask(bg, 0, nil)
		require.ErrorIs(t, err, bootstrap.ErrNoAnswer)
		_, err = s[0].Ask(bg, 5, nil)
		require.ErrorContains(t, err, "rank 5; this session has ranks 0 to 4")
		_, err = s[0].Ask(bg, 1, make([]byte, bootstrap.MaxQuestion+1))
		require.ErrorContains(t, err, "1048577 bytes; it may have 1048576")

		s[1].Answer(func(int, []byte) []byte { return make([]byte, bootstrap.MaxQuestion+1) })
		_, err = s[0].Ask(bg, 1, make([]byte, bootstrap.MaxQuestion))
		require.ErrorIs(t, err, bootstrap.ErrNoAnswer)
		require.ErrorContains(t, err, "more than 1048576 bytes")

		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		hold, held := make(chan struct{}), make(chan struct{})
		s[2].Answer(func(int, []byte) []byte { close(held); <-hold; return nil })
		late := make(chan error, 1)
		go func() { _, err := s[0].Ask(ctx, 2, nil); late <- err }()
		err = <-late
		var l *bootstrap.LateError
		require.ErrorAs(t, err, &l)
		require.Equal(t, []int{2}, l.Missing)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		<-held
		close(hold)

		// A rank that dies, or closes, while it is asked ends the question at once.
		for _, end := range []struct {
			rank int
			is   error
			do   func()
		}{
			{3, bootstrap.ErrDead, func() { net.Kill(host(3)) }},
			{4, bootstrap.ErrClosed, func() { s[4].Close() }},
		} {
			hold, held := make(chan struct{}), make(chan struct{})
			s[end.rank].Answer(func(int, []byte) []byte { close(held); <-hold; return nil })
			done := make(chan error, 1)
			go func() { _, err := s[0].Ask(bg, end.rank, nil); done <- err }()
			<-held
			start := time.Now()
			go end.do()
			err := <-done
			require.ErrorIs(t, err, end.is)
			var peer *bootstrap.PeerError
			require.ErrorAs(t, err, &peer)
			require.Equal(t, end.rank, peer.Rank)
			require.LessOrEqual(t, time.Since(start), time.Second)
			close(hold)
			_, err = s[0].Ask(bg, end.rank, nil)
			require.ErrorIs(t, err, end.is)
		}
		s[0].Close()
		_, err = s[0].Ask(bg, 1, nil)
		require.ErrorIs(t, err, bootstrap.ErrClosed)
		_, err = s[0].Ask(bg, 0, nil)
		require.ErrorIs(t, err, bootstrap.ErrClosed)
		closeAll(s)
		require.Zero(t, net.Conns())
	})
}
