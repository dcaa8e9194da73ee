//go:build linux

package faults

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/tests/cluster"
	"github.com/gccl-project/gccl/transport"
)

// flipped is the job of a rank where a bit flips on the way from rank 1 to rank 2.
func flipped(r *cluster.Rank) {
	before := baseline()
	checks := r.Config().Checksum
	c := join(r, nil)
	r.Case("found", func(report *cluster.Case) error {
		ctx, cancel := within()
		defer cancel()
		for k := range 200 {
			x := make([]int64, 20_000)
			for i := range x {
				x[i] = int64(i * (r.Rank + 1))
			}
			err := comm.AllReduce(ctx, c, x, x, kernels.Sum)
			if err != nil {
				return namesConn(err, r.Rank)
			}
			for i := range x {
				if x[i] != int64(6*i) {
					report.Fact("wrong", 1)
					if checks {
						return fmt.Errorf("call %d ended well, element %d is %d, want %d", k, i, x[i], 6*i)
					}
					break // the others, who may have what they want, go on
				}
			}
		}
		if checks {
			return errors.New("no bit was found flipped")
		}
		return nil
	})
	r.Case("close", func(*cluster.Case) error { c.Close(); return settles(before, 0) })
}

// namesConn checks that an error is about a message between ranks 1 and 2.
func namesConn(err error, rank int) error {
	var e *comm.Error
	switch {
	case !errors.Is(err, comm.ErrAborted) || !errors.Is(err, transport.ErrCorrupt) || !errors.As(err, &e):
		return fmt.Errorf("not ErrAborted and ErrCorrupt: %w", err)
	case len(e.Ranks) != 1 || e.Ranks[0] != 1:
		return fmt.Errorf("blames %v, want the other end of rank 2's connection, 1: %w", e.Ranks, err)
	}
	words := []string{"receive: rank 1 ", "(communicator " + e.Comm + ", channel 0)", "message 40"}
	if rank != 2 {
		words = append(words, "rank 2 gave up")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			return fmt.Errorf("%q is missing in: %w", w, err)
		}
	}
	return nil
}

// TestFlippedBit: with GCCL_CHECK=crc a bit that flips on the way is an error on all ranks that names the connection and the message; without,
// it is wrong data.
func TestFlippedBit(t *testing.T) {
	for _, over := range transports() {
		for _, check := range []string{"crc", "none"} {
			t.Run(over+"-"+check, func(t *testing.T) {
				res := cluster.Run(t, cluster.Launch{Job: "flipped", Ranks: 3, Timeout: 2 * time.Minute, Env: []string{
					"GCCL_TRANSPORT=" + over, "GCCL_CHECK=" + check, "GCCL_ALGORITHM=ring", "GCCL_FAULTS=rank=1,peer=2,min=1000,after=40,times=1:flip=777"}})
				var wrong int64
				for rank := range 3 {
					n, _ := res.Fact("found", rank, "wrong")
					wrong += n
				}
				require.Equal(t, check == "none", wrong > 0, "wrong data on %d ranks", wrong)
			})
		}
	}
}
