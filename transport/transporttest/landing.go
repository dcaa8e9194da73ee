package transporttest

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// testLander: messages are made where the receiver wants them, among others that come as ever, each into the place that was meant for it; and once
// the receiver has closed its conn, nothing that the sender still writes changes its memory.
func testLander(t *testing.T, open Provider) {
	w := newWorld(t, open, 2, defaults())
	a, b := w.pair()
	from, ok := a.Stream(1).(transport.Lander)
	to, both := b.Stream(1).(transport.Lander)
	if !ok || !both {
		t.Skipf("the streams of %s are no Landers", w.eps[0].Name())
	}
	const places, size = 4, 128 << 10
	p, err := allocator(t, w.eps[1]).Alloc(places * size)
	require.NoError(t, err)
	memory := unsafe.Slice((*byte)(p), places*size)
	random := rand.New(rand.NewPCG(3, 4))
	for _, s := range [][2]transport.Stream{{a.Stream(1), b.Stream(1)}, {b.Stream(1), a.Stream(1)}} { // connects
		w.send(s[0], 7, pattern(0, 100))
		w.receive(s[1], 7, 100)
	}
	place := func(k int) transport.Buf {
		return transport.Buf{Ptr: unsafe.Pointer(&memory[k%places*size]), N: size, Shared: true}
	}
	landed := 0
	for k := range 60 {
		ahead := random.IntN(4)
		to.Land(uint64(ahead), place(k))
		for i := range ahead {
			n := random.IntN(2000)
			require.Nil(t, from.Landing(size), "the place is another message's")
			w.send(a.Stream(1), 7, pattern(uint64(i), n))
			w.same(pattern(uint64(i), n), w.receive(b.Stream(1), 7, n), "a message before")
		}
		want := pattern(uint64(k), size)
		if at := from.Landing(size); at != nil && random.IntN(4) > 0 { // else it is forgotten
			for done := 0; done < size; {
				part := min(size-done, 1+random.IntN(16<<10))
				from.Fill(unsafe.Add(at, done), unsafe.Pointer(&want[done]), part)
				done += part
			}
			require.NoError(t, from.SendStaged(7, size))
			landed++
		} else {
			w.send(a.Stream(1), 7, want)
		}
		w.drive("a message", func() bool {
			ok, err := b.Stream(1).Recv(7, place(k))
			require.NoError(t, err)
			return ok
		})
		w.same(want, memory[k%places*size:][:size], "message %d", k)
	}
	require.NotZero(t, landed)

	to.Land(0, place(1))
	at := from.Landing(size)
	require.NotNil(t, at)
	require.NoError(t, b.Close())
	fill(memory, 5)
	late := pattern(6, size)
	from.Fill(at, unsafe.Pointer(&late[0]), size)
	_ = from.SendStaged(7, size)
	w.same(pattern(5, places*size), memory, "the memory after Close")
	require.False(t, allocator(t, w.eps[1]).Owns(place(1).Ptr, size), "it is nobody else's any more")
	require.NoError(t, allocator(t, w.eps[1]).Free(p))
}
