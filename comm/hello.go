package comm

import (
	"fmt"

	"github.com/gccl-project/gccl/collective/tune"
	"github.com/gccl-project/gccl/kernels"
)

// Version of what the ranks of one world say to each other.
const wireVersion = 5

// hello is what each rank tells all others when a world begins.
type hello struct {
	Version    int
	Lanes      int
	MaxMessage int
	Checksum   bool
	Host       string
	Boot       string // identity of the host: boot id, or Config.HostID
	Machine    string // boot id
	PID        int
	Process    string         // a number of the process that no other has
	Device     kernels.Device // Config.Device
	Processors []int          // that it may run on
	seat
	Threads   int               // that may run Go at once
	Addresses map[string][]byte // by transport
	Model     map[string]tune.Model
}

// agree names the first thing that must be equal on all ranks and is not.
func (h *hello) agree(o *hello) error {
	switch {
	case h.Version != o.Version:
		return fmt.Errorf("speaks wire version %d, we %d: run the same gccl everywhere", o.Version, h.Version)
	case h.Lanes != o.Lanes:
		return fmt.Errorf("has Config.Lanes %d, we %d: it must be the same on all ranks", o.Lanes, h.Lanes)
	case h.MaxMessage != o.MaxMessage:
		return fmt.Errorf("has Config.MaxMessage %d, we %d: it must be the same on all ranks", o.MaxMessage, h.MaxMessage)
	case h.Checksum != o.Checksum:
		return fmt.Errorf("has Config.Checksum %v, we %v: it must be the same on all ranks", o.Checksum, h.Checksum)
	}
	return nil
}

func (h *hello) place() string { return fmt.Sprintf("%s pid %d", h.Host, h.PID) }
