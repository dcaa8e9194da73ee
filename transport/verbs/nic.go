//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"golang.org/x/sys/unix"
)

// nic is a port of an open device, with our GID on it.
type nic struct {
	device *ibv.Device
	pd     *ibv.PD
	port   ibv.Port
	gid    ibv.GIDEntry
	limits ibv.Limits
}

func openNIC(c Config) (*nic, error) {
	names := []string{c.Device}
	if c.Device == "" {
		var err error
		if names, err = ibv.Devices(); err != nil {
			return nil, fmt.Errorf("verbs: %w", err)
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("verbs: no RDMA device on this host: %w", errors.ErrUnsupported)
		}
	}
	var why []error
	for _, name := range names {
		n, err := openPort(name, c)
		if err == nil {
			return n, nil
		}
		why = append(why, err)
	}
	return nil, errors.Join(why...)
}

func openPort(name string, c Config) (n *nic, err error) {
	n = &nic{}
	if n.device, err = ibv.Open(name); err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	if n.limits, err = n.device.Limits(); err != nil {
		return nil, fmt.Errorf("verbs: %s: %w", name, err)
	}
	if c.Port > n.limits.Ports {
		return nil, fmt.Errorf("verbs: %s has no port %d: it has %d", name, c.Port, n.limits.Ports)
	}
	var states []string
	for p := 1; p <= n.limits.Ports && n.port.Number == 0; p++ {
		if c.Port != 0 && c.Port != p {
			continue
		}
		port, err := n.device.Port(p)
		if err != nil {
			return nil, fmt.Errorf("verbs: %s port %d: %w", name, p, err)
		}
		if port.State == ibv.PortActive {
			n.port = port
		}
		states = append(states, fmt.Sprintf("port %d is %v", p, port.State))
	}
	if n.port.Number == 0 {
		return nil, fmt.Errorf("verbs: %s has no active port: %s", name, strings.Join(states, ", "))
	}
	if n.port.LinkLayer == ibv.Unspecified {
		n.port.LinkLayer = ibv.InfiniBand
	}
	table, err := n.device.GIDs()
	if err != nil {
		return nil, fmt.Errorf("verbs: GIDs of %s (rdma-core 32 or later is needed): %w", name, err)
	}
	if n.gid, err = (gidChoice{device: name, port: n.port, table: table, netDev: interfaceOf(c.Addr), forced: c.GIDIndex}).choose(); err != nil {
		return nil, err
	}
	if n.pd, err = n.device.AllocPD(); err != nil {
		return nil, n.explain(err)
	}
	return n, nil
}

// interfaceOf is the index of the network interface that has the address, or 0.
func interfaceOf(a netip.Addr) int {
	all, err := net.Interfaces()
	if err != nil {
		return 0
	}
	for _, i := range all {
		addresses, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, have := range addresses {
			if n, ok := have.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == a.WithZone("") {
					return i.Index
				}
			}
		}
	}
	return 0
}

// explain adds to a failure on the NIC where it was, and, where it is about pinned memory, the limit and how to raise it.
func (n *nic) explain(err error) error {
	var limit unix.Rlimit
	if errors.Is(err, syscall.ENOMEM) && unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil && limit.Cur != unix.RLIM_INFINITY {
		return fmt.Errorf("verbs: %s: %w: memlock is %d KiB, RDMA pins more: set ulimit -l unlimited, LimitMEMLOCK=infinity (systemd) or --ulimit memlock=-1 (containers)", n, err, limit.Cur>>10)
	}
	return fmt.Errorf("verbs: %s: %w", n, err)
}

func (n *nic) String() string {
	return fmt.Sprintf("%s port %d GID %d %v", n.device.Name(), n.port.Number, n.gid.Index, addressOf(n.gid.GID))
}

func (n *nic) close() error {
	var errs []error
	if n.pd != nil {
		errs = append(errs, n.pd.Close())
	}
	return errors.Join(append(errs, n.device.Close())...)
}
