package transporttest

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// allocator is the endpoint's, or the test is skipped.
func allocator(t *testing.T, e transport.Endpoint) transport.Allocator {
	a, ok := e.(transport.Allocator)
	if !ok {
		t.Skipf("%s has no Allocator", e.Name())
	}
	return a
}

func testAllocator(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a := allocator(t, w.eps[0])
	lengths := []int64{1, 4096, 4097, 100_000, 1 << 20, 3 << 20}
	var all []unsafe.Pointer
	var total int64
	for i, n := range lengths {
		p, err := a.Alloc(n)
		require.NoError(t, err)
		require.NotNil(t, p)
		require.Zero(t, uintptr(p)%4096, "page-aligned")
		b := unsafe.Slice((*byte)(p), n)
		for k := range b {
			require.Zero(t, b[k], "zeroed")
		}
		fill(b, uint64(i))
		total += n
		all = append(all, p)
	}
	require.GreaterOrEqual(t, w.eps[0].Stats().Allocated, total)
	require.Zero(t, w.eps[1].Stats().Allocated)
	own := new([64]byte)
	for i, n := range lengths {
		require.Equal(t, string(pattern(uint64(i), int(n))), string(unsafe.Slice((*byte)(all[i]), n)), "allocations overlap")
		require.True(t, a.Owns(all[i], n))
		require.True(t, a.Owns(unsafe.Add(all[i], n-1), 1))
		require.True(t, a.Owns(all[i], 0))
		require.False(t, a.Owns(all[i], n+1<<40))
		require.False(t, a.Owns(unsafe.Pointer(own), 64), "Go memory")
	}
	require.False(t, a.Owns(nil, 8))
	for _, n := range []int64{0, -1, 1 << 62} {
		_, err := a.Alloc(n)
		require.Error(t, err, "Alloc(%d)", n)
	}
	require.Error(t, a.Free(unsafe.Pointer(own)))
	require.Error(t, a.Free(nil))
	require.Error(t, a.Free(unsafe.Add(all[4], 4096)), "not the start of an allocation")
	for i, p := range all {
		require.NoError(t, a.Free(p))
		require.Error(t, a.Free(p), "twice")
		require.False(t, a.Owns(p, 1), "allocation %d is free", i)
	}
	require.Zero(t, w.eps[0].Stats().Allocated)
	for range 50 { // memory comes back zeroed
		p, err := a.Alloc(64 << 10)
		require.NoError(t, err)
		b := unsafe.Slice((*byte)(p), 64<<10)
		for k := range b {
			require.Zero(t, b[k], "zeroed again")
		}
		fill(b, 3)
		require.NoError(t, a.Free(p))
	}
	require.NoError(t, w.eps[0].Close())
	_, err := a.Alloc(100)
	require.ErrorIs(t, err, transport.ErrClosed)
}

// testLending sends memory of the Allocator: the sender has it back only once
// the receiver released it, and what the receiver sees is right throughout.
func testLending(t *testing.T, open Provider) {
	o := defaults()
	o.MaxMessage = 4 << 20
	for _, checksum := range []bool{false, true} {
		o.Checksum = checksum
		w := newWorld(t, open, 2, o)
		alloc := allocator(t, w.eps[0])
		a, b := w.pair()
		const n = 1 << 20
		p, err := alloc.Alloc(2 * n)
		require.NoError(t, err)
		memory := unsafe.Slice((*byte)(p), 2*n)
		for k := range uint64(6) {
			part := memory[:n]
			if k%2 == 1 {
				part = memory[n:]
			}
			fill(part, k)
			buf := transport.Buf{Ptr: unsafe.Pointer(&part[0]), N: n, Shared: true}
			w.drive("room to lend", func() bool {
				ok, err := a.Stream(0).Send(1, buf)
				require.NoError(t, err)
				return ok
			})
			if k%3 == 2 {
				w.same(pattern(k, n), w.receive(b.Stream(0), 1, n), "message %d received", k)
			} else {
				var view unsafe.Pointer
				w.drive("a view", func() bool {
					view, err = b.Stream(0).View(1, n)
					require.NoError(t, err)
					return view != nil
				})
				done, err := a.Stream(0).Sent()
				require.NoError(t, err)
				if done == k+1 {
					fill(part, 99) // counted, so it was copied: ours to write
				}
				w.same(pattern(k, n), unsafe.Slice((*byte)(view), n), "message %d viewed", k)
				b.Stream(0).Release()
			}
			w.sent(a.Stream(0), k+1)
		}
		// Small and odd pieces of allocated memory, and ordinary memory in between.
		for k, n := range []int{1, 8, 100, 5000, 70001} {
			part := memory[3*k:][:n]
			fill(part, uint64(k))
			buf := transport.Buf{Ptr: unsafe.Pointer(&part[0]), N: n, Shared: true}
			w.drive("room to lend", func() bool {
				ok, err := a.Stream(1).Send(1, buf)
				require.NoError(t, err)
				return ok
			})
			w.send(a.Stream(1), 1, pattern(50, n))
			w.same(pattern(uint64(k), n), w.receive(b.Stream(1), 1, n), "%d bytes lent", n)
			w.same(pattern(50, n), w.receive(b.Stream(1), 1, n), "%d bytes copied", n)
			w.sent(a.Stream(1), uint64(2*k+2))
		}
		require.NoError(t, alloc.Free(p))
		w.close()
	}
}

