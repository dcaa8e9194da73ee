//go:build linux && cgo

package verbs

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/transporttest"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// needDevices skips a test where there is no RDMA device, or fails it where GCCL_REQUIRE says that there must be.
func needDevices(tb testing.TB, n int) []string {
	tb.Helper()
	names, err := ibv.Devices()
	if len(names) >= n {
		return names
	}
	if slices.Contains(strings.Split(os.Getenv("GCCL_REQUIRE"), ","), "verbs") && n == 1 {
		tb.Fatalf("GCCL_REQUIRE has verbs: devices %q, %v", names, err)
	}
	tb.Skipf("needs %d RDMA devices, here are %q, %v; make test-rdma has some", n, names, err)
	return nil
}

// small is a configuration that needs credit all the time.
func small() Config {
	return Config{Addr: netip.MustParseAddr("127.0.0.1"), Slot: 8 << 10, Slots: 8}
}

func provider(c Config) transporttest.Provider {
	return func(tb testing.TB, options []transport.Options) []transport.Endpoint {
		needDevices(tb, 1)
		var all []transport.Endpoint
		for _, o := range options {
			e, err := Open(c, o)
			require.NoError(tb, err)
			all = append(all, e)
		}
		return all
	}
}

func TestContract(t *testing.T) { transporttest.Run(t, provider(small())) }

func BenchmarkVerbs(b *testing.B) {
	transporttest.Bench(b, provider(Config{Addr: netip.MustParseAddr("127.0.0.1")}))
}
