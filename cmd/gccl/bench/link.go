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
	"github.com/gccl-project/gccl/kernels/cuda"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/spin"
	"golang.org/x/sys/unix"
)

// Link measures one connection of a transport between two ranks, without collectives, as perftest measures RDMA, and prints its columns.
type Link struct {
	Kind   LinkKind
	Sizes  []int // bytes; of AtomicLat, 8
	Iters  int
	Warmup int
	GPU    *cuda.Device // whose memory one-sided operations use; nil: the host's
}

// LinkKind is what is measured, by perftest's names.
type LinkKind string

// Kinds of measurements.
const (
	WriteBW   LinkKind = "write_bw"   // bandwidth of messages from rank 0 to rank 1
	WriteLat  LinkKind = "write_lat"  // half the time of a message to and fro
	ReadBW    LinkKind = "read_bw"    // bandwidth of rank 0's reading rank 1's memory
	AtomicLat LinkKind = "atomic_lat" // time that rank 0 takes to add to 8 bytes of rank 1's memory
)

// Latency reports whether it is a time, not a bandwidth.
func (k LinkKind) Latency() bool { return k == WriteLat || k == AtomicLat }

// OneSided reports whether rank 1 takes no part, which not all transports can.
func (k LinkKind) OneSided() bool { return k == ReadBW || k == AtomicLat }

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
// MB is 2^20 bytes, as with perftest. The peak, of any number of messages, is the greatest bandwidth between the acceptance of one and the return of
// the memory of one at least linkWindow later.
func (l Link) Run(ctx context.Context, s bootstrap.Session, e transport.Endpoint, out io.Writer) error {
	if err := l.checkMemory(availableMemory()); err != nil {
		return err
	}
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
	end := &linkEnd{ctx: ctx, e: e, stream: c.Stream(0), first: s.Rank() == 0, rests: !l.Kind.Latency()}
	if !end.first {
		out = io.Discard
	}
	head := " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
	if l.Kind.Latency() {
		head = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]" +
			"   99.9% percentile[usec]"
	}
	if _, err := fmt.Fprintln(out, head); err != nil {
		return err
	}
	if _, err := end.latency(make([]byte, 1), 1); err != nil { // which waits until they are connected
		return err
	}
	for _, n := range l.Sizes {
		line, err := l.measure(ctx, s, end, c, n, out)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	if err := c.Close(); err != nil {
		return err
	}
	return s.Barrier(ctx)
}

// noteBytes is what an end notes of a message at most, in bytes: when it was posted and completed, and a place on peak's hull.
const noteBytes = 24

// checkMemory returns an error when what both ends note of the messages can't fit a host of so many bytes, which both may be on.
func (l Link) checkMemory(available int64) error {
	flag, n := "-n", l.Iters
	if l.Warmup > n {
		flag, n = "-w", l.Warmup
	}
	if need := 2 * noteBytes * uint64(n); need > uint64(available) {
		return fmt.Errorf("%s %d needs %s for the times of the messages, this host has %s available in all", flag, n, human(need), human(uint64(available)))
	}
	return nil
}

// measure measures messages, or operations, of n bytes.
func (l Link) measure(ctx context.Context, s bootstrap.Session, end *linkEnd, c transport.Conn, n int, out io.Writer) (line string, err error) {
	b := make([]byte, n)
	f := func(times int) (string, error) { return end.bandwidth(b, times) }
	switch {
	case l.Kind == WriteLat:
		f = func(times int) (string, error) { return end.latency(b, times) }
	case l.Kind.OneSided():
		r, err := newReach(ctx, s, end, c, l.GPU, n)
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, r.close()) }()
		if l.GPU != nil {
			if _, err := fmt.Fprintln(out, "#", r.region); err != nil {
				return "", err
			}
		}
		f = r.reads
		if l.Kind == AtomicLat {
			f = r.atomics
		}
	}
	if _, err := f(l.Warmup); err != nil {
		return "", err
	}
	return f(l.Iters)
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

// linkLook is how many messages go by between looks whether the measurement is to end.
const linkLook = 4096

// ended is the reason why the measurement is to end, if it is. It looks at some messages only, by their number: until does not look as long as
// there is nothing to wait for.
func (x *linkEnd) ended(message int) error {
	if message%linkLook != 0 || x.ctx.Err() == nil {
		return nil
	}
	return context.Cause(x.ctx)
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
	if ok, err := x.stream.Send(linkTag, linkBuf(b)); ok || err != nil {
		return err
	}
	return x.until(func() (bool, error) { return x.stream.Send(linkTag, linkBuf(b)) })
}

