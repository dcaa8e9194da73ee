package comm_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

// Two ranks of one process meet at a root that the program serves itself. Ranks are usually processes, started by gccl
// run or torchrun, and then a zero Config is enough.
func ExampleAllReduce() {
	ctx := context.Background()
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	defer root.Close()

	results := make([][]float32, 2)
	var ranks sync.WaitGroup
	for rank := range results {
		ranks.Go(func() {
			c, err := comm.New(ctx, comm.Config{Rank: rank, Size: 2, ID: root.ID()})
			if err != nil {
				log.Fatal(err)
			}
			defer c.Close()
			results[rank] = []float32{1, float32(rank)}
			if err := comm.AllReduce(ctx, c, results[rank], results[rank], kernels.Sum); err != nil {
				log.Fatal(err)
			}
		})
	}
	ranks.Wait()
	fmt.Println(results)
	// Output: [[2 1] [2 1]]
}

// Sends and receives that depend on each other are begun together.
func ExampleGroup() {
	ctx := context.Background()
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	defer root.Close()

	got := make([][]int32, 2)
	var ranks sync.WaitGroup
	for rank := range got {
		ranks.Go(func() {
			c, err := comm.New(ctx, comm.Config{Rank: rank, Size: 2, ID: root.ID()})
			if err != nil {
				log.Fatal(err)
			}
			defer c.Close()
			mine := []int32{int32(10 * rank)}
			got[rank] = make([]int32, 1)
			other := 1 - rank
			err = comm.Group(ctx,
				comm.Call{Comm: c, Kind: comm.KindSend, Src: kernels.MemOf(mine), Count: 1, DType: kernels.Int32, Peer: other},
				comm.Call{Comm: c, Kind: comm.KindRecv, Dst: kernels.MemOf(got[rank]), Count: 1, DType: kernels.Int32, Peer: other},
			)
			if err != nil {
				log.Fatal(err)
			}
		})
	}
	ranks.Wait()
	fmt.Println(got)
	// Output: [[10] [0]]
}
