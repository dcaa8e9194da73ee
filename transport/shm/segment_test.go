//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestLayout(t *testing.T) {
	var h header
	require.EqualValues(t, 64, unsafe.Offsetof(h.piece))
	require.EqualValues(t, 256, unsafe.Offsetof(h.gen))
	require.EqualValues(t, 384, unsafe.Offsetof(h.sleep))
	require.EqualValues(t, 512, unsafe.Offsetof(h.counters))
	require.EqualValues(t, 2696, unsafe.Sizeof(h))
	require.LessOrEqual(t, unsafe.Sizeof(h), uintptr(firstPieceAt))
	require.EqualValues(t, entryBytes, unsafe.Sizeof(entry{}))
	require.EqualValues(t, headerBytes, firstPieceAt+pieceEntries*entryBytes)
	wide, narrow := mapping{size: wideFrom}, mapping{size: wideFrom - 1}
	for streams := range 4 {
		require.Zero(t, wide.ringsBytes(streams)%128, "words of two writers are never in one pair of lines")
		require.Zero(t, narrow.ringsBytes(streams)%128)
	}
	require.EqualValues(t, linesAt+ringLines*wideBytes+linesAt+ringLines*lineBytes, wide.ringsBytes(2))
	require.EqualValues(t, 2*(linesAt+ringLines*lineBytes), narrow.ringsBytes(2))
}

// onDisk is what the file system says our segment takes.
func onDisk(t testing.TB, e *Endpoint) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(e.seg.fd, &st))
	return st.Blocks * 512
}

func filled(n int, with byte) []byte { return bytes.Repeat([]byte{with}, n) }

func bufOf(b []byte) transport.Buf {
	return transport.Buf{Ptr: unsafe.Pointer(unsafe.SliceData(b)), N: len(b)}
}

// pass sends n bytes from a to b on a conn of their own, and closes it.
func pass(t testing.TB, a, b *Endpoint, n int) {
	t.Helper()
	x, y := pair(t, a, b, 77)
	out, in := filled(n, 7), make([]byte, n)
	require.NoError(t, poll(a, func() (bool, error) { return x.Stream(0).Send(1, bufOf(out)) }))
	require.NoError(t, poll(b, func() (bool, error) { return y.Stream(0).Recv(1, bufOf(in)) }))
	require.Equal(t, out, in)
	require.NoError(t, x.Close())
	require.NoError(t, y.Close())
}

func pair(t testing.TB, a, b *Endpoint, comm uint64) (x, y transport.Conn) {
	t.Helper()
	x, err := a.Conn(transport.Key{Comm: comm, Self: 0, Peer: 1}, b.Address())
	require.NoError(t, err)
	y, err = b.Conn(transport.Key{Comm: comm, Self: 1, Peer: 0}, a.Address())
	require.NoError(t, err)
	return x, y
}

// reaped gives closed conns' memory back, which Progress does in its own time.
func reaped(e ...*Endpoint) {
	for _, e := range e {
		e.reap()
	}
}

// TestMemory: what Stats says is what the file takes, through growth, many conns
// and their end; nothing is left of closed conns.
func TestMemory(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	check := func() {
		for _, e := range []*Endpoint{a, b} {
			s := e.Stats()
			require.Equal(t, onDisk(t, e), s.Memory+s.Allocated)
		}
	}
	check()
	empty := a.Stats().Memory
	require.LessOrEqual(t, empty, max(int64(os.Getpagesize()), headerBytes))
	for _, n := range []int{8, 49, 5000, 4 << 20, 70000} {
		pass(t, a, b, n)
		check()
	}
	reaped(a, b)
	check()
	require.Equal(t, empty, a.Stats().Memory)
	require.Equal(t, empty, b.Stats().Memory)

	var conns []transport.Conn
	for i := range uint64(300) {
		x, y := pair(t, a, b, 1000+i)
		out := filled(100, byte(i))
		in := make([]byte, 100)
		require.NoError(t, poll(a, func() (bool, error) { return x.Stream(1).Send(1, bufOf(out)) }))
		require.NoError(t, poll(b, func() (bool, error) { return y.Stream(1).Recv(1, bufOf(in)) }))
		require.Equal(t, out, in)
		conns = append(conns, x, y)
	}
	check()
	grown := a.Stats().Memory
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
	reaped(a, b)
	check()
	require.Empty(t, a.lingers)
	require.Empty(t, b.lingers)
	require.Less(t, a.Stats().Memory, grown/4, "only the directory keeps what it grew to")

	p, err := a.Alloc(3 << 20)
	require.NoError(t, err)
	check()
	require.EqualValues(t, 3<<20, a.Stats().Allocated)
	require.NoError(t, a.Free(p))
	check()
	require.Zero(t, a.Stats().Allocated)
}

