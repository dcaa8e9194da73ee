//go:build linux && cgo

package verbs

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

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

// only takes devices by their names.
func only(names ...string) func(string, int) bool {
	return func(name string, _ int) bool { return slices.Contains(names, name) }
}

func provider(c Config) transporttest.Provider {
	c.look = time.Hour // which would end sleeps that nothing else ends
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

// TestContract is with several QPs, on two ports where there are two, so that pieces overtake one another; in full also with one, which is
// what other tests use.
func TestContract(t *testing.T) {
	c := small()
	if os.Getenv("GCCL_TEST_FULL") != "" {
		t.Run("one", func(t *testing.T) { transporttest.Run(t, provider(c)) })
	}
	if needDevices(t, 1); os.Getenv("GCCL_RDMA_VM") != "" {
		c.Devices = only("rxe0", "rxe5")
	}
	c.QPs = 3
	t.Run("several", func(t *testing.T) { transporttest.Run(t, provider(c)) })
}

func BenchmarkVerbs(b *testing.B) {
	transporttest.Bench(b, provider(Config{Addr: netip.MustParseAddr("127.0.0.1")}))
}
