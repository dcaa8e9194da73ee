// The interpreters of the 8-bit floating-point types, whose conversions want compute capability 9.0.
#include "interpret.h"

#define FLOAT8S(op, Op) INTERPRET(op, f8e4m3, e4m3, Op) INTERPRET(op, f8e5m2, e5m2, Op)

FLOAT8S(sum, Sum)
FLOAT8S(avg, Avg)
FLOAT8S(prod, Prod)
FLOAT8S(min, Min)
FLOAT8S(max, Max)
