package cudatest

import (
	"testing"

	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// FailCall has the driver's nth call from now on fail, by CUDA_ERROR_UNKNOWN; 0: none. It returns how many calls were missing for the last
// failure asked for, 0 if it came. Calls that look or give back are not counted. It skips the test where GPUs are not emulated.
func FailCall(t testing.TB, n int) (missing int) {
	t.Helper()
	const fail = 1 << 20 // kernels/cuda/emulator/driver.cc
	name, err := cu.DeviceName(0)
	if err == nil && name != "emulated GPU" {
		t.Skip("only an emulated GPU fails when asked; make test-gpu has some")
	}
	if err == nil {
		missing, err = cu.DeviceAttribute(0, fail+n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return missing
}
