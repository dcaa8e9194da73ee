//go:build linux && cgo

package verbs

import (
	"fmt"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// DeviceLimits asks every RDMA device of this host, by name, or says why it does not tell. Without libibverbs.so.1 the error
// wraps errors.ErrUnsupported; without devices both maps are empty. It makes nothing on the devices; any goroutine may call.
func DeviceLimits() (of map[string]Limits, why map[string]error, err error) {
	names, err := ibv.Devices()
	if err != nil {
		return nil, nil, fmt.Errorf("verbs: %w", err)
	}
	of, why = map[string]Limits{}, map[string]error{}
	for _, name := range names {
		l, err := limitsOf(name)
		if err != nil {
			why[name] = fmt.Errorf("verbs: %s: %w", name, err)
			continue
		}
		of[name] = l
	}
	return of, why, nil
}

func limitsOf(name string) (Limits, error) {
	d, err := ibv.Open(name)
	if err != nil {
		return Limits{}, err
	}
	l, err := d.Limits()
	if closed := d.Close(); err == nil {
		err = closed
	}
	return Limits{l.MaxQP, l.MaxCQE, l.MaxMR}, err
}
