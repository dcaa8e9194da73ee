//go:build linux && cgo

package verbs

import (
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pages maps whole pages, as who registers memory does.
func pages(tb testing.TB, n int) []byte {
	tb.Helper()
	b, err := unix.Mmap(-1, 0, n*unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, unix.Munmap(b)) })
	return b
}

// pin stands for a registration with one device, of which there may be a few.
type pin struct {
	of     map[*pin]bool
	stuck  bool // the device does not give it up
	closed int
}

func (*pin) LKey() uint32 { return 1 }
func (*pin) RKey() uint32 { return 2 }
func (p *pin) Close() error {
	if p.stuck {
		return fmt.Errorf("deregister: %w", syscall.EBUSY)
	}
	delete(p.of, p)
	p.closed++
	return nil
}

// pinning is a cache over a device that pins at most so many ranges.
func pinning(ranges int, most int64) (*cache, map[*pin]bool) {
	pins := map[*pin]bool{}
	return &cache{most: most, pins: func(*span) ([]registered, error) {
		if len(pins) == ranges {
			return nil, fmt.Errorf("register: %w", syscall.ENOMEM)
		}
		p := &pin{of: pins}
		pins[p] = true
		return []registered{p}, nil
	}}, pins
}

// TestCache: of ranges that nobody holds those give way that were used longest ago, whether the bound or the device has no room, and come
// back when they are used.
func TestCache(t *testing.T) {
	page := int64(unix.Getpagesize())
	for name, c := range map[string]struct {
		ranges int
		most   int64
	}{"bound": {100, 3 * page}, "device": {3, 0}} {
		t.Run(name, func(t *testing.T) {
			k, pins := pinning(c.ranges, c.most)
			memory := pages(t, 8)
			var spans []*span
			for i := range 4 {
				s, err := k.declare(kernels.MemOf(memory[2*int64(i)*page:][:page]))
				require.NoError(t, err)
				spans = append(spans, s)
			}
			require.Len(t, pins, 3)
			require.Nil(t, spans[0].mrs, "it was used longest ago")
			require.NoError(t, k.hold(spans[1]))
			require.NoError(t, k.hold(spans[0]))
			require.NotNil(t, spans[1].mrs)
			require.Nil(t, spans[2].mrs)
			require.NoError(t, k.hold(spans[3]))
			require.Equal(t, 3*page, k.pinned)
			require.Error(t, k.hold(spans[2]), "all are held")
			require.Zero(t, spans[2].holds.Load())
			k.letGo(spans[1])
			require.NoError(t, k.hold(spans[2]))
			require.Nil(t, spans[1].mrs)
			require.ErrorContains(t, k.withdraw(spans[2], 0), "1 operations use it")
			require.NoError(t, k.withdraw(spans[2], 1))
			require.NoError(t, k.withdraw(spans[1], 0))
			require.ErrorIs(t, k.hold(spans[1]), transport.ErrClosed)
			require.NoError(t, k.close())
			require.Empty(t, pins)
			require.Zero(t, k.pinned)
		})
	}
}

// TestCacheDeregistersOnce: a device that does not give up a registration keeps neither the others' from being closed nor has them closed
// again; the range is not used until it did.
func TestCacheDeregistersOnce(t *testing.T) {
	first, second, third := &pin{}, &pin{stuck: true}, &pin{}
	anew := []registered{&pin{}, &pin{}, &pin{}}
	k := &cache{pins: func(*span) ([]registered, error) { return []registered{first, second, third}, nil }}
	s, err := k.declare(kernels.MemOf(pages(t, 1)))
	require.NoError(t, err)
	k.pins = func(*span) ([]registered, error) { return anew, nil }
	for range 2 {
		k.mu.Lock()
		_, err = k.evict()
		k.mu.Unlock()
		require.ErrorIs(t, err, syscall.EBUSY)
	}
	require.ErrorIs(t, k.hold(s), syscall.EBUSY, "who used it would find no registration of its device's")
	require.Equal(t, []int{1, 0, 1}, []int{first.closed, second.closed, third.closed})
	require.EqualValues(t, unix.Getpagesize(), k.pinned)
	second.stuck = false
	require.NoError(t, k.hold(s))
	require.Equal(t, anew, s.mrs)
	require.NoError(t, k.withdraw(s, 1))
	require.Equal(t, []int{1, 1, 1}, []int{first.closed, second.closed, third.closed})
	require.Zero(t, k.pinned)
}

