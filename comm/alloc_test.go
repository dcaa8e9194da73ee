package comm

import (
	"errors"
	"log/slog"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective/engine"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport"
)

// arena gives out one piece of memory.
type arena struct {
	transport.Endpoint
	memory []byte
	log    *[]string
	lost   bool // it is not the arena's any more
}

func (a *arena) Alloc(int64) (unsafe.Pointer, error) { return unsafe.Pointer(&a.memory[0]), nil }
func (a *arena) Owns(p unsafe.Pointer, n int64) bool { return !a.lost }
func (a *arena) Close() error {
	*a.log = append(*a.log, "close")
	return nil
}

func (a *arena) Free(unsafe.Pointer) error {
	*a.log = append(*a.log, "free")
	return nil
}

// device registers memory.
type device struct {
	arena
	registered kernels.Mem
	refuses    bool
	reads      bool // the memory, for others
}

func (d *device) Name() string { return "device" }
func (d *device) Register(m kernels.Mem) (transport.Region, error) {
	if d.refuses {
		return nil, errors.New("no")
	}
	d.registered = m
	return &area{d: d}, nil
}

type area struct {
	transport.Region
	d *device
}

func (a *area) Close() error {
	if a.d.reads {
		return errors.New("operations use it")
	}
	a.d.registered = kernels.Mem{}
	*a.d.log = append(*a.d.log, "withdraw")
	return nil
}

// TestAllocatedIsRegistered: what the first endpoint gave out is registered with the others in whole pages, and withdrawn before it is freed;
// whether a message may be lent is the first's to say. One that cannot register it copies messages.
func TestAllocatedIsRegistered(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		var log []string
		a := &arena{memory: make([]byte, 8192), log: &log}
		d := &device{arena: arena{log: &log}, refuses: refuses}
		c := &Comm{family: &family{driver: engine.NewDriver(), endpoints: []transport.Endpoint{a, d}, log: slog.New(slog.DiscardHandler)}}
		m, err := c.Alloc(5000)
		require.NoError(t, err)
		require.EqualValues(t, 5000, m.Bytes)
		if !refuses {
			page := int64(os.Getpagesize())
			require.Equal(t, kernels.Mem{Ptr: m.Ptr, Bytes: (5000 + page - 1) / page * page}, d.registered)
		}
		require.True(t, c.shared(m.Ptr, 5000))
		a.lost = true
		require.False(t, c.shared(m.Ptr, 5000), "the device's registration may be of pages that are not there any more")
		if !refuses {
			d.reads = true
			require.ErrorContains(t, c.Free(m), "operations use it")
			require.Empty(t, log, "the device knows these pages")
			d.reads = false
		}
		require.NoError(t, c.Free(m))
		require.Equal(t, map[bool][]string{false: {"withdraw", "free"}, true: {"free"}}[refuses], log)
		require.Zero(t, d.registered)

		_, err = c.Alloc(0)
		require.NoError(t, err)
		log = nil
		require.NoError(t, c.family.close())
		require.Equal(t, map[bool][]string{false: {"withdraw", "close", "close"}, true: {"close", "close"}}[refuses], log)

		log = nil // an Alloc that a Close overtook
		c.family.endpoints = []transport.Endpoint{a, d}
		c.family.register(a, m)
		require.Equal(t, map[bool][]string{false: {"withdraw"}, true: nil}[refuses], log)
		require.Empty(t, c.family.regions)
	}
}
