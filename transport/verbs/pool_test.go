//go:build linux && cgo

package verbs

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestPool: blocks never overlap, are used again, and chunks go with their last block, but for the first and those that are kept.
func TestPool(t *testing.T) {
	p, err := newPool(nil, 10_000, Config{Chunk: 64 << 10, Pool: 256 << 10})
	require.NoError(t, err)
	require.EqualValues(t, 64<<10, p.held(), "the first chunk is there from the beginning")
	var all []block
	for {
		b, err := p.take()
		if err != nil {
			require.ErrorIs(t, err, transport.ErrSpace)
			require.ErrorContains(t, err, "the pool has 262144")
			break
		}
		require.GreaterOrEqual(t, len(b.bytes), 10_000)
		for i := range b.bytes {
			b.bytes[i] = byte(len(all))
		}
		all = append(all, b)
	}
	require.Len(t, all, 4*(64<<10/10_048))
	for i, b := range all {
		for _, v := range b.bytes {
			require.EqualValues(t, i, v)
		}
	}
	kept := all[len(all)-1].of
	kept.keep = true
	for _, b := range all {
		require.NoError(t, p.give(b))
	}
	require.EqualValues(t, 128<<10, p.held())
	again, err := p.take()
	require.NoError(t, err)
	require.NoError(t, p.give(again))
	require.NoError(t, p.close())
	require.Zero(t, p.held())
}

// TestPoolIsNotInherited: a forked child does not get the memory, whose copy-on-write would part us from the pages that a device has pinned.
func TestPoolIsNotInherited(t *testing.T) {
	p, err := newPool(nil, 1<<20, Config{})
	require.NoError(t, err)
	defer p.close()
	maps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	inside, flags := false, ""
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= block{bytes: p.chunks[0].bytes}.addr() && block{bytes: p.chunks[0].bytes}.addr() < to
		}
		if rest, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			flags = rest
		}
	}
	require.Contains(t, strings.Fields(flags), "dc")
}

// TestChunkDeregistersOnce: memory of which one device has not let go stays mapped, and the other devices are asked once.
func TestChunkDeregistersOnce(t *testing.T) {
	b, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	first, second, third := &pin{}, &pin{stuck: true}, &pin{}
	r := &chunk{bytes: b, mrs: []registered{first, second, third}}
	require.ErrorIs(t, r.close(), syscall.EBUSY)
	b[0] = 1
	second.stuck = false
	require.NoError(t, r.close())
	require.Equal(t, []int{1, 1, 1}, []int{first.closed, second.closed, third.closed})
}
