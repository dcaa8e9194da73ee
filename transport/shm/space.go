package shm

import (
	"fmt"

	"github.com/gccl-project/gccl/transport"
)

// SpaceError says that the file system of the segments is full. It is
// transport.ErrSpace.
type SpaceError struct {
	Path string // of the segment
	For  string // what the memory was to be
	Need int64  // bytes
	Free int64  // bytes, when it was refused
	Of   int64  // bytes in the file system
	Err  error  // the system's word
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("%s: no room for %s: need %d bytes, %d free of %d: %v (make the file system larger: docker run --shm-size=1g, "+
		"a Kubernetes emptyDir of medium Memory at /dev/shm, or mount -o remount,size=1g /dev/shm)", e.Path, e.For, e.Need, e.Free, e.Of, e.Err)
}

// Unwrap returns the system's error.
func (e *SpaceError) Unwrap() error { return e.Err }

// Is makes a SpaceError an ErrSpace.
func (e *SpaceError) Is(target error) bool { return target == transport.ErrSpace }
