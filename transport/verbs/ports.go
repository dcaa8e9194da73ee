//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
)

// openPorts opens the ports that the configuration takes. Without any the error says why each was left.
func openPorts(c Config) (nics []*nic, err error) {
	names, err := ibv.Devices()
	if err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("verbs: no RDMA device on this host: %w", errors.ErrUnsupported)
	}
	slices.Sort(names)
	defer func() {
		if err != nil {
			for _, n := range nics {
				err = errors.Join(err, n.close())
			}
			nics = nil
		}
	}()
	most := portsMost
	if c.Devices == nil {
		most = 1
	}
	var left []error
	for _, name := range names {
		active, why := activePorts(name, c)
		left = append(left, why...)
		for _, p := range active {
			if len(nics) == most {
				return nics, nil
			}
			n, err := openPort(name, p, c)
			switch {
			case err != nil && c.Devices != nil:
				return nics, err
			case err != nil:
				left = append(left, err)
				continue
			case len(nics) > 0 && n.port.LinkLayer != nics[0].port.LinkLayer:
				err := fmt.Errorf("verbs: %s is %v, and %s %v: take ports of one sort (GCCL_RDMA_DEVICE)", nics[0], nics[0].port.LinkLayer, n, n.port.LinkLayer)
				return nics, errors.Join(err, n.close())
			}
			n.index = len(nics)
			nics = append(nics, n)
		}
	}
	if len(nics) == 0 {
		return nil, errors.Join(left...)
	}
	return nics, nil
}

// activePorts are those of a device that the configuration takes, and why others are left.
func activePorts(name string, c Config) (active []int, left []error) {
	d, err := ibv.Open(name)
	if err != nil {
		return nil, []error{fmt.Errorf("verbs: %w", err)}
	}
	defer d.Close()
	limits, err := d.Limits()
	if err != nil {
		return nil, []error{fmt.Errorf("verbs: %s: %w", name, err)}
	}
	for p := 1; p <= limits.Ports; p++ {
		switch port, err := d.Port(p); {
		case err != nil:
			left = append(left, fmt.Errorf("verbs: %s port %d: %w", name, p, err))
		case c.Devices != nil && !c.Devices(name, p):
			left = append(left, fmt.Errorf("verbs: %s port %d is not among the devices to use", name, p))
		case port.State != ibv.PortActive:
			left = append(left, fmt.Errorf("verbs: %s has no active port: port %d is %v", name, p, port.State))
		default:
			active = append(active, p)
		}
	}
	return active, left
}
