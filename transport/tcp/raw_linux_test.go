package tcp

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkAgainstRaw alternates slices of exchanges over an endpoint with slices
// over a bare pair of sockets, non-blocking and spun on, with tries of 512 KiB.
// It prints the median time of one exchange of each, and their ratio.
func BenchmarkAgainstRaw(b *testing.B) {
	for _, n := range []int{8, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20} {
		for _, flows := range []int{1, 4} {
			if flows > 1 && n < 1<<20 {
				continue
			}
			b.Run(fmt.Sprintf("%d/flows%d", n, flows), func(b *testing.B) {
				o := transport.Options{Streams: 1, MaxMessage: max(n, 64)}
				eps := loopback(flows, 0)(b, []transport.Options{o, o})
				defer eps[0].Close()
				defer eps[1].Close()
				var ours, raws [2]exchanger
				fds := rawPair(b)
				for i := range 2 {
					c, err := eps[i].Conn(transport.Key{Self: int32(i), Peer: int32(1 - i)}, eps[1-i].Address())
					require.NoError(b, err)
					in, out := make([]byte, n), make([]byte, n)
					ours[i] = &endpointExchange{e: eps[i], s: c.Stream(0),
						out: transport.Buf{Ptr: unsafe.Pointer(&out[0]), N: n}, in: transport.Buf{Ptr: unsafe.Pointer(&in[0]), N: n}}
					raws[i] = &rawExchange{fd: fds[i], out: out, in: in}
				}
				per := max(4, min(2000, (8<<20)/n))
				slice(b, ours, per)
				slice(b, raws, per)
				var our, raw []float64
				for b.Loop() {
					our = append(our, slice(b, ours, per))
					raw = append(raw, slice(b, raws, per))
				}
				slices.Sort(our)
				slices.Sort(raw)
				mine, bare := our[len(our)/2], raw[len(raw)/2]
				b.ReportMetric(mine, "ns/exchange")
				b.ReportMetric(bare, "ns/raw")
				b.ReportMetric(mine/bare, "ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

type exchanger interface{ exchange() error }

// slice times per exchanges between both ends and returns the nanoseconds of one.
func slice(b *testing.B, ends [2]exchanger, per int) float64 {
	done := make(chan error, 1)
	start := time.Now()
	side := func(x exchanger) error {
		for range per {
			if err := x.exchange(); err != nil {
				return err
			}
		}
		return nil
	}
	go func() { done <- side(ends[1]) }()
	require.NoError(b, side(ends[0]))
	require.NoError(b, <-done)
	return float64(time.Since(start).Nanoseconds()) / float64(per)
}

type endpointExchange struct {
	e       transport.Endpoint
	s       transport.Stream
	out, in transport.Buf
	count   uint64
}

func (x *endpointExchange) exchange() error {
	x.count++
	var sent, got bool
	for n := 1; ; n++ {
		var err error
		if !sent {
			if sent, err = x.s.Send(1, x.out); err != nil {
				return err
			}
		}
		if !got {
			if got, err = x.s.Recv(1, x.in); err != nil {
				return err
			}
		}
		if sent && got {
			if ours, err := x.s.Sent(); err != nil || ours == x.count {
				return err
			}
			x.e.Progress()
		}
		if n%64 == 0 {
			runtime.Gosched()
		}
	}
}

type rawExchange struct {
	fd      int
	out, in []byte
}

func (x *rawExchange) exchange() error {
	const most = 512 << 10
	wrote, read := 0, 0
	for n := 1; wrote < len(x.out) || read < len(x.in); n++ {
		if wrote < len(x.out) {
			k, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(x.fd), uintptr(unsafe.Pointer(&x.out[wrote])), uintptr(min(len(x.out)-wrote, most)), unix.MSG_NOSIGNAL, 0, 0)
			if errno == 0 {
				wrote += int(k)
			} else if errno != unix.EAGAIN {
				return errno
			}
		}
		if read < len(x.in) {
			k, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(x.fd), uintptr(unsafe.Pointer(&x.in[read])), uintptr(min(len(x.in)-read, most)))
			if errno == 0 {
				read += int(k)
			} else if errno != unix.EAGAIN {
				return errno
			}
		}
		if n%64 == 0 {
			runtime.Gosched()
		}
	}
	return nil
}

// rawPair is two ends of a TCP connection over loopback, non-blocking.
func rawPair(b *testing.B) (fds [2]int) {
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(b, err)
	defer unix.Close(listener)
	at := &unix.SockaddrInet4{Addr: netip.MustParseAddr("127.0.0.1").As4()}
	require.NoError(b, unix.Bind(listener, at))
	require.NoError(b, unix.Listen(listener, 1))
	name, err := unix.Getsockname(listener)
	require.NoError(b, err)
	fds[0], err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(b, err)
	require.NoError(b, unix.Connect(fds[0], name))
	fds[1], _, err = unix.Accept(listener)
	require.NoError(b, err)
	for _, fd := range fds {
		require.NoError(b, unix.SetNonblock(fd, true))
		require.NoError(b, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
		b.Cleanup(func() { unix.Close(fd) })
	}
	return fds
}
