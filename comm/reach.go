package comm

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/transport"
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

// Of a peer that is there and does not answer.
const (
	reachStep     = time.Second      // between looks whether the session has given it up
	reachPatience = 10 * time.Second // in all
)

// reachWhileAlive is e.Reach of a rank, which ends when the session knows that the rank is dead: one that is stopped has memory to share and
// hands over none.
func reachWhileAlive(ctx context.Context, s bootstrap.Session, rank int, e transport.Endpoint, address []byte) error {
	for start := time.Now(); ; {
		step, cancel := context.WithTimeout(ctx, reachStep)
		err := e.Reach(step, address)
		late := step.Err() != nil
		cancel()
		if err == nil || !late || ctx.Err() != nil || s.Status(rank) == bootstrap.Dead || time.Since(start) > reachPatience {
			return err
		}
	}
}
