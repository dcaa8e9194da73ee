package cpu

import "github.com/gccl-project/gccl/kernels"

// genericReduce returns the plain Go fold. The functions are spelled out, so that each is compiled
// for its type and none is a closure made at look-up.
func genericReduce(d kernels.DType, op kernels.RedOp) Reduce { return genericFolds[d][op] }

var genericFolds = [...][4]Reduce{
	kernels.Int8:     {kernels.Sum: sum[int8], kernels.Prod: prod[int8], kernels.Max: maximum[int8], kernels.Min: minimum[int8]},
	kernels.Uint8:    {kernels.Sum: sum[uint8], kernels.Prod: prod[uint8], kernels.Max: maximum[uint8], kernels.Min: minimum[uint8]},
	kernels.Int32:    {kernels.Sum: sum[int32], kernels.Prod: prod[int32], kernels.Max: maximum[int32], kernels.Min: minimum[int32]},
	kernels.Uint32:   {kernels.Sum: sum[uint32], kernels.Prod: prod[uint32], kernels.Max: maximum[uint32], kernels.Min: minimum[uint32]},
	kernels.Int64:    {kernels.Sum: sum[int64], kernels.Prod: prod[int64], kernels.Max: maximum[int64], kernels.Min: minimum[int64]},
	kernels.Uint64:   {kernels.Sum: sum[uint64], kernels.Prod: prod[uint64], kernels.Max: maximum[uint64], kernels.Min: minimum[uint64]},
	kernels.Float32:  {kernels.Sum: sum[float32], kernels.Prod: prod[float32], kernels.Max: maximum[float32], kernels.Min: minimum[float32]},
	kernels.Float64:  {kernels.Sum: sum[float64], kernels.Prod: prod[float64], kernels.Max: maximum[float64], kernels.Min: minimum[float64]},
	kernels.Float16:  {kernels.Sum: sumHalf, kernels.Prod: prodHalf, kernels.Max: maximumHalf, kernels.Min: minimumHalf},
	kernels.Bfloat16: {kernels.Sum: sumBFloat16, kernels.Prod: prodBFloat16, kernels.Max: maximumBFloat16, kernels.Min: minimumBFloat16},
}

func genericPreMul(d kernels.DType) PreMulReduce {
	switch d {
	case kernels.Float16:
		return preMulHalf
	case kernels.Bfloat16:
		return preMulBFloat16
	case kernels.Float32:
		return preMul[float32]
	case kernels.Float64:
		return preMul[float64]
	}
	return nil
}

func genericPostDiv(d kernels.DType) PostDivide {
	switch d {
	case kernels.Int8:
		return divideSigned[int8]
	case kernels.Uint8:
		return divideUnsigned[uint8]
	case kernels.Int32:
		return divideSigned[int32]
	case kernels.Uint32:
		return divideUnsigned[uint32]
	case kernels.Int64:
		return divideSigned[int64]
	case kernels.Uint64:
		return divideUnsigned[uint64]
	}
	return nil
}