func (x *linkEnd) receive(b []byte) error {
	x.await()
	if ok, err := x.stream.Recv(linkTag, linkBuf(b)); ok || err != nil {
		return err
	}
	return x.until(func() (bool, error) {
		x.await()
		return x.stream.Recv(linkTag, linkBuf(b))
	})
}

// await spins for a while on the word in memory that changes with the next message, where the stream has one. What else there is to be done
// takes far longer than the word takes to change, and a message that comes meanwhile waits for it; but as long as something of ours is not on
// its way, only Progress moves that.
func (x *linkEnd) await() {
	a, ok := x.stream.(transport.Awaiter)
	if !ok {
		return
	}
	spins := 1
	if n, err := x.stream.Sent(); err == nil && n == x.sent {
		spins = linkSpins
	}
	word, idle := a.Awaits()
	for ; word != nil && spins > 0 && !spin.WaitNot(word, idle, linkPolls); spins-- {
		spin.Preemptible()
	}
}

// linkPolls is how often that word is looked at before the goroutine can be stopped, and linkSpins how many times that: about 60 µs in all.
const (
	linkPolls = 64
	linkSpins = 32
)

// bandwidth sends b so many times, and waits for the answer to the last one.
func (x *linkEnd) bandwidth(b []byte, times int) (string, error) {
	if times == 0 {
		return "", nil
	}
	answer := make([]byte, 1)
	if !x.first {
		for i := range times {
			err := x.until(func() (bool, error) {
				p, err := x.stream.View(linkTag, len(b))
				return p != nil, err
			})
			if err := errors.Join(err, x.stream.Release(), x.ended(i)); err != nil {
				return "", err
			}
		}
		return "", x.send(answer)
	}
	before := x.sent
	return x.flow(times, len(b), func() (bool, error) {
		ok, err := x.stream.Send(linkTag, linkBuf(b))
		if ok {
			x.sent++
		}
		return ok, err
	}, func() (uint64, error) {
		n, err := x.stream.Sent()
		return n - before, err
	}, func() error { return x.receive(answer) })
}

// flow begins something of so many bytes so many times and waits until all of it is finished, and for the end. It returns perftest's line.
func (x *linkEnd) flow(times, bytes int, begin func() (bool, error), finished func() (uint64, error), end func() error) (string, error) {
	posted, done := make([]time.Duration, times), make([]time.Duration, 0, times)
	start := time.Now()
	note := func() error {
		n, err := finished()
		for now := time.Since(start); uint64(len(done)) < n; {
			done = append(done, now)
		}
		return err
	}
	for i := range times {
		if err := errors.Join(x.ended(i), x.until(begin), note()); err != nil {
			return "", err
		}
		posted[i] = time.Since(start)
	}
	if err := x.until(func() (bool, error) { return len(done) == times, note() }); err != nil {
		return "", err
	}
	if err := end(); err != nil {
		return "", err
	}
	all := pace{time.Since(start), times}
	best, err := peak(x.ctx, posted, done, all)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(" %-10d %-15d %-18.2f %-20.2f %.6f", bytes, times, best.rate(bytes), all.rate(bytes), float64(times)/all.took.Seconds()/1e6), nil
}

// latency sends b to and fro so many times. A time is half of a round trip.
func (x *linkEnd) latency(b []byte, times int) (string, error) {
	if times == 0 {
		return "", nil
	}
	got := make([]byte, len(b))
	us := make([]float64, 0, times)
	// One look at the clock a round, and none at the other end: in an emulated machine it may cost as much as the message. Since looks at
	// one clock, Now at two.
	start, last := time.Now(), time.Duration(0)
	for i := range times {
		if err := x.ended(i); err != nil {
			return "", err
		}
		if x.first {
			if err := x.send(b); err != nil {
				return "", err
			}
		}
		if err := x.receive(got); err != nil {
			return "", err
		}
		if !x.first {
			if err := x.send(b); err != nil {
				return "", err
			}
		} else {
			now := time.Since(start)
			us = append(us, float64((now-last).Nanoseconds())/2000)
			last = now
		}
	}
	if !x.first {
		return "", nil
	}
	// What was sent last is still ours to keep alive until the peer has it, which its next message or close says.
	return latencies(len(b), us), nil
}

// latencies is perftest's line of times in microseconds.
func latencies(bytes int, us []float64) string {
	times := len(us)
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
		bytes, times, us[0], us[times-1], us[times/2], mean, math.Sqrt(squares/float64(times)), at(0.99), at(0.999))
}
