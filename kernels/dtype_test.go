package kernels_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gccl-project/gccl/kernels"
)

func equal[T comparable](t *testing.T, got, want T, what ...any) {
	t.Helper()
	if got != want {
		t.Errorf("got %v, want %v %s", got, want, fmt.Sprint(what...))
	}
}

func TestDTypes(t *testing.T) {
	// Numbers, names, sizes and kinds as they stand in NCCL's header and nccl-tests' tables.
	want := []struct {
		d     kernels.DType
		name  string
		size  int
		float bool
	}{
		{kernels.Int8, "int8", 1, false}, {kernels.Uint8, "uint8", 1, false},
		{kernels.Int32, "int32", 4, false}, {kernels.Uint32, "uint32", 4, false},
		{kernels.Int64, "int64", 8, false}, {kernels.Uint64, "uint64", 8, false},
		{kernels.Float16, "half", 2, true}, {kernels.Float32, "float", 4, true},
		{kernels.Float64, "double", 8, true}, {kernels.Bfloat16, "bfloat16", 2, true},
		{kernels.Float8e4m3, "f8e4m3", 1, true}, {kernels.Float8e5m2, "f8e5m2", 1, true},
	}
	equal(t, len(kernels.DTypes()), len(want))
	for i, d := range kernels.DTypes() {
		w := want[i]
		equal(t, d, w.d)
		equal(t, int(d), i)
		equal(t, d.String(), w.name)
		equal(t, d.Size(), w.size, d)
		equal(t, d.IsFloat(), w.float, d)
		equal(t, d.Valid(), true, d)
		equal(t, d.Check(), nil, d)
		parsed, err := kernels.ParseDType(d.String())
		equal(t, parsed, d, err)
	}
}

func TestDTypeOutOfRange(t *testing.T) {
	for i := len(kernels.DTypes()); i < 256; i++ {
		d := kernels.DType(i)
		equal(t, d.Valid(), false)
		equal(t, d.Size(), 0)
		equal(t, d.IsFloat(), false)
		equal(t, d.String(), fmt.Sprintf("DType(%d)", i))
		equal(t, errors.Is(d.Check(), kernels.ErrInvalid), true)
	}
}

func TestParseDType(t *testing.T) {
	for name, want := range map[string]kernels.DType{
		"char": kernels.Int8, "i8": kernels.Int8, "uchar": kernels.Uint8, "byte": kernels.Uint8,
		"int": kernels.Int32, "uint": kernels.Uint32, "i64": kernels.Int64, "u64": kernels.Uint64,
		"float16": kernels.Float16, "fp16": kernels.Float16, "FP16": kernels.Float16, "Half": kernels.Float16,
		"float32": kernels.Float32, "f32": kernels.Float32, "fp32": kernels.Float32,
		"float64": kernels.Float64, "f64": kernels.Float64, "bf16": kernels.Bfloat16, "BF16": kernels.Bfloat16,
		"fp8_e4m3": kernels.Float8e4m3, "e5m2": kernels.Float8e5m2,
	} {
		got, err := kernels.ParseDType(name)
		equal(t, got, want, name, err)
		equal(t, err, nil, name)
	}
	for _, name := range []string{"", " ", "int16", "float8", "f8", "int32 ", "i8 char", "DType(3)", "3"} {
		_, err := kernels.ParseDType(name)
		var value *kernels.ValueError
		if !errors.As(err, &value) || !errors.Is(err, kernels.ErrInvalid) {
			t.Errorf("%q gives %v, want a *ValueError", name, err)
			continue
		}
		equal(t, value.Value, name)
		for _, d := range kernels.DTypes() {
			if !strings.Contains(err.Error(), d.String()) {
				t.Errorf("%q does not list %s", err, d)
			}
		}
	}
}

func TestRedOps(t *testing.T) {
	want := []struct {
		op   kernels.RedOp
		name string
	}{{kernels.Sum, "sum"}, {kernels.Prod, "prod"}, {kernels.Max, "max"}, {kernels.Min, "min"}, {kernels.Avg, "avg"}}
	equal(t, len(kernels.RedOps()), len(want))
	for i, op := range kernels.RedOps() {
		equal(t, op, want[i].op)
		equal(t, int(op), i)
		equal(t, op.String(), want[i].name)
		equal(t, op.Valid(), true)
		equal(t, op.Check(), nil)
		for _, name := range []string{op.String(), strings.ToUpper(op.String())} {
			parsed, err := kernels.ParseRedOp(name)
			equal(t, parsed, op, name, err)
		}
	}
	equal(t, kernels.RedOp(5).Valid(), false)
	equal(t, kernels.RedOp(255).String(), "RedOp(255)")
	equal(t, kernels.RedOp(5).Check().Error(), `kernels: "RedOp(5)" is no reduction operator; accepted: sum, prod, max, min, avg`)
	for _, name := range []string{"", "add", "mulsum", "sum,prod"} {
		_, err := kernels.ParseRedOp(name)
		equal(t, errors.Is(err, kernels.ErrInvalid), true, name)
	}
}
