package shm

import (
	"fmt"

	"github.com/gccl-project/gccl/transport"
)

// descriptorError says that the peer's segment holds nonsense. It is
// transport.ErrCorrupt.
type descriptorError struct {
	What    string
	Offset  uint64
	Bytes   int64
	Segment int64 // bytes
	Err     error // nil: out of range
}

func (e *descriptorError) Error() string {
	why := "which is outside of it or not aligned"
	if e.Err != nil {
		why = "which cannot be read: " + e.Err.Error()
	}
	return fmt.Sprintf("the peer's segment of %d bytes has %s of %d bytes at offset %d, %s: its memory was overwritten", e.Segment, e.What, e.Bytes, e.Offset, why)
}

func (e *descriptorError) Unwrap() error        { return e.Err }
func (e *descriptorError) Is(target error) bool { return target == transport.ErrCorrupt }
