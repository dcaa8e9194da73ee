package topology_test

import (
	"fmt"
	"os"

	"github.com/gccl-project/gccl/topology"
)

func ExampleGraph_PairNICs() {
	f, err := os.Open("testdata/topo-matrix/h20x8-5nic-shared.txt") // of nvidia-smi topo -m
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	g, err := topology.Parse(f)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range g.PairNICs(g.GPUs()) {
		fmt.Println(g.Name(c.GPU), g.Name(c.Net), c.Path.Type)
	}
	// Output:
	// GPU0 mlx5_1 PIX
	// GPU1 mlx5_1 PIX
	// GPU2 mlx5_2 PIX
	// GPU3 mlx5_2 PIX
	// GPU4 mlx5_3 PIX
	// GPU5 mlx5_3 PIX
	// GPU6 mlx5_4 PIX
	// GPU7 mlx5_4 PIX
}

func ExampleDiscover() {
	host := topology.Discover(os.DirFS("/"), topology.Unknown[[]topology.GPUFacts]("NVML was not asked"))
	fmt.Println(host.GPUs)
	// Output: unknown: NVML was not asked
}
