package transporttest

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
)

// Bench measures two ranks on two goroutines: a ping-pong of 8 bytes, whose
// "ns/one-way" is half of a round trip, and exchanges (both send and both
// receive, as a step of a collective does) of 64 KiB, 1 MiB and 4 MiB, whose
// "GB/s" counts one direction.
func Bench(b *testing.B, open Provider) {
	b.Run("PingPong/8", func(b *testing.B) {
		bench(b, open, 8, pingPong)
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/one-way")
	})
	for _, n := range []int{8, 64 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprintf("Exchange/%d", n), func(b *testing.B) {
			bench(b, open, n, swap)
			b.ReportMetric(float64(n)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GB/s")
		})
	}
}

// bench runs side on both ranks, b.N times after a warm-up.
func bench(b *testing.B, open Provider, n int, side func(e transport.Endpoint, s transport.Stream, rank, n, times int) error) {
	o := transport.Options{Streams: 1, MaxMessage: max(n, 64)}
	eps := open(b, []transport.Options{o, o})
	defer eps[0].Close()
	defer eps[1].Close()
	streams := [2]transport.Stream{}
	for i := range 2 {
		if err := eps[i].Reach(b.Context(), eps[1-i].Address()); err != nil {
			b.Fatal(err)
		}
		c, err := eps[i].Conn(key(i, 1-i), eps[1-i].Address())
		if err != nil {
			b.Fatal(err)
		}
		streams[i] = c.Stream(0)
	}
	run := func(times int) {
		var other error
		done := make(chan struct{})
		go func() { defer close(done); other = side(eps[1], streams[1], 1, n, times) }()
		err := side(eps[0], streams[0], 0, n, times)
		<-done
		if err != nil || other != nil {
			b.Fatal(err, other)
		}
	}
	run(200)
	b.ReportAllocs()
	b.ResetTimer()
	run(b.N)
	b.StopTimer()
}

// spins counts polls that found nothing, and bounds them.
type spins struct {
	n     int
	since time.Time
}

//go:noinline
func (s *spins) nothing(e transport.Endpoint) error {
	e.Progress()
	if s.n++; s.n&63 == 0 {
		runtime.Gosched()
	}
	if s.n&(1<<16-1) == 0 {
		if s.since.IsZero() {
			s.since = time.Now()
		} else if time.Since(s.since) > patience {
			return fmt.Errorf("nothing moved for %v", patience)
		}
	}
	return nil
}

func pingPong(e transport.Endpoint, s transport.Stream, rank, n, times int) error {
	out, in := lend(make([]byte, n)), lend(make([]byte, n))
	before, err := s.Sent()
	if err != nil {
		return err
	}
	for range times {
		if rank == 0 {
			if err := sendSpin(e, s, out); err != nil {
				return err
			}
		}
		if err := recvSpin(e, s, in); err != nil {
			return err
		}
		if rank == 1 {
			if err := sendSpin(e, s, out); err != nil {
				return err
			}
		}
	}
	return flush(e, s, before+uint64(times))
}

func swap(e transport.Endpoint, s transport.Stream, _, n, times int) error {
	out, in := lend(make([]byte, n)), lend(make([]byte, n))
	before, err := s.Sent()
	if err != nil {
		return err
	}
	for range times {
		if err := sendSpin(e, s, out); err != nil {
			return err
		}
		if err := recvSpin(e, s, in); err != nil {
			return err
		}
	}
	return flush(e, s, before+uint64(times))
}

func sendSpin(e transport.Endpoint, s transport.Stream, b transport.Buf) error {
	var idle spins
	for {
		ok, err := s.Send(1, b)
		if ok || err != nil {
			return err
		}
		if err := idle.nothing(e); err != nil {
			return err
		}
	}
}

func recvSpin(e transport.Endpoint, s transport.Stream, b transport.Buf) error {
	var idle spins
	awaiter, spinnable := s.(transport.Awaiter)
	for {
		ok, err := s.Recv(1, b)
		if ok || err != nil {
			return err
		}
		if spinnable {
			if word, nothing := awaiter.Awaits(); word != nil {
				for n := 0; n < 1000 && atomic.LoadUint64(word) == nothing; n++ {
				}
			}
		}
		if err := idle.nothing(e); err != nil {
			return err
		}
	}
}

// flush drives e until Sent counts n messages of s.
func flush(e transport.Endpoint, s transport.Stream, n uint64) error {
	var idle spins
	for {
		done, err := s.Sent()
		if done >= n || err != nil {
			return err
		}
		if err := idle.nothing(e); err != nil {
			return err
		}
	}
}
