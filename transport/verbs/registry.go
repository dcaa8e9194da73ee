//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"golang.org/x/sys/unix"
)

// registry registers spans with all NICs, and chooses how those get at the memory of GPUs. The cache's lock is held.
type registry struct {
	nics []*nic
	log  *slog.Logger
	told map[string]bool // what a line is logged about
}

func (r *registry) register(s *span) ([]registered, error) {
	if s.gpu != nil {
		return r.registerGPU(s)
	}
	return r.registerHost(s.addr(), s.Bytes)
}

// deregister closes registrations, and returns those that a device did not give up: the others are not to be closed again.
func deregister(all []registered) (kept []registered, err error) {
	var errs []error
	for _, mr := range all {
		if err := mr.Close(); err != nil {
			kept, errs = append(kept, mr), append(errs, fmt.Errorf("verbs: %w", err))
		}
	}
	return kept, errors.Join(errs...)
}

// closeAll is deregister where nothing can be done about the rest.
func closeAll(all []registered) error {
	_, err := deregister(all)
	return err
}

// unregistered stands for a registration with a device that has failed, whose QPs are not used any more.
type unregistered struct{}

func (unregistered) LKey() uint32 { return 0 }
func (unregistered) RKey() uint32 { return 0 }
func (unregistered) Close() error { return nil }

// register is ibv.PD.Register. With an error comes what stands for the registration where that is no matter.
func (n *nic) register(addr uintptr, bytes int, access ibv.Access) (registered, error) {
	if err := n.failed(); err != nil {
		return unregistered{}, err
	}
	mr, err := n.pd.Register(addr, bytes, access)
	if err != nil {
		n.refused(err)
		return unregistered{}, err
	}
	return mr, nil
}

// refused takes note of a registration that a device refused. One that others make up for is never made again: the device is not to be used any more with
// what stands for it, whether or not it reports that it has failed.
func (n *nic) refused(err error) {
	if n.without(err) {
		n.condemn(fmt.Errorf("register memory: %w", err))
	}
}

// memoryAccess is what peers may do to memory that users register.
func (n *nic) memoryAccess() ibv.Access { return n.access() | ibv.LocalWrite | ibv.RelaxedOrdering }

// registerGPU registers a GPU's memory where it is, with every NIC by the best way that it takes, or where one takes none, memory of the host
// instead with all. Where there is no room for the former the error is syscall.ENOMEM, unless s.stages.
func (r *registry) registerGPU(s *span) (all []registered, err error) {
	var ways []string
	var full error
	// Without this nobody could tell when what arrived is there.
	flush := s.gpu.FlushWrites()
	for _, n := range r.nics {
		if n.failure.Load() != nil {
			all = append(all, unregistered{})
			continue
		}
		mr, way, why := registered(nil), viaStaging, []string{fmt.Sprintf("the GPU cannot flush what is written to it: %v", flush)}
		if flush == nil {
			mr, way, why, full = n.registerDirect(s)
		}
		if full != nil && !s.stages {
			return nil, errors.Join(n.explain(full), closeAll(all))
		}
		ways = append(ways, r.tell(s.gpu, n, way, why))
		if mr == nil {
			if err := closeAll(all); err != nil {
				return nil, err
			}
			s.way = ways[len(ways)-1]
			return r.registerBounce(s)
		}
		all = append(all, mr)
	}
	s.way = strings.Join(ways, ", ")
	return all, nil
}

// registerDirect registers a GPU's memory where it is, and says by which way, and why not by a better one. Without one there is no MR, and
// an error if room was all that it wanted.
func (n *nic) registerDirect(s *span) (mr registered, way string, why []string, full error) {
	access := n.memoryAccess()
	fd, err := s.gpu.DMABuf(s.Mem)
	if err == nil {
		var direct *ibv.MR
		direct, err = n.pd.RegisterDMABuf(fd, 0, int(s.Bytes), uint64(s.addr()), access)
		unix.Close(fd) // the registration holds the memory
		if err == nil {
			return direct, viaDMABuf, nil, nil
		}
		if errors.Is(err, syscall.ENOMEM) {
			full = err
		}
	}
	why = append(why, fmt.Sprintf("%s refused: %v", viaDMABuf, err))
	direct, err := n.pd.Register(s.addr(), int(s.Bytes), access)
	if err == nil {
		return direct, viaPeerMemory, why, nil
	}
	switch {
	case errors.Is(err, syscall.EFAULT): // to a kernel without it that is no memory
		err = fmt.Errorf("%w: modprobe nvidia_peermem", err)
	case errors.Is(err, syscall.ENOMEM):
		full = err
	}
	return nil, viaStaging, append(why, fmt.Sprintf("%s refused: %v", viaPeerMemory, err)), full
}

// tell says by which way a NIC gets at a GPU's memory, and logs it the first time.
func (r *registry) tell(g GPU, n *nic, way string, why []string) string {
	s := fmt.Sprintf("%s via %s", n, way)
	reasons := strings.Join(why, "; ")
	if len(why) > 0 {
		s += " (" + reasons + ")"
	}
	key := fmt.Sprint(g.Device(), n.index, way)
	if r.told[key] {
		return s
	}
	r.told[key] = true
	if way == viaStaging {
		r.log.Warn("verbs: GPUDirect RDMA is off: GPU memory goes by pinned host memory", "gpu", g.Device(), "nic", n, "way", way, "reason", reasons)
	} else {
		r.log.Info("verbs: GPUDirect RDMA", "gpu", g.Device(), "nic", n, "way", way, "reason", reasons)
	}
	return s
}

// registerBounce registers as much memory of the host's.
func (r *registry) registerBounce(s *span) ([]registered, error) {
	page := int64(unix.Getpagesize())
	b, err := unix.Mmap(-1, 0, int((s.Bytes+page-1)/page*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("%w: verbs: map %d bytes to stage memory of %v in (%s): %w", transport.ErrSpace, s.Bytes, s.Device, s.way, err)
	}
	var all []registered
	if err = unix.Madvise(b, unix.MADV_DONTFORK); err == nil {
		all, err = r.registerHost(addressIn(b), int64(len(b)))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("verbs: stage memory of %v (%s): %w", s.Device, s.way, err), unix.Munmap(b))
	}
	s.bounce = b
	return all, nil
}

func (r *registry) registerHost(addr uintptr, bytes int64) (all []registered, err error) {
	for _, n := range r.nics {
		mr, err := n.register(addr, int(bytes), n.memoryAccess())
		if err != nil && !n.without(err) {
			return nil, errors.Join(n.explain(fmt.Errorf("register %d bytes: %w", bytes, err)), closeAll(all))
		}
		all = append(all, mr)
	}
	return all, nil
}
