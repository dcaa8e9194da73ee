package gpu

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/collective"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// callsAt returns calls whose buffers lie at made-up addresses.
func callsAt(call Call, ranks int) []Call {
	calls := make([]Call, ranks)
	for r := range calls {
		calls[r] = call
		src, dst := uintptr(1<<40+r<<32), uintptr(2<<40+r<<32)
		calls[r].Src, calls[r].Dst = *(*unsafe.Pointer)(unsafe.Pointer(&src)), *(*unsafe.Pointer)(unsafe.Pointer(&dst))
	}
	return calls
}

// Programs that do not fit one launch are cut, for as many ranks as there may be; what fits none is an error.
func TestProgramsAreCut(t *testing.T) {
	for _, ranks := range []int{1, 2, 8, 12, 16, 33, 64} {
		for _, kind := range collective.Kinds() {
			if kind == collective.Barrier {
				continue
			}
			d := &cuda.Device{}
			c := &Communicator{ranks: ranks, moves: map[shape]*Moves{}}
			devices := slices.Repeat([]*cuda.Device{d}, ranks)
			calls := callsAt(Call{Kind: kind, DType: kernels.Int32, RedOp: kernels.Avg, Count: 1000}, ranks)
			m, err := c.lower(shape{kind: kind, algorithm: c.algorithm(&calls[0])})
			require.NoError(t, err)
			c.build.begin(m, calls)
			jobs := []job{{calls: calls, moves: m}}
			for _, r := range c.rounds(jobs) {
				if r.after {
					require.NoError(t, c.build.after(d, devices, jobs, r.stage), "%v of %d", kind, ranks)
				} else {
					require.NoError(t, c.build.round(d, devices, jobs, r), "%v of %d", kind, ranks)
				}
			}
			ps, instrs := c.build.programs(), 0
			for i := range ps {
				require.False(t, ps[i].Empty())
				instrs += ps[i].Instrs()
			}
			want := len(m.Phases[0])
			if calls[0].divides() {
				for r := range ranks {
					if m.Shape.HasOut(r) {
						want++
					}
				}
			}
			require.Equal(t, want, instrs, "%v of %d", kind, ranks)
		}
	}
}

// What a call costs the host before the driver has it.
func BenchmarkPrograms(b *testing.B) {
	for _, ranks := range []int{1, 2, 8} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) {
			d := &cuda.Device{}
			c := &Communicator{ranks: ranks, moves: map[shape]*Moves{}}
			devices := slices.Repeat([]*cuda.Device{d}, ranks)
			calls := callsAt(Call{Kind: collective.AllReduce, DType: kernels.Float32, Count: 2048}, ranks)
			b.ReportAllocs()
			for range b.N {
				m, err := c.lower(shape{kind: calls[0].Kind, algorithm: c.algorithm(&calls[0])})
				if err != nil {
					b.Fatal(err)
				}
				c.build.begin(m, calls)
				if err := c.build.round(d, devices, []job{{calls: calls, moves: m}}, round{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
