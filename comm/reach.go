package comm

import (
	"encoding/binary"
	"fmt"
)

// reach is what each rank tells all others when it knows where they are.
type reach struct {
	digest uint64 // of the places
	shm    []byte // by rank: 1 where shared memory with it is proven from our side
	rdma   []byte // the address of an endpoint that was opened for ranks on other hosts; none: there is none
}

// bytes are
//
//	shm, a byte for each rank | digest 8 | rdma
func (r reach) bytes() []byte {
	return append(binary.LittleEndian.AppendUint64(append([]byte(nil), r.shm...), r.digest), r.rdma...)
}

func parseReach(b []byte, size int) (reach, error) {
	if len(b) < size+8 {
		return reach{}, fmt.Errorf("%d bytes, want at least %d", len(b), size+8)
	}
	return reach{binary.LittleEndian.Uint64(b[size:]), b[:size], b[size+8:]}, nil
}
