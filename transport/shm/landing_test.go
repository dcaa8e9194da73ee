//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/transport"
)

// field is two ranks, of which the second has memory for messages of the first.
type field struct {
	t        *testing.T
	from, to *Endpoint
	a, b     *stream
	c        *conn // of b
	memory   []byte
	tag      uint32
}

const fieldBytes = 64 << 10

func newField(t *testing.T) *field {
	dir := segmentDir(t)
	f := &field{t: t, from: openIn(t, dir), to: openIn(t, dir)}
	x, y := pair(t, f.from, f.to, 1)
	f.a, f.b, f.c = x.Stream(1).(*stream), y.Stream(1).(*stream), y.(*conn)
	p, err := f.to.Alloc(4 * fieldBytes)
	require.NoError(t, err)
	f.memory = unsafe.Slice((*byte)(p), 4*fieldBytes)
	f.say(f.b, f.a) // now each finds the other's lines
	f.say(f.a, f.b)
	return f
}

// say sends a message of 8 bytes.
func (f *field) say(from, to *stream) {
	f.t.Helper()
	word := uint64(7)
	b := transport.Buf{Ptr: unsafe.Pointer(&word), N: 8}
	require.NoError(f.t, poll(f.from, func() (bool, error) { return from.Send(f.tag, b) }))
	require.NoError(f.t, poll(f.to, func() (bool, error) { return to.Recv(f.tag, b) }))
}

// at is where message k goes.
func (f *field) at(k int) transport.Buf {
	return transport.Buf{Ptr: unsafe.Pointer(&f.memory[k*fieldBytes]), N: fieldBytes, Shared: true}
}

func (f *field) write(p unsafe.Pointer, x byte) {
	f.a.Fill(p, unsafe.Pointer(unsafe.SliceData(bytes.Repeat([]byte{x}, fieldBytes))), fieldBytes)
}

func (f *field) requireFilled(k int, x byte) {
	f.t.Helper()
	require.Equal(f.t, bytes.Repeat([]byte{x}, fieldBytes), f.memory[k*fieldBytes:][:fieldBytes])
}

func (f *field) owns(k int) bool { return f.to.Owns(f.at(k).Ptr, fieldBytes) }

// A message is made where it is wanted, the one that was meant and no other; and what comes another way is as right.
func TestLanding(t *testing.T) {
	f := newField(t)
	for k := range 40 {
		ahead := k % 3
		f.b.Land(uint64(ahead), f.at(k%4))
		for range ahead {
			require.Nil(t, f.a.Landing(fieldBytes), "another message is next")
			f.say(f.a, f.b)
		}
		require.Nil(t, f.a.Landing(fieldBytes/2), "another length")
		x := byte(k + 1)
		if k%4 == 3 { // does not look
			other := bytes.Repeat([]byte{x}, fieldBytes)
			ok, err := f.a.Send(f.tag, transport.Buf{Ptr: unsafe.Pointer(&other[0]), N: fieldBytes})
			require.NoError(t, err)
			require.True(t, ok)
		} else {
			p := f.a.Landing(fieldBytes)
			require.NotNil(t, p)
			require.Nil(t, f.a.Landing(fieldBytes), "taken")
			f.write(p, x)
			f.requireFilled(k%4, x) // it is there before it is sent
			require.NoError(t, f.a.SendStaged(f.tag, fieldBytes))
		}
		if k%8 == 6 { // shown, too, it is that
			p, err := f.b.View(f.tag, fieldBytes)
			require.NoError(t, err)
			require.Equal(t, f.at(k%4).Ptr, p)
			require.NoError(t, f.b.Release())
		} else {
			ok, err := f.b.Recv(f.tag, f.at(k%4))
			require.NoError(t, err)
			require.True(t, ok)
		}
		f.requireFilled(k%4, x)
		require.Nil(t, f.a.Landing(fieldBytes), "that message has come")
	}
	f.b.Land(0, f.at(0))
	f.write(f.a.Landing(fieldBytes), 99)
	require.NoError(t, f.a.SendStaged(f.tag, fieldBytes))
	_, err := f.b.Recv(f.tag, f.at(0))
	require.NoError(t, err)
	for range ringLines { // then its line is another message's
		f.say(f.a, f.b)
	}
	require.NoError(t, f.c.Close())
	for k := range 4 {
		require.True(t, f.owns(k), "nothing was on its way")
	}
}