// TestCacheRanges: a part of a range is that range, what overlaps it is an error, and so is what is not whole pages.
func TestCacheRanges(t *testing.T) {
	k, pins := pinning(100, 0)
	page := int64(unix.Getpagesize())
	memory := pages(t, 8)
	whole, err := k.declare(kernels.MemOf(memory[2*page : 6*page]))
	require.NoError(t, err)
	for first := range int64(8) {
		for n := int64(1); first+n <= 8; n++ {
			s, err := k.declare(kernels.MemOf(memory[first*page : (first+n)*page]))
			switch {
			case first >= 2 && first+n <= 6:
				require.NoError(t, err)
				require.Same(t, whole, s)
			case first+n <= 2 || first >= 6:
				require.NoError(t, err)
				require.NotSame(t, whole, s)
			default:
				require.ErrorContains(t, err, "registered already")
				continue
			}
			require.NoError(t, k.withdraw(s, 0))
		}
	}
	require.Len(t, pins, 1, "each part but the first time for nothing")
	require.NoError(t, k.withdraw(whole, 0))
	require.Empty(t, pins)
	first := unsafe.Pointer(&memory[0])
	for _, bad := range []kernels.Mem{
		{}, {Ptr: first}, {Ptr: first, Bytes: page + 1}, {Ptr: unsafe.Add(first, 64), Bytes: page}, {Ptr: first, Bytes: -page}, {Bytes: page},
		{Ptr: unsafe.Add(nil, -page), Bytes: 2 * page},
	} {
		_, err := k.declare(bad)
		require.ErrorContains(t, err, "whole pages")
	}
	_, err = k.declare(kernels.Mem{Ptr: first, Bytes: math.MaxInt64 &^ (page - 1)})
	require.ErrorContains(t, err, "is that memory mapped?")
}

// TestCacheIsForkSafe: a pinned range is not inherited by children, and is again once it was let go.
func TestCacheIsForkSafe(t *testing.T) {
	k, _ := pinning(1, 0)
	memory := pages(t, 2)
	memory[0] = 1
	inherited := func() bool {
		b, err := os.ReadFile("/proc/self/smaps")
		require.NoError(t, err)
		here := false
		for line := range strings.Lines(string(b)) {
			var from, to uintptr
			if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
				here = from <= uintptr(unsafe.Pointer(&memory[0])) && uintptr(unsafe.Pointer(&memory[0])) < to
			}
			if here && strings.HasPrefix(line, "VmFlags:") {
				return !strings.Contains(line, " dc")
			}
		}
		t.Skip("this kernel does not tell the flags of mappings")
		return false
	}
	require.True(t, inherited())
	s, err := k.declare(kernels.MemOf(memory))
	require.NoError(t, err)
	require.False(t, inherited())
	require.NoError(t, k.withdraw(s, 0))
	require.True(t, inherited())
}

// wholeGPU says of any memory of its own that it is an allocation.
type wholeGPU struct{ GPU }

func (wholeGPU) Device() kernels.Device                        { return kernels.Device{Kind: kernels.CUDA} }
func (wholeGPU) Allocation(m kernels.Mem) (kernels.Mem, error) { return m, nil }

// TestCacheStagesLast: memory of a GPU's for which there is no room where it is has others give way first, and is staged only when none can;
// when it is pinned anew that is tried anew.
func TestCacheStagesLast(t *testing.T) {
	k, pins := pinning(100, 0)
	room, direct, pinned := 2, k.pins, map[*span]bool{}
	k.gpus = []GPU{wholeGPU{}}
	k.pins = func(s *span) ([]registered, error) {
		if !s.stages && len(pins) >= room {
			return nil, fmt.Errorf("register: %w", syscall.ENOMEM)
		}
		pinned[s] = s.stages
		return direct(s)
	}
	memory := pages(t, 3*gpuPage/unix.Getpagesize())
	var spans [3]*span
	for i := range spans {
		m := kernels.MemOf(memory[i*gpuPage:][:gpuPage])
		m.Device = wholeGPU{}.Device()
		s, err := k.declare(m)
		require.NoError(t, err)
		require.False(t, pinned[s], "range %d is staged", i)
		spans[i] = s
	}
	require.Len(t, pins, room)
	require.Nil(t, spans[0].mrs, "it was used longest ago")
	require.NoError(t, k.hold(spans[1]))
	require.NoError(t, k.hold(spans[2]))
	require.NoError(t, k.hold(spans[0]))
	require.True(t, pinned[spans[0]], "nothing else could give way")
	for _, s := range spans {
		k.letGo(s)
	}
	k.mu.Lock()
	require.NoError(t, k.unpin(spans[0]))
	require.NoError(t, k.unpin(spans[1]))
	k.mu.Unlock()
	require.NoError(t, k.hold(spans[0]))
	require.False(t, pinned[spans[0]], "there is room again")
	k.letGo(spans[0])
	require.NoError(t, k.close())
	require.Empty(t, pins)
}
