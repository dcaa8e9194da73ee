//go:build !linux || !(amd64 || arm64)

package shm

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/gccl-project/gccl/transport"
)

// Endpoint exists on Linux for amd64 and arm64 only.
type Endpoint struct{ transport.Endpoint }

// Open returns an error wrapping errors.ErrUnsupported.
func Open(Config, transport.Options) (*Endpoint, error) {
	return nil, fmt.Errorf("shm: shared memory on %s/%s: %w", runtime.GOOS, runtime.GOARCH, errors.ErrUnsupported)
}

// ThisHost returns nothing.
func ThisHost(string) Identity { return Identity{} }

// Identity returns nothing.
func (e *Endpoint) Identity() Identity { return Identity{} }

// Unlink does nothing.
func (e *Endpoint) Unlink() error { return nil }

// Path returns nothing.
func (e *Endpoint) Path() string { return "" }