func TestLandingIsOfWholePagesFromAlloc(t *testing.T) {
	f := newField(t)
	own := make([]byte, fieldBytes)
	for name, b := range map[string]transport.Buf{
		"not shared":         {Ptr: f.at(0).Ptr, N: fieldBytes},
		"begins in a page":   {Ptr: unsafe.Add(f.at(0).Ptr, 64), N: fieldBytes, Shared: true},
		"ends in a page":     {Ptr: f.at(0).Ptr, N: fieldBytes - 64, Shared: true},
		"short":              {Ptr: f.at(0).Ptr, N: 4096, Shared: true},
		"not in the segment": {Ptr: unsafe.Pointer(&own[0]), N: fieldBytes, Shared: true},
		"beyond the segment": {Ptr: f.to.seg.at(f.to.seg.size - 4096), N: fieldBytes, Shared: true},
		"before the segment": {Ptr: unsafe.Add(f.to.seg.base, -4096), N: fieldBytes, Shared: true},
	} {
		f.b.Land(0, b)
		require.Nil(t, f.a.Landing(b.N), name)
	}
	for name, o := range map[string]transport.Options{
		"with checksums": {Streams: 1, MaxMessage: fieldBytes, Checksum: true},
		"with a hook":    {Streams: 1, MaxMessage: fieldBytes, Hook: func(transport.Frame) transport.Fate { return transport.Fate{} }},
	} {
		dir := segmentDir(t)
		var ends [2]*Endpoint
		for i := range ends {
			var err error
			ends[i], err = Open(Config{Dir: dir}, o)
			require.NoError(t, err)
			defer ends[i].Close()
		}
		x, y := pair(t, ends[0], ends[1], 1)
		g := &field{t: t, from: ends[0], to: ends[1], a: x.Stream(0).(*stream), b: y.Stream(0).(*stream)}
		g.say(g.b, g.a)
		g.say(g.a, g.b)
		p, err := g.to.Alloc(fieldBytes)
		require.NoError(t, err)
		g.b.Land(0, transport.Buf{Ptr: p, N: fieldBytes, Shared: true})
		require.Nil(t, g.a.Landing(fieldBytes), name)
	}
}

