package cpu_test

import (
	"fmt"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cpu"
)

func ExampleReducer() {
	fromRank0, mine, fromRank2 := []int32{1, 2, 3}, []int32{10, 20, 30}, []int32{100, 200, 300}
	sum, err := cpu.Reducer(kernels.DTypeOf[int32](), kernels.Avg)
	if err != nil {
		fmt.Println(err)
		return
	}
	divide, err := cpu.PostDiv(kernels.Int32)
	if err != nil {
		fmt.Println(err)
		return
	}
	dst := unsafe.Pointer(&mine[0])
	sum(dst, []unsafe.Pointer{unsafe.Pointer(&fromRank0[0]), dst, unsafe.Pointer(&fromRank2[0])}, len(mine))
	fmt.Println(mine)
	divide(dst, len(mine), 3)
	fmt.Println(mine)
	// Output:
	// [111 222 333]
	// [37 74 111]
}