// TestSealed: not even its owner can make a segment shorter, which would kill peers that use it.
func TestSealed(t *testing.T) {
	e := openIn(t, segmentDir(t))
	for _, n := range []int64{0, e.seg.size - int64(os.Getpagesize()), 2 * e.seg.size} {
		require.ErrorIs(t, unix.Ftruncate(e.seg.fd, n), unix.EPERM)
	}
}

// TestCloseLeavesNothing: no descriptor, mapping or socket is left of endpoints that met, in whatever order they unlink and close.
func TestCloseLeavesNothing(t *testing.T) {
	dir := segmentDir(t)
	held := func() (fds int, maps int) {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		text, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return len(list), bytes.Count(text, []byte("/memfd:"+memoryName+" "))
	}
	openIn(t, dir) // so that what a process opens once is open
	fds, maps := held()
	for _, unlink := range []bool{true, false} {
		a, err := Open(Config{Dir: dir}, testOptions())
		require.NoError(t, err)
		b, err := Open(Config{Dir: dir}, testOptions())
		require.NoError(t, err)
		pass(t, a, b, 100)
		if unlink {
			require.NoError(t, a.Unlink())
			require.NoError(t, b.Unlink())
		}
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		nowFds, nowMaps := held()
		require.Equal(t, []int{fds, maps}, []int{nowFds, nowMaps}, "descriptors and mappings")
		require.Len(t, segments(t, dir), 1)
	}
}

// TestAllocZeroed: memory that was used before is zero again.
func TestAllocZeroed(t *testing.T) {
	e := openIn(t, segmentDir(t))
	for range 3 {
		for _, n := range []int64{1, 4096, 100_000, 5 << 20} {
			p, err := e.Alloc(n)
			require.NoError(t, err)
			b := unsafe.Slice((*byte)(p), n)
			require.Zero(t, uintptr(p)%uintptr(os.Getpagesize()))
			require.Equal(t, make([]byte, n), b)
			for i := range b {
				b[i] = 0xff
			}
			require.NoError(t, e.Free(p))
		}
	}
}

// TestAllocWhileClosing: an endpoint that is closed while others take memory from it and give some back leaves them memory or an error, and whichever file has
// its number next alone.
func TestAllocWhileClosing(t *testing.T) {
	dir := segmentDir(t)
	for i := range 20 {
		e := openIn(t, dir)
		var given []unsafe.Pointer
		for range 16 {
			p, err := e.Alloc(1 << 20)
			require.NoError(t, err)
			given = append(given, p)
		}
		var users sync.WaitGroup
		for range 2 {
			users.Go(func() {
				for range 16 {
					if p, err := e.Alloc(32 << 20); err != nil {
						assert.ErrorIs(t, err, transport.ErrClosed)
						assert.Nil(t, p)
						return
					} else if err := e.Free(p); err != nil {
						assert.ErrorIs(t, err, transport.ErrClosed)
					}
				}
			})
		}
		users.Go(func() {
			for _, p := range given {
				if err := e.Free(p); err != nil {
					assert.ErrorIs(t, err, transport.ErrClosed)
				}
				time.Sleep(time.Duration(i) * 50 * time.Microsecond)
			}
		})
		time.Sleep(time.Duration(i) * time.Millisecond)
		assert.NoError(t, e.Close())
		f, err := os.Create(filepath.Join(t.TempDir(), "next"))
		require.NoError(t, err)
		want := bytes.Repeat([]byte("gccl"), 1<<18)
		_, err = f.Write(want)
		require.NoError(t, err)
		users.Wait()
		got, err := os.ReadFile(f.Name())
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "round %d: a file of %d bytes has %d", i, len(want), len(got))
		require.NoError(t, f.Close())
	}
}

