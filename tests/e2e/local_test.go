//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
)

var background = context.Background()

// reaches are the transports that worlds within this process are tried with.
func reaches(t *testing.T) map[string]func(*comm.Config) {
	return map[string]func(*comm.Config){"mem": overTransport("mem"), "shm": shmIn(t), "tcp": overTransport("tcp")}
}

// perRank runs f on each rank of a world and fails the test with what it returns.
func perRank(t *testing.T, comms []*comm.Comm, f func(c *comm.Comm) error) {
	t.Helper()
	errs := make([]error, len(comms))
	each(len(comms), func(r int) {
		if err := f(comms[r]); err != nil {
			errs[r] = fmt.Errorf("rank %d: %w", r, err)
		}
	})
	require.NoError(t, errors.Join(errs...))
}

// TestUC73_LowPrecisionSum: 256 and seven times 1 in bfloat16. One fold in float32 rounds 263 to the even neighbour 264; algorithms
// of several steps round each partial sum, by at most half a unit in the last place, and all ranks get the same.
func TestUC73_LowPrecisionSum(t *testing.T) {
	const n, exact, ulp = 8, 263, 2
	for name, edit := range reaches(t) {
		comms := world(t, n, edit)
		for _, kind := range []collective.Kind{collective.AllReduce, collective.ReduceScatter, collective.Reduce} {
			for _, a := range collective.Catalog(kind) {
				for _, large := range []int{0, n - 1} {
					for _, count := range []int{1, 1000} {
						t.Run(fmt.Sprintf("%s/%v/%s/%d/%d", name, kind, a.Name, large, count), func(t *testing.T) {
							got := make([][]kernels.BFloat16, n)
							perRank(t, comms, func(c *comm.Comm) error {
								in, out := kind.Blocks(n)
								src, dst := make([]kernels.BFloat16, in*count), make([]kernels.BFloat16, out*count)
								for i := range src {
									src[i] = kernels.BFloat16FromFloat32(1)
									if c.Rank() == large {
										src[i] = kernels.BFloat16FromFloat32(256)
									}
								}
								got[c.Rank()] = dst
								return c.Do(background, comm.Call{Kind: comm.Kind(kind), Src: kernels.MemOf(src), Dst: kernels.MemOf(dst), Count: count, DType: kernels.Bfloat16, Algorithm: a.Name})
							})
							if kind == collective.Reduce {
								got = got[:1] // of the root
							}
							for r := range got {
								for i, x := range got[r] {
									v := float64(x.Float32())
									if a.RankOrder {
										require.Equal(t, 264.0, v, "rank %d, element %d", r, i)
									}
									require.LessOrEqual(t, math.Abs(v-exact), (n-1)*ulp/2.0, "rank %d, element %d is %v", r, i, v)
									if kind == collective.AllReduce {
										require.Equal(t, got[0][i], x, "ranks 0 and %d differ in element %d", r, i)
									}
								}
							}
						})
					}
				}
			}
		}
	}
}

// TestUC79_NothingBetween: calls of no element, with nil memory, between calls of some, keep the order.
func TestUC79_NothingBetween(t *testing.T) {
	const n = 4
	for name, edit := range reaches(t) {
		t.Run(name, func(t *testing.T) {
			comms := world(t, n, edit)
			seqs := make([]uint64, n)
			calls := 0
			for i, d := range deeds([]kernels.RedOp{kernels.Sum, kernels.Avg}) {
				normal := d.spec(kernels.Int32, 37, uint64(i))
				nothing := normal
				nothing.count = 0
				perRank(t, comms, func(c *comm.Comm) error {
					for k, s := range []spec{normal, nothing, nothing, normal} {
						g, err := newGround(c, []spec{s})
						if err == nil {
							err = s.run(c, g, &cluster.Case{})
						}
						if err != nil {
							return fmt.Errorf("%v, number %d: %w", s, k, err)
						}
					}
					// Pointers beside a count of 0 are not looked at.
					x := []int32{7}
					m := kernels.MemOf(x)
					call := comm.Call{Kind: d.kind, Src: m, Dst: m, DType: kernels.Int32, Algorithm: d.algorithm, RedOp: d.redop}
					if d.kind == comm.KindSend {
						return nil
					}
					if err := c.Do(background, call); err != nil || x[0] != 7 {
						return fmt.Errorf("%v of nothing at memory of something: %v, which is %d now", d.kind, err, x[0])
					}
					return nil
				})
				if d.kind != comm.KindSend {
					calls += 5
				}
			}
			each(n, func(r int) {
				comms[r].Abort(errors.New("to see the number"))
				var e *comm.Error
				if errors.As(comms[r].Barrier(background), &e) {
					seqs[r] = e.Seq
				}
			})
			require.Equal(t, slices.Repeat([]uint64{uint64(calls) + 1}, n), seqs, "sequence numbers")
		})
	}
}

