//go:build linux && (amd64 || arm64)

package latency

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/shm"
	"github.com/gccl-project/gccl/transport/spin"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	bareBytes = 4096 + 8*timedMost
	peerEnv   = "GCCL_PINGPONG_PEER" // rank 0's address, the bare file and the number of rounds, for the process that is rank 1
	longest   = 1 << 20
	tag       = 7
	// giveUp bounds a wait: the other process may be dead.
	giveUp = 20 * time.Second
)

func options() transport.Options { return transport.Options{Streams: 2, MaxMessage: longest} }

func TestMain(m *testing.M) {
	if peer := os.Getenv(peerEnv); peer != "" {
		if err := serve(peer); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// bench is what one rank measures with.
type bench struct {
	rank       int
	bare       []uint64 // two lines from rank 0, two from rank 1
	at         uint64   // exchanges of bare lines so far
	ep         *shm.Endpoint
	stream     transport.Stream
	waiter     transport.Awaiter // stream
	src8, dst8 [2]float32
	src        unsafe.Pointer // from Alloc; two buffers of longest
	dst        unsafe.Pointer
	words      uint64  // messages so far
	took       []int64 // by iteration, of rank 1 in a timed slice; both map it
	comm       *comm.Comm
}

// sizes of the messages, and how they are exchanged in one slice.
type work struct {
	name  string
	bytes int // 0: bare lines
	lent  bool
	times int
	timed func(*bench) error // if set: this, each time after a barrier
}

// timedMost is the most iterations of a timed slice.
const timedMost = 1000

func plan() []work {
	w := []work{
		{name: "bare", times: 2000}, {name: "8B", bytes: 8, times: 2000}, {name: "48B", bytes: 48, times: 2000},
		{name: "barrier/bare", times: timedMost, timed: func(b *bench) error { return b.exchangeBare(1) }},
		{name: "barrier/all_reduce", times: timedMost, timed: (*bench).allReduce},
	}
	for _, n := range []int{1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 1 << 20} {
		times := max(4, min(500, 2<<20/n))
		w = append(w, work{fmt.Sprintf("%dB/copied", n), n, false, times, nil}, work{fmt.Sprintf("%dB/lent", n), n, true, times, nil})
	}
	return w
}

//go:noinline
func spun(start *time.Time, i int) error {
	if i%(1<<16) != 0 {
		return nil
	}
	if start.IsZero() {
		*start = time.Now()
	} else if time.Since(*start) > giveUp {
		return fmt.Errorf("the other rank was silent for %v", giveUp)
	}
	return nil
}

func await(word *uint64, idle uint64) error {
	var start time.Time
	for i := 1; !spin.WaitNot(word, idle, 64); i++ {
		if err := spun(&start, i); err != nil {
			return err
		}
	}
	return nil
}

// exchangeBare passes a line of {flag, payload} each way.
func (b *bench) exchangeBare(times int) error {
	for range times {
		b.at++
		mine, theirs := b.line(b.rank), b.line(1-b.rank)
		mine[1] = b.at ^ 0x5555
		atomic.StoreUint64(&mine[0], b.at)
		if atomic.LoadUint64(&theirs[0]) != b.at {
			if err := await(&theirs[0], max(b.at, 2)-2); err != nil {
				return err
			}
		}
		if theirs[1] != b.at^0x5555 {
			return fmt.Errorf("bare line %d holds %x", b.at, theirs[1])
		}
	}
	return nil
}

func (b *bench) line(rank int) []uint64 {
	at := rank*16 + int(b.at%2)*8
	return b.bare[at : at+8]
}

func (b *bench) view(n int) (unsafe.Pointer, error) {
	var start time.Time
	for i := 1; ; i++ {
		p, err := b.stream.View(tag, n)
		if p != nil || err != nil {
			return p, err
		}
		word, idle := b.waiter.Awaits()
		if word != nil {
			spin.WaitNot(word, idle, 64)
		}
		if err := spun(&start, i); err != nil {
			return nil, err
		}
	}
}

func (b *bench) send(buf transport.Buf) error {
	var start time.Time
	for i := 1; ; i++ {
		if ok, err := b.stream.Send(tag, buf); ok || err != nil {
			return err
		}
		if err := spun(&start, i); err != nil {
			return err
		}
	}
}

// exchange passes messages of n bytes each way. Every line of one is written
// first, as a user's data would be, into one of two buffers in turn, once the
// peer is done with it; long ones are copied out at the other end.
func (b *bench) exchange(n, times int, lent bool) error {
	dst := unsafe.Slice((*byte)(b.dst), n)
	for range times {
		if lent {
			if err := b.sent(max(b.words, 1) - 1); err != nil {
				return err
			}
		}
		b.words++
		src := unsafe.Add(b.src, b.words%2*longest)
		for at := 0; at < n; at += 64 {
			*(*uint64)(unsafe.Add(src, at)) = b.words + uint64(at)
		}
		if err := b.send(transport.Buf{Ptr: src, N: n, Shared: lent}); err != nil {
			return err
		}
		p, err := b.view(n)
		if err != nil {
			return err
		}
		if n > 64 {
			copy(dst, unsafe.Slice((*byte)(p), n))
			p = b.dst
		}
		first := *(*uint64)(p)
		last := *(*uint64)(unsafe.Add(p, (n-1)/64*64))
		if first != b.words || last != b.words+uint64((n-1)/64*64) {
			return fmt.Errorf("message %d of %d bytes begins with %d", b.words, n, first)
		}
		b.stream.Release()
	}
	return nil
}

// sent waits until the memory of n messages is ours again.
func (b *bench) sent(n uint64) error {
	var start time.Time
	for i := 1; ; i++ {
		if sent, err := b.stream.Sent(); err != nil || sent >= n {
			return err
		}
		if err := spun(&start, i); err != nil {
			return err
		}
	}
}

// allReduce is the public call, on 8 bytes.
func (b *bench) allReduce() error {
	return comm.AllReduce(context.Background(), b.comm, b.dst8[:], b.src8[:], kernels.Sum)
}

// runTimed times f after a barrier. On rank 0 it returns the median over iterations of the slower rank's time.
func (b *bench) runTimed(w work) (float64, error) {
	mine := make([]int64, w.times)
	if b.rank == 1 {
		mine = b.took
	}
	for i := range w.times {
		if err := b.exchangeBare(1); err != nil {
			return 0, err
		}
		start := time.Now()
		if err := w.timed(b); err != nil {
			return 0, err
		}
		mine[i] = time.Since(start).Nanoseconds()
	}
	if err := b.exchangeBare(1); err != nil { // rank 1's times are there
		return 0, err
	}
	times := make([]float64, w.times)
	for i := range times {
		times[i] = float64(max(mine[i], b.took[i]))
	}
	err := b.exchangeBare(1) // and read
	return median(times), err
}

func (b *bench) run(w work) error {
	if w.bytes == 0 {
		return b.exchangeBare(w.times)
	}
	return b.exchange(w.bytes, w.times, w.lent)
}

func (b *bench) open(bare string) error {
	fd, err := unix.Open(bare, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	p, err := unix.MmapPtr(fd, 0, nil, bareBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	b.bare = unsafe.Slice((*uint64)(p), 512)
	b.took = unsafe.Slice((*int64)(unsafe.Add(p, 4096)), timedMost)
	if b.ep, err = shm.Open(shm.Config{LendFrom: 64}, options()); err != nil {
		return err
	}
	for _, p := range []*unsafe.Pointer{&b.src, &b.dst} {
		if *p, err = b.ep.Alloc(2 * longest); err != nil {
			return err
		}
	}
	return unix.Close(fd)
}

func (b *bench) connect(peer []byte) error {
	c, err := b.ep.Conn(transport.Key{Comm: 1, Self: int32(b.rank), Peer: int32(1 - b.rank)}, peer)
	if err == nil {
		b.stream = c.Stream(0)
		b.waiter = b.stream.(transport.Awaiter)
	}
	return err
}

func join(rank int, text string) (*comm.Comm, error) {
	id, err := bootstrap.ParseID(text)
	if err != nil {
		return nil, err
	}
	return comm.New(context.Background(), comm.Config{Rank: rank, Size: 2, ID: id, Transport: "shm"})
}

// pin ties this goroutine to the k-th CPU that we may use.
func pin(k int) error {
	runtime.LockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return err
	}
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			if k--; k < 0 {
				one.Set(cpu)
				return unix.SchedSetaffinity(0, &one)
			}
		}
	}
	return errors.New("fewer than two CPUs")
}

// rounds of a benchmark.
const rounds = 301

// serve is rank 1: the same work in the same order.
func serve(peer string) error {
	var address, bare, id string
	var rounds int
	if _, err := fmt.Sscan(peer, &address, &bare, &rounds, &id); err != nil {
		return err
	}
	b := &bench{rank: 1}
	if err := b.open(bare); err != nil {
		return err
	}
	defer b.ep.Close()
	fmt.Println(hex.EncodeToString(b.ep.Address()))
	a, err := hex.DecodeString(address)
	if err != nil {
		return err
	}
	if err := b.connect(a); err != nil {
		return err
	}
	if b.comm, err = join(1, id); err != nil {
		return err
	}
	defer b.comm.Close()
	if err := pin(1); err != nil {
		return err
	}
	for range rounds {
		for _, w := range plan() {
			var err error
			if w.timed != nil {
				_, err = b.runTimed(w)
			} else {
				err = b.run(w)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// BenchmarkExchange reports the lower quartile over slices (other programs
// disturb many) of the time of an exchange, in which both ranks send and both
// receive; for 8 and 48 bytes the median ratio to bare lines of the same round;
// for long ones the gigabytes per second of one direction. It measures a fixed
// amount of work, once.
func BenchmarkExchange(b *testing.B) {
	if b.N > 1 {
		return
	}
	took := measure(b, rounds)
	for _, w := range plan() {
		b.ReportMetric(quartile(took[w.name]), w.name+"-ns")
		base := "bare"
		if w.timed != nil {
			base = "barrier/bare"
		}
		if w.bytes <= 48 && w.name != base {
			ratio := make([]float64, 0, rounds)
			for i, t := range took[w.name] {
				ratio = append(ratio, t/took[base][i])
			}
			b.ReportMetric(median(ratio), w.name+"/bare")
		}
		if w.bytes > 48 {
			b.ReportMetric(float64(w.bytes)/quartile(took[w.name]), w.name+"-GB/s")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// TestExchange checks what the benchmark passes on, between two processes.
func TestExchange(t *testing.T) {
	took := measure(t, 3)
	require.Len(t, took, len(plan()))
}

// measure is rank 0. It returns the nanoseconds per exchange of each slice but
// the first, which warms up.
func measure(b testing.TB, rounds int) map[string][]float64 {
	if runtime.NumCPU() < 2 {
		b.Skip("two CPUs are needed, one is there")
	}
	bare := filepath.Join(b.TempDir(), "bare")
	require.NoError(b, os.WriteFile(bare, make([]byte, bareBytes), 0o600))
	r := &bench{rank: 0}
	require.NoError(b, r.open(bare))
	defer r.ep.Close()
	cmd := exec.Command(os.Args[0])
	root, err := bootstrap.ListenRoot(context.Background(), bootstrap.RootConfig{Address: "127.0.0.1:0"})
	require.NoError(b, err)
	defer root.Close()
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%x %s %d %s", peerEnv, r.ep.Address(), bare, rounds, root.ID()))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	var text string
	_, err = fmt.Fscan(out, &text)
	require.NoError(b, err)
	a, err := hex.DecodeString(text)
	require.NoError(b, err)
	require.NoError(b, r.connect(a))
	r.comm, err = join(0, root.ID().String())
	require.NoError(b, err)
	defer r.comm.Close()
	require.NoError(b, pin(0)) // not before the other process has inherited all CPUs

	took := make(map[string][]float64)
	for k := range rounds {
		for _, w := range plan() {
			var each float64 // nanoseconds
			start := time.Now()
			if w.timed != nil {
				each, err = r.runTimed(w)
			} else {
				err = r.run(w)
				each = float64(time.Since(start).Nanoseconds()) / float64(w.times)
			}
			require.NoError(b, err, w.name)
			if k > 0 {
				took[w.name] = append(took[w.name], each)
			}
		}
	}
	require.NoError(b, cmd.Wait())
	return took
}

func median(x []float64) float64 { return slices.Sorted(slices.Values(x))[len(x)/2] }

func quartile(x []float64) float64 { return slices.Sorted(slices.Values(x))[len(x)/4] }
