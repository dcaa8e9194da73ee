//go:build linux && (amd64 || arm64)

package shm

import (
	"testing"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/transporttest"
	"github.com/stretchr/testify/require"
)

func provide(t testing.TB, opts []transport.Options) []transport.Endpoint {
	dir := "/dev/shm"
	eps := make([]transport.Endpoint, len(opts))
	for i, o := range opts {
		e, err := Open(Config{Dir: dir}, o)
		require.NoError(t, err)
		eps[i] = e
	}
	return eps
}

func TestTransport(t *testing.T) { transporttest.Run(t, provide) }

func BenchmarkTransport(b *testing.B) { transporttest.Bench(b, provide) }
