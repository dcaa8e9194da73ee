//go:build !linux || !cgo

package verbs

import (
	"errors"
	"fmt"

	"github.com/gccl-project/gccl/transport"
)

// Open returns an error wrapping errors.ErrUnsupported: RDMA verbs need Linux, and a build with cgo.
func Open(c Config, o transport.Options) (transport.Endpoint, error) {
	if _, err := c.validate(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("verbs: built without libibverbs.so.1, which needs Linux and CGO_ENABLED=1: %w", errors.ErrUnsupported)
}
