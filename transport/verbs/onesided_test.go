//go:build linux && cgo

package verbs

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// register makes memory of a rank's known, with its token.
func (d *duo) register(rank, n int) (transport.Region, []byte, []byte) {
	d.Helper()
	b := pages(d, n)
	r, err := d.eps[rank].Register(kernels.MemOf(b))
	require.NoError(d, err)
	token, err := r.Token()
	require.NoError(d, err)
	return r, b, token
}

// performed drives until so many of a rank's operations are done.
func (d *duo) performed(rank int, n uint64) {
	d.Helper()
	one := d.conns[rank].(transport.OneSided)
	d.until("one-sided operations", func() bool {
		done, err := one.Performed()
		require.NoError(d, err)
		return done >= n
	})
}

// TestOneSided: reads and atomic operations on the peer's memory, beside messages, give what is there.
func TestOneSided(t *testing.T) {
	needDevices(t, 1)
	c := small()
	c.QPs = 2
	d := newDuo(t, testOptions(), c)
	d.pass(0, message(100))
	local, mine, _ := d.register(0, 16)
	remote, theirs, token := d.register(1, 16)
	copy(theirs, message(len(theirs)))
	one := d.conns[0].(transport.OneSided)
	w, err := one.Window(token)
	require.NoError(t, err)
	require.EqualValues(t, len(theirs), w.Bytes())

	sum := uint64(0)
	for k := range 300 {
		n := 1 + k*97%len(mine)
		d.until("room", func() bool {
			ok, err := one.Get(local, int64(len(mine)-n), w, int64(len(theirs)-n), n)
			require.NoError(t, err)
			return ok
		})
		if k%50 == 0 {
			d.pass(k/50%2, message(20_000))
		}
		sum++
		d.performed(0, sum)
		require.Equal(t, theirs[len(theirs)-n:], mine[len(mine)-n:])
	}

	binary.NativeEndian.PutUint64(theirs[64:], 40)
	do := func(f func() (bool, error)) uint64 {
		d.until("room", func() bool {
			ok, err := f()
			require.NoError(t, err)
			return ok
		})
		sum++
		d.performed(0, sum)
		return binary.NativeEndian.Uint64(mine[8:])
	}
	require.EqualValues(t, 40, do(func() (bool, error) { return one.FetchAdd(local, 8, w, 64, 2) }))
	require.EqualValues(t, 42, do(func() (bool, error) { return one.CompareSwap(local, 8, w, 64, 41, 7) }), "another value")
	require.EqualValues(t, 42, do(func() (bool, error) { return one.CompareSwap(local, 8, w, 64, 42, 7) }))
	require.EqualValues(t, 7, do(func() (bool, error) { return one.FetchAdd(local, 8, w, 64, ^uint64(0)) }))
	require.EqualValues(t, 6, binary.NativeEndian.Uint64(theirs[64:]))

	size := int64(len(mine))
	for _, bad := range [][3]int64{{0, 0, 0}, {0, 0, size + 1}, {1, 0, size}, {0, 1, size}, {-1, 0, 8}, {0, -1, 8}, {size, 0, 1}, {0, 1 << 62, 1 << 20}} {
		_, err := one.Get(local, bad[0], w, bad[1], int(bad[2]))
		require.Error(t, err, bad)
	}
	_, err = one.FetchAdd(local, 4, w, 64, 1)
	require.ErrorContains(t, err, "multiples of 8")
	_, err = one.Get(remote, 0, w, 0, 8)
	require.ErrorContains(t, err, "not from this endpoint")
	for _, bad := range [][]byte{nil, token[1:], append(token, 0), append([]byte("gcclRDMB"), token[8:]...)} {
		_, err := one.Window(bad)
		require.Error(t, err)
	}
	d.performed(0, sum)

	require.NoError(t, remote.Close())
	require.NoError(t, remote.Close())
	_, err = remote.Token()
	require.Error(t, err, "nobody may pin what was taken back")
	require.NoError(t, local.Close())
}

// TestRevokedRegion: what a peer took back cannot be read any more; of what is under way then the outcome is unknown, and the messages go on
// by another QP.
func TestRevokedRegion(t *testing.T) {
	needDevices(t, 1)
	c := small()
	c.QPs = 2
	d := newDuo(t, testOptions(), c)
	d.pass(0, message(100))
	local, _, _ := d.register(0, 1)
	remote, _, token := d.register(1, 1)
	one := d.conns[0].(transport.OneSided)
	w, err := one.Window(token)
	require.NoError(t, err)
	require.NoError(t, remote.Close())
	ok, err := one.Get(local, 0, w, 0, 8)
	require.NoError(t, err)
	require.True(t, ok)
	require.Error(t, local.Close(), "an operation uses it")
	var done uint64
	d.until("the error", func() bool {
		done, err = one.Performed()
		return err != nil
	})
	require.ErrorIs(t, err, transport.ErrGone)
	require.ErrorContains(t, err, "of 1 operations the outcome is unknown")
	require.Zero(t, done)
	d.pass(0, message(30_000))
	d.pass(1, message(30_000))
	_, again := one.Get(local, 0, w, 0, 8)
	require.True(t, errors.Is(again, transport.ErrGone), "for good")
	require.NoError(t, d.conns[0].Close())
	d.until("the end", func() bool { return d.conns[0].(*conn).gone })
	require.NoError(t, local.Close(), "its QPs are gone")
}