// Once the receiver's conn is closed, nothing that the peer does changes the memory, whatever it was at.
func TestLandingIsWithdrawn(t *testing.T) {
	for _, c := range []struct {
		name  string
		doing func(f *field) (writes unsafe.Pointer)
		keeps bool // the memory stays shared
	}{
		{"offered", func(f *field) unsafe.Pointer { return nil }, true},
		{"taken", func(f *field) unsafe.Pointer { return f.a.Landing(fieldBytes) }, false},
		{"sent", func(f *field) unsafe.Pointer {
			f.write(f.a.Landing(fieldBytes), 9)
			require.NoError(f.t, f.a.SendStaged(f.tag, fieldBytes))
			return nil
		}, true},
		{"sent another way", func(f *field) unsafe.Pointer {
			ok, err := f.a.Send(f.tag, transport.Buf{Ptr: unsafe.Pointer(&make([]byte, fieldBytes)[0]), N: fieldBytes})
			require.NoError(f.t, err)
			require.True(f.t, ok)
			return nil
		}, true},
		{"dead", func(f *field) unsafe.Pointer {
			require.NotNil(f.t, f.a.Landing(fieldBytes))
			f.c.p.die()
			return nil
		}, true},
		{"failed", func(f *field) unsafe.Pointer { // on our side, which then does not find the peer's lines by the way of receives
			p := f.a.Landing(fieldBytes)
			_ = f.b.fail("receive", fmt.Errorf("anything"))
			return p
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newField(t)
			fill := func(x byte) {
				for i := range f.memory {
					f.memory[i] = x
				}
			}
			fill(1)
			f.b.Land(0, f.at(1))
			to := c.doing(f)
			if !c.keeps {
				require.NotNil(t, to)
			}
			require.NoError(t, f.c.Close())
			fill(2) // the memory is its user's again
			if to != nil {
				f.write(to, 3)
				_ = f.a.SendStaged(f.tag, fieldBytes)
			}
			require.Nil(t, f.a.Landing(fieldBytes))
			for k := range 4 {
				f.requireFilled(k, 2)
				require.Equal(t, c.keeps || k != 1, f.owns(k), "part %d", k)
			}
			require.Equal(t, c.keeps, f.to.Owns(f.at(0).Ptr, 4*fieldBytes))

			// What the peer may still write to is never given out again.
			lo, _ := f.to.seg.offset(f.at(1).Ptr, fieldBytes)
			require.NoError(t, f.to.Free(f.at(0).Ptr))
			p, err := f.to.Alloc(4 * fieldBytes)
			require.NoError(t, err)
			at, _ := f.to.seg.offset(p, 4*fieldBytes)
			require.Equal(t, c.keeps, at <= lo && lo < at+4*fieldBytes)
			if to != nil {
				f.write(to, 4)
				require.Zero(t, bytes.Trim(unsafe.Slice((*byte)(p), 4*fieldBytes), "\x00"))
			}
		})
	}
}

// A peer cannot say that it made a message where it was not asked to.
func TestLandingThatWasNotOffered(t *testing.T) {
	for name, off := range map[string]int64{"elsewhere": 2 * fieldBytes, "far away": 1 << 40, "negative": -fieldBytes} {
		f := newField(t)
		f.b.Land(0, f.at(1))
		require.NotNil(t, f.a.Landing(fieldBytes))
		f.a.tx.staged += off
		require.NoError(t, f.a.SendStaged(f.tag, fieldBytes))
		_, err := f.b.Recv(f.tag, f.at(1))
		require.ErrorContains(t, err, "a message in our memory", name)
	}
	f := newField(t)
	f.a.tx.staged, f.a.tx.lands = 0, true
	require.NoError(t, f.a.SendStaged(f.tag, fieldBytes))
	_, err := f.b.Recv(f.tag, f.at(1))
	require.ErrorContains(t, err, "a message in our memory")
}

// A process that is stopped while it writes a message where we want it, and goes on when we have given up, changes nothing of ours.
func TestLandingOfAFrozenProcess(t *testing.T) {
	dir := segmentDir(t)
	e := openIn(t, dir)
	child := start(t, "writer", 0, dirEnv+"="+dir)
	address, answer := child.meet(t, e)
	require.Equal(t, "yes", answer)
	conn := talk(t, e, address, 2)
	p, err := e.Alloc(2 * fieldBytes)
	require.NoError(t, err)
	memory := unsafe.Slice((*byte)(p), 2*fieldBytes)
	conn.Stream(0).(*stream).Land(1, transport.Buf{Ptr: p, N: fieldBytes, Shared: true})
	require.NoError(t, say(e, conn, 3))
	require.Equal(t, "written", child.line(t))
	require.NotZero(t, memory[fieldBytes/2], "it writes to our memory")
	require.NoError(t, child.cmd.Process.Signal(syscall.SIGSTOP))
	require.NoError(t, conn.Close())
	for i := range memory {
		memory[i] = byte(i)
	}
	require.NoError(t, child.cmd.Process.Signal(syscall.SIGCONT))
	for range 20 { // some are of before
		child.line(t)
	}
	for i := range memory {
		require.Equal(t, byte(i), memory[i], "byte %d", i)
	}
	require.False(t, e.Owns(p, fieldBytes))
	require.True(t, e.Owns(unsafe.Add(p, fieldBytes), fieldBytes), "the rest is shared as before")
}
