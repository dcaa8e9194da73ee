package shm

import (
	"fmt"

	"github.com/gccl-project/gccl/transport"
)

// SpaceError says that there is no memory to share, or no address space of the segment left. It is transport.ErrSpace.
type SpaceError struct {
	For  string // what the memory was to be
	Need int64  // bytes
	Free int64  // bytes, just after it was refused
	Of   int64  // bytes in all
	Err  error  // the system's word, what there is too little of, and what to do
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("no room for %s: need %d bytes, %d free of %d: %v", e.For, e.Need, e.Free, e.Of, e.Err)
}

// Unwrap returns the system's error.
func (e *SpaceError) Unwrap() error { return e.Err }

// Is makes a SpaceError an ErrSpace.
func (e *SpaceError) Is(target error) bool { return target == transport.ErrSpace }
