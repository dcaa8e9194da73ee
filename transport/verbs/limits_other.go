//go:build !linux || !cgo

package verbs

import (
	"errors"
	"fmt"
)

// DeviceLimits asks nobody in this build.
func DeviceLimits() (of map[string]Limits, why map[string]error, err error) {
	return nil, nil, fmt.Errorf("verbs: RDMA needs Linux and a build with cgo: %w", errors.ErrUnsupported)
}

// MayPin returns nil: nothing is pinned.
func MayPin(int64) error { return nil }