// testTakenBack: what was lent is the sender's again once it has closed the connection, as it does when its call fails. A receiver that
// reads it before or after that sees what was sent or gets an error; it is never told that what it saw was right when it was not.
func testTakenBack(t *testing.T, open Provider) {
	o := defaults()
	o.MaxMessage = 1 << 20
	const n = 1 << 20
	for _, how := range []string{"received later", "viewed later", "viewed before"} {
		w := newWorld(t, open, 2, o)
		alloc := allocator(t, w.eps[0])
		a, b := w.pair()
		p, err := alloc.Alloc(n)
		require.NoError(t, err)
		memory := unsafe.Slice((*byte)(p), n)
		fill(memory, 1)
		w.drive("room to lend", func() bool {
			ok, err := a.Stream(0).Send(1, transport.Buf{Ptr: p, N: n, Shared: true})
			require.NoError(t, err)
			return ok
		})
		w.send(a.Stream(1), 1, pattern(2, 8))
		w.same(pattern(2, 8), w.receive(b.Stream(1), 1, 8), "the connection works")
		var view unsafe.Pointer
		look := func() (err error) {
			w.drive("a view or an error", func() bool {
				view, err = b.Stream(0).View(1, n)
				return view != nil || err != nil
			})
			return err
		}
		if how == "viewed before" {
			require.NoError(t, look())
		}
		require.NoError(t, a.Close())
		fill(memory, 3)
		got := make([]byte, n)
		switch how {
		case "received later":
			w.drive("a message or an error", func() bool {
				var ok bool
				ok, err = b.Stream(0).Recv(1, lend(got))
				return ok || err != nil
			})
		case "viewed later":
			if err = look(); err != nil {
				break
			}
			fallthrough
		default:
			copy(got, unsafe.Slice((*byte)(view), n))
			err = b.Stream(0).Release()
		}
		if err == nil {
			w.same(pattern(1, n), got, how)
		} else {
			require.ErrorIs(t, err, transport.ErrGone)
			w.requirePeer(err, key(1, 0))
			_, err = b.Stream(0).Recv(1, lend(got))
			require.Error(t, err, "later calls")
		}
		w.close()
	}
}

// testOverwritten: memory of messages that were accepted and not counted is the sender's again once it has closed the connection. The peer gets
// what was sent, or an error.
func testOverwritten(t *testing.T, open Provider) {
	for _, checksum := range []bool{false, true} {
		o := defaults()
		o.MaxMessage, o.Checksum = 4<<20, checksum
		w := newWorld(t, open, 2, o)
		a, b := w.pair()
		w.send(a.Stream(3), 1, pattern(9, 8))
		w.same(pattern(9, 8), w.receive(b.Stream(3), 1, 8), "the connection works")
		const n = 4<<20 - 7
		var memory [2][][]byte // by stream
		for s := range memory {
			for k := range uint64(6) {
				m := pattern(10*uint64(s)+k, n)
				if ok, err := a.Stream(s).Send(1, lend(m)); !ok || err != nil {
					require.NoError(t, err)
					break
				}
				memory[s] = append(memory[s], m)
			}
			require.NotEmpty(t, memory[s])
		}
		require.NoError(t, a.Close())
		for s := range memory {
			for _, m := range memory[s] {
				fill(m, 99)
			}
		}
		for s := range memory {
			for k := range memory[s] {
				got := make([]byte, n)
				var err error
				w.drive("a message or an error", func() bool {
					var ok bool
					ok, err = b.Stream(s).Recv(1, lend(got))
					return ok || err != nil
				})
				if err != nil {
					require.ErrorIs(t, err, transport.ErrGone)
					break
				}
				w.same(pattern(10*uint64(s)+uint64(k), n), got, "message %d of stream %d", k, s)
			}
		}
		w.close()
	}
}

// testAwaiter: the word is idle while nothing arrives and changes when something
// does.
func testAwaiter(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a, b := w.pair()
	s, ok := b.Stream(0).(transport.Awaiter)
	if !ok {
		t.Skipf("the streams of %s are no Awaiters", w.eps[0].Name())
	}
	w.send(a.Stream(0), 0, nil)
	w.receive(b.Stream(0), 0, 0)
	for k := range uint32(100) {
		n := int(k) * 100
		got, err := b.Stream(0).Recv(k, lend(make([]byte, n)))
		require.NoError(t, err)
		require.False(t, got)
		word, idle := s.Awaits()
		require.NotNil(t, word, "nothing has arrived")
		require.Equal(t, idle, atomic.LoadUint64(word))
		require.Zero(t, uintptr(unsafe.Pointer(word))%8)
		w.send(a.Stream(0), k, pattern(uint64(k), n))
		w.drive("the word to change", func() bool { return atomic.LoadUint64(word) != idle })
		if word, idle := s.Awaits(); word != nil {
			require.NotEqual(t, idle, atomic.LoadUint64(word), "a message is there")
		}
		w.same(pattern(uint64(k), n), w.receive(b.Stream(0), k, n), "message %d", k)
	}
}