// TestUC82_InPlaceOffsets: the right offsets give what out of place gives, bit for bit, by every algorithm. Any other overlap is
// refused on the rank that asks for it, before anything is sent.
func TestUC82_InPlaceOffsets(t *testing.T) {
	const n, count = 3, 100
	for name, edit := range reaches(t) {
		t.Run(name, func(t *testing.T) {
			comms := world(t, n, edit)
			for _, kind := range collective.Kinds() {
				for _, a := range collective.Catalog(kind) {
					if kind == collective.Barrier {
						continue
					}
					perRank(t, comms, func(c *comm.Comm) error { return sameInPlace(c, comm.Kind(kind), a.Name, count) })
				}
				perRank(t, comms, func(c *comm.Comm) error { return wrongOffsets(c, comm.Kind(kind), count) })
			}
		})
	}
}

// sameInPlace makes a call out of place and in place and compares.
func sameInPlace(c *comm.Comm, kind comm.Kind, algorithm string, count int) error {
	in, out := collective.Kind(kind).Blocks(c.Size())
	src, dst := make([]float32, in*count), make([]float32, out*count)
	for i := range src {
		src[i] = float32(math.Sin(float64(i*(c.Rank()+1) + 1)))
	}
	whole := make([]float32, max(in, out)*count)
	call := comm.Call{Kind: kind, Src: kernels.MemOf(src), Dst: kernels.MemOf(dst), Count: count, DType: kernels.Float32, Algorithm: algorithm}
	if err := c.Do(background, call); err != nil {
		return err
	}
	inSrc, inDst := whole[:len(src)], whole[:len(dst)]
	switch kind {
	case comm.KindAllGather:
		inSrc = whole[c.Rank()*count:][:count]
	case comm.KindReduceScatter:
		inDst = whole[c.Rank()*count:][:count]
	}
	copy(inSrc, src)
	call.Src, call.Dst = kernels.MemOf(inSrc), kernels.MemOf(inDst)
	if err := c.Do(background, call); err != nil {
		return fmt.Errorf("%v %s in place: %w", kind, algorithm, err)
	}
	if kind == comm.KindReduce && c.Rank() != 0 {
		return nil // no destination
	}
	for i := range dst {
		if math.Float32bits(dst[i]) != math.Float32bits(inDst[i]) {
			return fmt.Errorf("%v %s: element %d is %x out of place and %x in place", kind, algorithm, i, dst[i], inDst[i])
		}
	}
	return nil
}

