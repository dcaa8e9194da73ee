//go:build linux && (amd64 || arm64)

package shm

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// FuzzSegment: whoever listens at a peer's address hands over memory that holds anything, memory whose size may change, something else, or
// nothing: an error that leaves nothing open and nothing mapped, or a peer whose whole segment can be read.
func FuzzSegment(f *testing.F) {
	e := openIn(f, defaultDir)
	whole := slices.Clone(e.seg.bytes(0, int64(unsafe.Offsetof(header{}.piece))))
	for kind := range byte(6) {
		f.Add(whole, int64(e.seg.size), int64(e.seg.size), kind)
	}
	f.Add(whole, int64(len(whole)), int64(e.seg.size), byte(0)) // cut off
	f.Add(whole, int64(headerBytes), int64(e.seg.size), byte(0))
	f.Add(whole, int64(e.seg.size), int64(e.seg.size)*2, byte(0))
	f.Add(whole[:len(whole)-1], int64(len(whole)-1), int64(e.seg.size), byte(0))
	f.Add([]byte{}, int64(0), int64(e.seg.size), byte(0))
	for at := range whole {
		wrong := slices.Clone(whole)
		wrong[at]++
		f.Add(wrong, int64(e.seg.size), int64(e.seg.size), byte(0))
	}
	if got, err := unpack(nil, true); !errors.Is(err, unix.EMFILE) || got != (handed{-1, -1}) {
		f.Fatalf("without a descriptor that could be taken: %v %v", got, err)
	}
	opts := e.opts
	n, err := parseName(filepath.Base(e.door.path))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, content []byte, bytes, says int64, kind byte) {
		dir := segmentDir(t)
		self := *e.address
		n.random++
		self.path, self.size = filepath.Join(dir, n.String()), uint64(says)
		memory, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		require.NoError(t, err)
		process, err := unix.PidfdOpen(os.Getpid(), 0)
		require.NoError(t, err)
		defer unix.Close(process)
		hands := []int{memory, process}
		switch kind % 6 {
		case 1: // not sealed
		case 2:
			if hands[0], err = unix.Open(dir, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(hands[0])
		case 3:
			hands = nil
		case 4:
			hands = []int{memory, memory, memory, memory}
		}
		_, err = unix.Write(memory, content)
		require.NoError(t, err)
		require.NoError(t, unix.Ftruncate(memory, min(max(bytes, 0), 1<<36)))
		if kind%6 != 1 {
			_, err = unix.FcntlInt(uintptr(memory), unix.F_ADD_SEALS, seals)
			require.NoError(t, err)
		}
		held, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: self.path, Net: "unixpacket"})
		require.NoError(t, err)
		served := make(chan struct{})
		go func() {
			defer close(served)
			for {
				c, err := l.AcceptUnix()
				if err != nil {
					return
				}
				if kind%6 != 5 { // else it leaves without a word
					_, _, _ = c.WriteMsgUnix([]byte{1}, unix.UnixRights(hands...), nil)
				}
				c.Close()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		p, err := reach(ctx, e, &self)
		if err == nil {
			require.Equal(t, says, p.size)
			require.Zero(t, kind%6)
			require.Zero(t, p.bytes(0, p.size)[p.size-1])
			p.close()
		} else if kind%6 == 0 && bytes == e.seg.size && says == bytes {
			require.NotEqual(t, whole, content, "%v", err)
		}
		require.NoError(t, l.Close())
		<-served
		after, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		require.Len(t, after, len(held), "descriptors")
		require.NoError(t, unix.Close(memory))
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
