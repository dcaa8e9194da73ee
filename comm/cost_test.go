package comm

import (
	"context"
	"log/slog"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/collective/tune"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport"
)

// mirror is a conn and stream whose peer's messages are always there.
type mirror struct {
	sent uint64
	buf  [64]byte
}

func (e *mirror) Stream(int) transport.Stream              { return e }
func (e *mirror) Peer() string                             { return "mirror" }
func (e *mirror) Close() error                             { return nil }
func (e *mirror) Send(uint32, transport.Buf) (bool, error) { e.sent++; return true, nil }
func (e *mirror) Sent() (uint64, error)                    { return e.sent, nil }
func (e *mirror) Recv(uint32, transport.Buf) (bool, error) { return true, nil }
func (e *mirror) View(uint32, int) (unsafe.Pointer, error) { return unsafe.Pointer(&e.buf), nil }
func (e *mirror) Release() error                           { return nil }

// BenchmarkShortCall is what a call of 8 bytes costs apart from the exchange itself.
func BenchmarkShortCall(b *testing.B) {
	cfg, err := Config{Size: 2}.withDefaults()
	require.NoError(b, err)
	d := engine.NewDriver()
	model, err := tune.Default("shm")
	require.NoError(b, err)
	c := &Comm{world: []int{0, 1}, family: &family{cfg: cfg, log: slog.Default(), driver: d, model: model}}
	c.port = d.NewPort(engine.PortOptions{Ranks: 2, Lanes: 1, Streams: 1, Dial: func(int, int) (transport.Conn, error) { return &mirror{}, nil }})
	ctx := context.Background()
	dst, src := make([]float32, 2), make([]float32, 2)
	b.ReportAllocs()
	for b.Loop() {
		if err := AllReduce(ctx, c, dst, src, kernels.Sum); err != nil {
			b.Fatal(err)
		}
	}
}
