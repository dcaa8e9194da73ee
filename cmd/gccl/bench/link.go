package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/transport"
	"golang.org/x/sys/unix"
)

// Link measures one connection of a transport between two ranks, without collectives, as perftest measures RDMA, and prints its columns.
type Link struct {
	Latency bool // of messages to and fro; else bandwidth of messages from rank 0 to rank 1
	Sizes   []int
	Iters   int
	Warmup  int
}

// linkStreams is what the connection is made with; one stream is used.
const linkStreams = 1

// LinkOptions are what the endpoint for a Link has to be opened with.
func (l Link) LinkOptions(secret []byte) transport.Options {
	return transport.Options{Streams: linkStreams, MaxMessage: max(slices.Max(l.Sizes), transport.MinMessage), Secret: secret}
}

// linkEnd is one rank's part.
type linkEnd struct {
	ctx    context.Context
	e      transport.Endpoint
	stream transport.Stream
	first  bool
	rests  bool   // it sleeps when it has polled for nothing for a while, which costs latency
	sent   uint64 // messages
}

// Run measures, on both ranks of the session, and prints on rank 0. The endpoint was opened with LinkOptions and is still the caller's.
// MB is 2^20 bytes, as with perftest. The peak is the greatest bandwidth between the acceptance of any message and the return of the
// memory of any later one.
func (l Link) Run(ctx context.Context, s bootstrap.Session, e transport.Endpoint, out io.Writer) error {
	addresses, err := s.AllGather(ctx, e.Address())
	if err != nil {
		return err
	}
	peer := 1 - s.Rank()
	if err := e.Reach(ctx, addresses[peer]); err != nil {
		return err
	}
	c, err := e.Conn(transport.Key{Comm: s.ID(), Self: int32(s.Rank()), Peer: int32(peer)}, addresses[peer])
	if err != nil {
		return err
	}
	end := &linkEnd{ctx: ctx, e: e, stream: c.Stream(0), first: s.Rank() == 0, rests: !l.Latency}
	if !end.first {
		out = io.Discard
	}
	if l.Latency {
		fmt.Fprintln(out, " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]")
	} else {
		fmt.Fprintln(out, " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]")
	}
	if _, err := end.latency(make([]byte, 1), 1); err != nil { // which waits until they are connected
		return err
	}
	for _, n := range l.Sizes {
		measure := end.bandwidth
		if l.Latency {
			measure = end.latency
		}
		if _, err := measure(make([]byte, n), l.Warmup); err != nil {
			return err
		}
		line, err := measure(make([]byte, n), l.Iters)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, line)
	}
	if err := c.Close(); err != nil {
		return err
	}
	return s.Barrier(ctx)
}

// linkSpin is how long an end polls for nothing before it sleeps, which leaves the processor to whatever moves the messages.
const linkSpin = 100 * time.Microsecond

// until drives the endpoint until f is true.
func (x *linkEnd) until(f func() (bool, error)) error {
	idle := time.Time{}
	for polls := 1; ; polls++ {
		if ok, err := f(); ok || err != nil {
			return err
		}
		if x.e.Progress() {
			polls, idle = 0, time.Time{}
		}
		if polls%64 != 0 {
			continue
		}
		if idle.IsZero() {
			idle = time.Now()
		}
		if time.Since(idle) < linkSpin {
			continue
		}
		if err := x.ctx.Err(); err != nil {
			return err
		}
		if x.rests {
			x.sleep()
		}
	}
}

// sleep waits for news, but not long: what begins in the middle of our going to sleep may be none.
func (x *linkEnd) sleep() {
	p, ok := x.e.(transport.Pollable)
	if !ok {
		return
	}
	var events [8]unix.EpollEvent
	// Interrupted or not, we look again.
	_, _ = unix.EpollWait(p.FD(), events[:], 10)
}

const linkTag = 1

func linkBuf(b []byte) transport.Buf {
	return transport.Buf{Ptr: unsafe.Pointer(unsafe.SliceData(b)), N: len(b)}
}

func (x *linkEnd) send(b []byte) error {
	x.sent++
	return x.until(func() (bool, error) { return x.stream.Send(linkTag, linkBuf(b)) })
}

func (x *linkEnd) receive(b []byte) error {
	return x.until(func() (bool, error) { return x.stream.Recv(linkTag, linkBuf(b)) })
}

// bandwidth sends b so many times, and waits for the answer to the last one.
func (x *linkEnd) bandwidth(b []byte, times int) (string, error) {
	if times == 0 {
		return "", nil
	}
	answer := make([]byte, 1)
	if !x.first {
		for range times {
			err := x.until(func() (bool, error) {
				p, err := x.stream.View(linkTag, len(b))
				return p != nil, err
			})
			if err := errors.Join(err, x.stream.Release()); err != nil {
				return "", err
			}
		}
		return "", x.send(answer)
	}
	posted, done := make([]time.Duration, times), make([]time.Duration, 0, times)
	before := x.sent
	start := time.Now()
	note := func() error {
		n, err := x.stream.Sent()
		for now := time.Since(start); uint64(len(done)) < n-before; {
			done = append(done, now)
		}
		return err
	}
	for i := range times {
		if err := errors.Join(x.send(b), note()); err != nil {
			return "", err
		}
		posted[i] = time.Since(start)
	}
	if err := x.until(func() (bool, error) { return len(done) == times, note() }); err != nil {
		return "", err
	}
	if err := x.receive(answer); err != nil {
		return "", err
	}
	all := time.Since(start)
	best := all / time.Duration(times) // a message
	for i := 0; i < times; i++ {
		for j := i + 1; j < times; j++ { // one alone may be in memory at once
			if d := (done[j] - posted[i]) / time.Duration(j-i+1); d > 0 && j-i >= linkWindow {
				best = min(best, d)
			}
		}
	}
	rate := func(d time.Duration) float64 { return float64(len(b)) / (1 << 20) / d.Seconds() }
	mean := all / time.Duration(times)
	return fmt.Sprintf(" %-10d %-15d %-18.2f %-20.2f %.6f", len(b), times, rate(best), rate(mean), float64(times)/all.Seconds()/1e6), nil
}

// linkWindow is how many messages the peak is taken over at least: fewer would fit into memory on their way, and say nothing of the link.
const linkWindow = 64

// latency sends b to and fro so many times. A time is half of a round trip.
func (x *linkEnd) latency(b []byte, times int) (string, error) {
	if times == 0 {
		return "", nil
	}
	got := make([]byte, len(b))
	us := make([]float64, 0, times)
	for range times {
		start := time.Now()
		first, second := func() error { return x.send(b) }, func() error { return x.receive(got) }
		if !x.first {
			first, second = second, first
		}
		if err := first(); err != nil {
			return "", err
		}
		if err := second(); err != nil {
			return "", err
		}
		us = append(us, float64(time.Since(start).Nanoseconds())/2000)
	}
	// What was sent last is still ours to keep alive until the peer has it, which its next message or close says.
	sum, squares := 0.0, 0.0
	for _, t := range us {
		sum += t
	}
	mean := sum / float64(times)
	for _, t := range us {
		squares += (t - mean) * (t - mean)
	}
	slices.Sort(us)
	at := func(q float64) float64 { return us[min(times-1, int(math.Ceil(q*float64(times))))] }
	return fmt.Sprintf(" %-7d %-14d %-14.2f %-12.2f %-16.2f %-14.2f %-15.2f %-22.2f %.2f",
		len(b), times, us[0], us[times-1], us[times/2], mean, math.Sqrt(squares/float64(times)), at(0.99), at(0.999)), nil
}