// TestLinger: what was sent before Close stays readable for a peer that connects
// later; the memory goes when it has closed too.
func TestLinger(t *testing.T) {
	dir := segmentDir(t)
	for _, n := range []int{8, 100_000} {
		a, b := openIn(t, dir), openIn(t, dir)
		empty := a.Stats().Memory
		key := transport.Key{Comm: 5, Self: 0, Peer: 1}
		x, err := a.Conn(key, b.Address())
		require.NoError(t, err)
		out, in := filled(n, 9), make([]byte, n)
		for range 3 {
			ok, err := x.Stream(0).Send(1, bufOf(out))
			require.NoError(t, err)
			require.True(t, ok)
		}
		require.NoError(t, x.Close())
		_, err = a.Conn(key, b.Address())
		require.ErrorIs(t, err, transport.ErrClosed, "the key is in use until the peer has closed")
		require.Greater(t, a.Stats().Memory, empty)

		y, err := b.Conn(transport.Key{Comm: 5, Self: 1, Peer: 0}, a.Address())
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, poll(b, func() (bool, error) { return y.Stream(0).Recv(1, bufOf(in)) }))
			require.Equal(t, out, in)
		}
		require.ErrorIs(t, poll(b, func() (bool, error) { return y.Stream(0).Recv(1, bufOf(in)) }), transport.ErrGone)
		require.NoError(t, y.Close())
		reaped(a, b)
		require.Equal(t, empty, a.Stats().Memory)
		require.Equal(t, empty, b.Stats().Memory)
	}
}

// TestCloseOrders closes the two ends of conns in every order of their steps,
// many times with the same key, and looks for memory and entries that stay.
func TestCloseOrders(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	empty := a.Stats().Memory
	ends := [2]struct {
		e, peer *Endpoint
		key     transport.Key
	}{{a, b, transport.Key{Comm: 3, Self: 0, Peer: 1}}, {b, a, transport.Key{Comm: 3, Self: 1, Peer: 0}}}
	for _, order := range []string{"OoCc", "OocC", "OCoc", "oOCc", "ocOC", "oOcC", "OSoCc", "OSosCc", "OSCoc", "OSCosc", "osOcSC", "OoSCc", "OoscC"} {
		var conns [2]transport.Conn
		for _, step := range order {
			i := 0
			if step >= 'a' {
				i, step = 1, step-'a'+'A'
			}
			var err error
			switch step {
			case 'O':
				conns[i], err = ends[i].e.Conn(ends[i].key, ends[i].peer.Address())
			case 'S':
				_, err = conns[i].Stream(0).Send(1, bufOf(filled(5000, 1)))
				if err != nil {
					require.ErrorIs(t, err, transport.ErrGone)
					err = nil
				}
			case 'C':
				err = conns[i].Close()
			}
			require.NoError(t, err, order)
		}
		reaped(a, b)
		require.Equal(t, empty, a.Stats().Memory, order)
		require.Equal(t, empty, b.Stats().Memory, order)
		for _, e := range []*Endpoint{a, b} {
			require.Empty(t, e.lingers, order)
			for k := range pieceEntries {
				require.Zero(t, (*entry)(e.seg.at(firstPieceAt+int64(k)*entryBytes)).state, order)
			}
		}
	}
}

// TestStagingGrows mixes lengths, so that slots are replaced while messages are
// under way, and compares every byte.
func TestStagingGrows(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	x, y := pair(t, a, b, 1)
	lengths := []int{49, 4096, 4097, 60, 300_000, 10, 2 << 20, 8, 4 << 20, 100, 4 << 20, 64}
	next := 0
	for sent := 0; next < 10*len(lengths); {
		for sent < 10*len(lengths) {
			n := lengths[sent%len(lengths)]
			ok, err := x.Stream(0).Send(uint32(sent), bufOf(filled(n, byte(sent))))
			require.NoError(t, err)
			if !ok {
				break
			}
			sent++
		}
		require.Greater(t, sent, next, "no room although all was read")
		for range 1 + next%3 {
			if next == sent {
				break
			}
			n := lengths[next%len(lengths)]
			var p unsafe.Pointer
			require.NoError(t, poll(b, func() (ok bool, err error) {
				p, err = y.Stream(0).View(uint32(next), n)
				return p != nil, err
			}))
			require.True(t, bytes.Equal(filled(n, byte(next)), unsafe.Slice((*byte)(p), n)), "message %d", next)
			y.Stream(0).Release()
			next++
		}
	}
	require.Equal(t, onDisk(t, a), a.Stats().Memory)
	require.LessOrEqual(t, a.Stats().Memory, int64(2*(4<<20)+64<<10), "the small slots are gone")
}

