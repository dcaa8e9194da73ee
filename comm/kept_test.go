package comm_test

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// Long buffers belong to the caller again, and to the collector, once a call is done: the first of its kind and later ones.
func TestLongBuffersAreNotKept(t *testing.T) {
	for name, edit := range transports() {
		t.Run(name, func(t *testing.T) {
			comms := world(t, 2, edit)
			kept := make([][]weak.Pointer[int32], 2)
			each(2, func(r int) {
				for range 3 {
					src, dst := make([]int32, 1<<18), make([]int32, 1<<18)
					if err := comm.AllReduce(background, comms[r], dst, src, kernels.Avg); err != nil {
						t.Error(err)
						return
					}
					kept[r] = append(kept[r], weak.Make(&src[0]), weak.Make(&dst[0]))
				}
			})
			require.Eventually(t, func() bool {
				runtime.GC()
				for _, ps := range kept {
					for _, p := range ps {
						if p.Value() != nil {
							return false
						}
					}
				}
				return true
			}, 20*time.Second, 50*time.Millisecond, "buffers of 1 MiB")
			runtime.KeepAlive(comms)
		})
	}
}
