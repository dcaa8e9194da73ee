package tcp

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/transporttest"
	"github.com/stretchr/testify/require"
)

func loopback(flows, window int) transporttest.Provider {
	return func(tb testing.TB, options []transport.Options) []transport.Endpoint {
		var all []transport.Endpoint
		for _, o := range options {
			e, err := Open(Config{Addr: netip.MustParseAddr("127.0.0.1"), Flows: flows, Window: window}, o)
			require.NoError(tb, err)
			all = append(all, e)
		}
		return all
	}
}

// TestContract uses the smallest window, so that credit is needed all the time.
func TestContract(t *testing.T) {
	for _, flows := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("Flows%d", flows), func(t *testing.T) { transporttest.Run(t, loopback(flows, 64<<10)) })
	}
}

func BenchmarkTCP(b *testing.B) {
	transporttest.Bench(b, loopback(1, 0))
}
