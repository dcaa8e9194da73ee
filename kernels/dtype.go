package kernels

import (
	"fmt"
	"slices"
	"strings"
)

// A DType says which numbers a buffer holds. Its values are NCCL's (ncclDataType_t), so they can
// cross a C boundary or a wire unchanged. The zero value is Int8.
type DType uint8

// The data types. Float16 is IEEE 754 binary16 ([Half]), Bfloat16 is the upper half of a float32
// ([BFloat16]); Float8e4m3 is [Float8E4M3], Float8e5m2 is [Float8E5M2].
const (
	Int8       DType = 0
	Uint8      DType = 1
	Int32      DType = 2
	Uint32     DType = 3
	Int64      DType = 4
	Uint64     DType = 5
	Float16    DType = 6
	Float32    DType = 7
	Float64    DType = 8
	Bfloat16   DType = 9
	Float8e4m3 DType = 10
	Float8e5m2 DType = 11
)

// dtypes describes each DType at its own index: nccl-tests' name first, then what else is accepted.
var dtypes = [...]struct {
	size    int
	float   bool
	name    string
	aliases string
}{
	Int8:       {1, false, "int8", "i8 char"},
	Uint8:      {1, false, "uint8", "u8 uchar byte"},
	Int32:      {4, false, "int32", "i32 int"},
	Uint32:     {4, false, "uint32", "u32 uint"},
	Int64:      {8, false, "int64", "i64"},
	Uint64:     {8, false, "uint64", "u64"},
	Float16:    {2, true, "half", "float16 fp16 f16"},
	Float32:    {4, true, "float", "float32 fp32 f32"},
	Float64:    {8, true, "double", "float64 fp64 f64"},
	Bfloat16:   {2, true, "bfloat16", "bf16"},
	Float8e4m3: {1, true, "f8e4m3", "float8e4m3 fp8_e4m3 e4m3"},
	Float8e5m2: {1, true, "f8e5m2", "float8e5m2 fp8_e5m2 e5m2"},
}

// DTypes returns all data types in ascending order. The slice is the caller's.
func DTypes() []DType {
	all := make([]DType, len(dtypes))
	for i := range all {
		all[i] = DType(i)
	}
	return all
}

// Valid reports whether d is one of the data types above.
func (d DType) Valid() bool { return int(d) < len(dtypes) }

// Size returns the bytes of one element, or 0 when d is not valid.
func (d DType) Size() int {
	if !d.Valid() {
		return 0
	}
	return dtypes[d].size
}

// IsFloat reports whether d is a floating-point type; false when d is not valid.
func (d DType) IsFloat() bool { return d.Valid() && dtypes[d].float }

// String returns nccl-tests' name of d: int8 uint8 int32 uint32 int64 uint64 half float double
// bfloat16 f8e4m3 f8e5m2. A value that is not valid gives its number, as in "DType(77)".
func (d DType) String() string {
	if !d.Valid() {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Check returns nil when d is valid and otherwise a *[ValueError].
func (d DType) Check() error {
	if d.Valid() {
		return nil
	}
	return &ValueError{What: "data type", Value: d.String(), Accepted: acceptedDTypes()}
}

// ParseDType returns the data type that name stands for: what String returns, or a usual other
// spelling (char, int, float16, fp16, float32, f32, bf16, …), in upper or lower case. As in C and in
// nccl-tests "int" is 32 bits wide, unlike Go's. Any other name gives a *[ValueError] that lists
// the accepted ones.
func ParseDType(name string) (DType, error) {
	word := strings.ToLower(name)
	for d, t := range dtypes {
		if word == t.name || slices.Contains(strings.Fields(t.aliases), word) {
			return DType(d), nil
		}
	}
	return 0, &ValueError{What: "data type", Value: name, Accepted: acceptedDTypes()}
}

func acceptedDTypes() string {
	list := make([]string, len(dtypes))
	for i, t := range dtypes {
		list[i] = t.name + " (" + strings.Join(strings.Fields(t.aliases), ", ") + ")"
	}
	return strings.Join(list, ", ")
}
