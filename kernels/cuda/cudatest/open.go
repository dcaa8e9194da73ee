// Package cudatest is for tests that need a GPU.
package cudatest

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gccl-project/gccl/kernels/cuda"
)

// Open returns GPU 0, open until the test ends. Where there is none it skips the test and says why; with "cuda" in the
// comma-separated list GCCL_REQUIRE that is a failure.
func Open(t testing.TB) *cuda.Device {
	t.Helper()
	return OpenBy(t, cuda.Open, 0)
}

// OpenBy is Open of any GPU, by any function that opens one.
func OpenBy(t testing.TB, open func(ordinal int) (*cuda.Device, error), ordinal int) *cuda.Device {
	t.Helper()
	d, err := open(ordinal)
	if errors.Is(err, errors.ErrUnsupported) && !slices.Contains(strings.Split(os.Getenv("GCCL_REQUIRE"), ","), "cuda") {
		t.Skipf("%v; make test-gpu has emulated ones", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}
