//go:build linux && (amd64 || arm64)

package shm

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// FuzzSegmentFile: at a peer's address there is a file that holds anything, or is no file: an error that leaves nothing open and nothing
// mapped, or a peer whose whole segment can be read.
func FuzzSegmentFile(f *testing.F) {
	e := openIn(f, defaultDir)
	whole := slices.Clone(e.seg.bytes(0, int64(unsafe.Offsetof(header{}.piece))))
	for kind := range byte(4) {
		f.Add(whole, int64(e.seg.size), int64(e.seg.size), kind)
	}
	f.Add(whole, int64(len(whole)), int64(e.seg.size), byte(0)) // cut off
	f.Add(whole, int64(e.seg.size), int64(e.seg.size)*2, byte(0))
	f.Add(whole[:len(whole)-1], int64(len(whole)-1), int64(e.seg.size), byte(0))
	f.Add([]byte{}, int64(0), int64(e.seg.size), byte(0))
	for at := range whole {
		wrong := slices.Clone(whole)
		wrong[at]++
		f.Add(wrong, int64(e.seg.size), int64(e.seg.size), byte(0))
	}
	opts := e.opts
	n, err := parseName(filepath.Base(e.seg.path))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, content []byte, bytes, says int64, kind byte) {
		dir := segmentDir(t)
		self := *e.address
		n.random++
		self.path, self.size = filepath.Join(dir, n.String()), uint64(says)
		switch kind % 4 {
		case 0:
			require.NoError(t, os.WriteFile(self.path, content, 0o600))
			require.NoError(t, os.Truncate(self.path, min(max(bytes, 0), 1<<30)))
		case 1:
			require.NoError(t, os.Mkdir(self.path, 0o700))
		case 2:
			require.NoError(t, os.Symlink(e.seg.path, self.path))
		}
		held, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		p, err := reach(e, &self)
		if err == nil {
			require.Equal(t, says, p.size)
			require.Equal(t, kind%4, byte(0))
			_ = p.bytes(0, p.size)[p.size-1]
			p.close()
		}
		after, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		require.Len(t, after, len(held), "descriptors")
		h := new(header)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(h)), unsafe.Offsetof(h.piece)), content)
		if err := h.agrees(opts, &self); err == nil {
			require.Equal(t, self.size, h.size)
			require.Equal(t, uint64(opts.MaxMessage), h.maxMessage)
		}
	})
}

// FuzzStat: what the kernel says of a process, whose name may hold anything.
func FuzzStat(f *testing.F) {
	for _, text := range []string{"", ")", "4242 (a) b) S 1", "1 (x) S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 777 1", "1 (x) Z 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 777 1", "1 (x) S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 -7 1", "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 20000000000000000000"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if start, err := parseStart(text); err != nil {
			require.Zero(t, start)
		}
	})
}

// FuzzName: names of files in a folder that others write, too.
func FuzzName(f *testing.F) {
	for _, text := range []string{"", "gccl-", "gccl-test-123", "gccl-0-1-2-3-4", "gccl-00-4026531836-1-12345678-000000000000fedc", "gccl-0-4026531836-1-12345678-000000000000fedc", "gccl-0-4026531836-1-12345678-00000000000fedc", "gccl-x-4026531836-1-12345678-000000000000fedc"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseName(text); err == nil {
			require.Equal(t, text, n.String())
		}
	})
}
