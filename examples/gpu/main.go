// Command gpu adds up a vector over two ranks, goroutines of this process, on GPU 0.
//
//	go run ./examples/gpu
package main

import (
	"context"
	"fmt"
	"log"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"github.com/gccl-project/gccl/bootstrap"
	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

func main() {
	ctx := context.Background()
	gpu, err := cuda.Open(0)
	if err != nil {
		log.Fatal(err) // says so when there is no driver
	}
	defer gpu.Close()
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	defer root.Close()
	var ranks errgroup.Group
	for r := range 2 {
		ranks.Go(func() error {
			return rank(ctx, gpu, comm.Config{Rank: r, Size: 2, ID: root.ID(), Device: gpu.Device()})
		})
	}
	if err := ranks.Wait(); err != nil {
		log.Fatal(err)
	}
}

func rank(ctx context.Context, gpu *cuda.Device, cfg comm.Config) error {
	c, err := comm.New(ctx, cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	stream, err := gpu.NewStream() // or any CUstream of the device's primary context
	if err != nil {
		return err
	}
	defer gpu.DestroyStream(stream)

	gradient := []float32{1, 2, 3}
	bytes := int64(len(gradient)) * 4
	m, err := c.AllocOn(gpu.Device(), bytes) // or memory from cudaMalloc
	if err != nil {
		return err
	}
	defer c.Free(m)
	host := unsafe.Pointer(&gradient[0])
	if err := gpu.CopyAny(stream, m.Ptr, host, bytes); err != nil {
		return err
	}
	// Queued behind the copy, in place.
	if err := c.Do(ctx, comm.Call{Kind: comm.KindAllReduce, Dst: m, Src: m, Count: len(gradient), DType: kernels.Float32, Stream: stream}); err != nil {
		return err // names the rank that is to blame
	}
	if err := gpu.CopyAny(stream, host, m.Ptr, bytes); err != nil {
		return err
	}
	if err := gpu.Wait(stream); err != nil {
		return err
	}
	fmt.Println("rank", c.Rank(), "of", c.Size(), "has", gradient)
	return nil
}
