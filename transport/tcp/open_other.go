//go:build !linux

package tcp

import (
	"errors"
	"fmt"

	"github.com/gccl-project/gccl/transport"
)

// Open returns an error wrapping errors.ErrUnsupported: this is not Linux.
func Open(c Config, o transport.Options) (transport.Endpoint, error) {
	if _, err := c.validate(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("tcp: sockets are driven without the runtime's poller on Linux only: %w", errors.ErrUnsupported)
}