// wrongOffsets asks for overlaps that are wrong, on this rank alone, and then finds the communicator as it was.
func wrongOffsets(c *comm.Comm, kind comm.Kind, count int) error {
	in, out := collective.Kind(kind).Blocks(c.Size())
	if kind == comm.KindBarrier || kind == comm.KindReduce && c.Rank() != 0 || kind == comm.KindBroadcast && c.Rank() != 0 {
		return c.Barrier(background) // there is only one buffer
	}
	room := make([]float32, (in+out+2)*count)
	call := comm.Call{Kind: kind, Count: count, DType: kernels.Float32}
	try := func(what string, srcAt, dstAt int) error {
		call.Src, call.Dst = kernels.MemOf(room[srcAt:][:in*count]), kernels.MemOf(room[dstAt:][:out*count])
		if err := c.Do(background, call); !errors.Is(err, comm.ErrArgument) {
			return fmt.Errorf("%v, %s: %v, want ErrArgument", kind, what, err)
		}
		return nil
	}
	own := c.Rank() * count
	right := [2]int{0, 0}
	switch kind {
	case comm.KindAllGather:
		right[0] = own
	case comm.KindReduceScatter:
		right[1] = own
	}
	errs := []error{
		try("dst one element behind its place", right[0], right[1]+1),
		try("src one element behind its place", right[0]+1, right[1]),
		try("dst's first element is src's last", 0, in*count-1),
		try("src's first element is dst's last", out*count-1, 0),
	}
	if kind == comm.KindAllGather && c.Rank() > 0 {
		errs = append(errs, try("src at the beginning of dst", 0, 0))
	}
	if kind == comm.KindReduceScatter && c.Rank() > 0 {
		errs = append(errs, try("dst at the beginning of src", 0, 0))
	}
	return errors.Join(append(errs, c.Barrier(background))...)
}

// TestUC88_OneRank: alone, every kind is a copy, also of averages and of NaNs, and nothing listens.
func TestUC88_OneRank(t *testing.T) {
	before := sockets(t)
	c, err := comm.New(background, comm.Config{Size: 1, Logger: quiet})
	require.NoError(t, err)
	defer c.Close()
	for _, d := range deeds(kernels.RedOps()) {
		if d.kind == comm.KindSend {
			continue
		}
		for _, dtype := range kernels.DTypes() {
			for _, count := range []int{0, 1, 1000, 1_000_000} {
				if count > 1000 && (d.algorithm != "" || d.redop != kernels.Avg && d.kind != comm.KindAllToAll || dtype%3 != 0) {
					continue // one algorithm, some types: they are all the same copy
				}
				for _, p := range []place{outOfPlace, inPlace} {
					s := d.spec(dtype, count, 3)
					s.place, s.special = p, true
					g, err := newGround(c, []spec{s})
					require.NoError(t, err)
					require.NoError(t, s.run(c, g, &cluster.Case{}), "%v", s)
				}
			}
		}
	}
	x, y := make([]uint8, 1024), make([]uint8, 1024)
	start := time.Now()
	for range 1000 {
		require.NoError(t, comm.AllReduce(background, c, y, x, kernels.Sum))
	}
	t.Logf("1 KiB: %v", time.Since(start)/1000)
	require.Equal(t, before, sockets(t), "sockets")
	require.NoError(t, c.Close())

	comms := world(t, 4, shmIn(t))
	before = sockets(t)
	perRank(t, comms, func(c *comm.Comm) error {
		one, err := c.Split(background, c.Rank(), 0)
		if err != nil {
			return err
		}
		defer one.Close()
		if one.Size() != 1 || one.Rank() != 0 {
			return fmt.Errorf("rank %d of %d", one.Rank(), one.Size())
		}
		x, y := []float32{float32(math.NaN()), 1, float32(c.Rank())}, make([]float32, 3)
		if err := comm.AllReduce(background, one, y, x, kernels.Avg); err != nil {
			return err
		}
		if string(bytesOf(x)) != string(bytesOf(y)) {
			return fmt.Errorf("the average of %v is %v", x, y)
		}
		return nil
	})
	require.Equal(t, before, sockets(t), "sockets")
}

func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// sockets counts this process's, once those that tests before this one left have gone: the number has not changed for a while.
func sockets(t *testing.T) (n int) {
	for same := 0; same < 20; time.Sleep(5 * time.Millisecond) {
		now := socketsNow(t)
		if same++; now != n {
			n, same = now, 0
		}
	}
	return n
}

func socketsNow(t *testing.T) (n int) {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}
