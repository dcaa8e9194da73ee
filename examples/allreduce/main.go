// Command allreduce adds up a vector over all ranks.
//
//	bin/gccl run -n 4 -- go run ./examples/allreduce
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
)

func main() {
	ctx := context.Background()
	c, err := comm.New(ctx, comm.Config{}) // who we are comes from the launcher's environment
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	gradient := []float32{1, 2, 3}
	sum := make([]float32, len(gradient))
	if err := comm.AllReduce(ctx, c, sum, gradient, kernels.Sum); err != nil {
		log.Fatal(err) // names the rank that is to blame
	}
	fmt.Println("rank", c.Rank(), "of", c.Size(), "has", sum)
}
