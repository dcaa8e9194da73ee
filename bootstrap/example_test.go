package bootstrap_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gccl-project/gccl/bootstrap"
)

// Three ranks, here goroutines and elsewhere processes, meet at a root and tell each other a word.
func ExampleJoin() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer root.Close()

	words := []string{"one", "idea", "each"}
	var ranks sync.WaitGroup
	for rank := range words {
		ranks.Go(func() {
			s, err := bootstrap.Join(ctx, bootstrap.Config{Rank: rank, World: len(words), ID: root.ID()})
			if err != nil {
				fmt.Println(err)
				return
			}
			defer s.Close()
			all, err := s.AllGather(ctx, []byte(words[rank]))
			if err != nil {
				fmt.Println(err)
				return
			}
			if rank == 2 {
				fmt.Printf("%s\n", all)
			}
		})
	}
	ranks.Wait()
	// Output: [one idea each]
}
