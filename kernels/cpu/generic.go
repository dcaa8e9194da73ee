package cpu

import "github.com/gccl-project/gccl/kernels"

// A spanSet has a span for every type and operator.
type spanSet [12][4]span

// genericSpans are plain Go. The functions are spelled out, so that each is compiled for its type.
var genericSpans = spanSet{
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

	kernels.Float8e4m3: {kernels.Sum: e4m3.reduce(kernels.Sum), kernels.Prod: e4m3.reduce(kernels.Prod), kernels.Max: e4m3.reduce(kernels.Max), kernels.Min: e4m3.reduce(kernels.Min)},
	kernels.Float8e5m2: {kernels.Sum: e5m2.reduce(kernels.Sum), kernels.Prod: e5m2.reduce(kernels.Prod), kernels.Max: e5m2.reduce(kernels.Max), kernels.Min: e5m2.reduce(kernels.Min)},
}

// genericPreMuls has nil for integer types.
var genericPreMuls = [12]preMulSpan{
	kernels.Float16: preMulHalf, kernels.Bfloat16: preMulBFloat16, kernels.Float32: preMul[float32], kernels.Float64: preMul[float64],
	kernels.Float8e4m3: e4m3.preMul, kernels.Float8e5m2: e5m2.preMul,
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