func TestConfigRefused(t *testing.T) {
	for _, c := range []struct {
		config Config
		says   string
	}{
		{Config{Dir: "shm"}, `Config.Dir is "shm"`},
		{Config{SegmentSize: -1}, "Config.SegmentSize is -1"},
		{Config{SegmentSize: 4096}, "Config.SegmentSize is 4096"},
		{Config{Slots: 9}, "Config.Slots is 9"},
		{Config{Slots: -1}, "Config.Slots is -1"},
		{Config{LendFrom: -5}, "Config.LendFrom is -5"},
		{Config{HostID: string(make([]byte, 300))}, "Config.HostID has 300 bytes"},
	} {
		_, err := Open(c.config, testOptions())
		require.ErrorContains(t, err, c.says)
	}
	_, err := Open(Config{}, transport.Options{Streams: 65, MaxMessage: 64})
	require.ErrorContains(t, err, "Streams is 65")
	_, err = Open(Config{Dir: "/nowhere"}, testOptions())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "/nowhere")
}

// TestDirectory: a directory of more than one piece finds every key.
func TestDirectory(t *testing.T) {
	dir := segmentDir(t)
	a, b := openIn(t, dir), openIn(t, dir)
	require.NoError(t, b.Reach(t.Context(), a.Address()))
	p := b.peers[string(a.Address())]
	type pub struct {
		e  *entry
		id uint64
	}
	have := make(map[transport.Key]pub)
	for i := range 5000 {
		k := transport.Key{Comm: uint64(i % 7), Channel: int32(i % 3), Self: int32(i), Peer: int32(i % 11)}
		e, id, err := a.publish(k)
		require.NoError(t, err)
		have[k] = pub{e, id}
		if i%4 == 0 {
			for k, v := range have { // any one
				v.e.state = entryFree
				delete(have, k)
				found, _, err := p.find(k, k.Self, k.Peer, p.check)
				require.NoError(t, err)
				require.Nil(t, found)
				break
			}
		}
	}
	for k, v := range have {
		e, id, err := p.find(k, k.Self, k.Peer, p.check)
		require.NoError(t, err)
		require.NotNil(t, e, fmt.Sprint(k))
		require.Equal(t, v.id, id)
	}
	require.Equal(t, onDisk(t, a), a.Stats().Memory)

	for i := range a.seg.header().piece { // a peer writes where it should not
		a.seg.header().piece[i] = 1 << 40
	}
	_, _, err := a.publish(transport.Key{Comm: 8})
	require.NoError(t, err)
}

// TestFindWhilePublishing: an entry that is found is the connection's, with its number, though it may be another's just before and after. The race detector
// sees, in memory of Go's, whether what tells them apart is read between two looks at the number, on all processors.
func TestFindWhilePublishing(t *testing.T) {
	memory := make([]uint64, headerBytes/8)
	e := &Endpoint{seg: &segment{mapping: mapping{unsafe.Pointer(unsafe.SliceData(memory)), headerBytes}}, piece: [pieces]int64{firstPieceAt}}
	e.seg.header().piece[0] = firstPieceAt
	keys := []transport.Key{{Comm: 1, Self: 0, Peer: 1}}
	at := func(k transport.Key) uint64 { return hashKey(k, k.Self, k.Peer) % pieceEntries }
	for comm := uint64(2); len(keys) < 2; comm++ {
		if k := (transport.Key{Comm: comm, Self: 0, Peer: 1}); at(k) == at(keys[0]) {
			keys = append(keys, k)
		}
	}
	const times = 20_000
	var owner sync.WaitGroup
	owner.Go(func() {
		for i := range uint64(times) { // numbers begin at 1
			x, id, err := e.publish(keys[i%2])
			assert.NoError(t, err)
			assert.Equal(t, i+1, id)
			atomic.StoreUint64(&x.state, entryFree)
		}
	})
	for range times {
		for i, k := range keys {
			x, id, err := e.seg.find(k, 0, 1, func(int64, int64) error { return nil })
			require.NoError(t, err)
			require.True(t, x == nil || id%2 == uint64(1-i), "connection %d has number %d", i, id)
		}
	}
	owner.Wait()
}
