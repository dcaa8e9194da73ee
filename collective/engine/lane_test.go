package engine

import (
	"context"
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/transport"
)

// echo is a conn and stream whose peer's messages are always there: what is left is the engine's own cost.
type echo struct {
	sent uint64
	buf  [64]byte
}

func (e *echo) Stream(int) transport.Stream              { return e }
func (e *echo) Peer() string                             { return "echo" }
func (e *echo) Met() bool                                { return true }
func (e *echo) Close() error                             { return nil }
func (e *echo) Send(uint32, transport.Buf) (bool, error) { e.sent++; return true, nil }
func (e *echo) Sent() (uint64, error)                    { return e.sent, nil }
func (e *echo) Recv(uint32, transport.Buf) (bool, error) { return true, nil }
func (e *echo) View(uint32, int) (unsafe.Pointer, error) { return unsafe.Pointer(&e.buf), nil }
func (e *echo) Release() error                           { return nil }

func addFloat32(dst unsafe.Pointer, srcs []unsafe.Pointer, n int) {
	for i := range n {
		var sum float32
		for _, s := range srcs {
			sum += *(*float32)(unsafe.Add(s, 4*i))
		}
		*(*float32)(unsafe.Add(dst, 4*i)) = sum
	}
}

func echoPort(d *Driver, ranks int) *Port {
	conns := make([]echo, ranks)
	return d.NewPort(PortOptions{Ranks: ranks, Lanes: 1, Streams: 1, Dial: func(_, peer int) (transport.Conn, error) { return &conns[peer], nil }})
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	run := echoCall(t, "oneshot", 2)
	require.Zero(t, testing.AllocsPerRun(100, run))
}

// echoCall returns a call of 8 bytes on rank 0 through Port and Wait.
func echoCall(t testing.TB, algorithm string, n int) func() {
	s, err := collective.Build(collective.Shape{Kind: collective.AllReduce, Ranks: n}, 0, algorithm)
	require.NoError(t, err)
	plan, err := collective.Compile(s, collective.Options{})
	require.NoError(t, err)
	port := echoPort(NewDriver(), n)
	in, out := make([]float32, 2), make([]float32, 2)
	task := &Task{Plan: plan, Layout: collective.Layout{Count: 2, Elem: 4, Round: 1 << 16, Pieces: plan.Pieces}, Stride: 1,
		In: unsafe.Pointer(&in[0]), Out: unsafe.Pointer(&out[0]), Fold: addFloat32}
	tasks := []*Task{task}
	var c Call
	ctx := context.Background()
	return func() {
		holds := port.TryStart(&c, 0, tasks...)
		if err := c.Wait(ctx, holds); err != nil {
			panic(err)
		}
	}
}

// BenchmarkLane is the engine's own cost of a call: no transport, no waiting.
func BenchmarkLane(b *testing.B) {
	for _, bench := range []struct {
		algorithm string
		ranks     int
	}{{"oneshot", 2}, {"ring", 8}} {
		b.Run(fmt.Sprintf("%s-%d", bench.algorithm, bench.ranks), func(b *testing.B) {
			run := echoCall(b, bench.algorithm, bench.ranks)
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}
