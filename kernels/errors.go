package kernels

import (
	"errors"
	"fmt"
)

// ErrInvalid is what errors.Is finds in a *[ValueError].
var ErrInvalid = errors.New("invalid value")

// A ValueError reports a value that means nothing: an unknown name, or a number outside an
// enumeration.
type ValueError struct {
	What     string // what was asked for, such as "data type"
	Value    string // the value as given
	Accepted string // what would have been accepted, for people
}

// Error names the value and what is accepted.
func (e *ValueError) Error() string {
	return fmt.Sprintf("kernels: %q is no %s; accepted: %s", e.Value, e.What, e.Accepted)
}

// Unwrap makes errors.Is(e, [ErrInvalid]) true.
func (e *ValueError) Unwrap() error { return ErrInvalid }

// An UnsupportedError reports a valid data type that a device has no such kernel for. It is known
// before any data moves.
type UnsupportedError struct {
	Kernel   string // what was asked for, such as "PreMul"
	Device   string // who was asked, such as "cpu"
	DType    DType
	Accepted string // what would have been accepted, for people
}

// Error names kernel, device and data type, and what is accepted.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("kernels: %s on %s does not support data type %s; accepted: %s", e.Kernel, e.Device, e.DType, e.Accepted)
}

// Unwrap makes errors.Is(e, [errors.ErrUnsupported]) true.
func (e *UnsupportedError) Unwrap() error { return errors.ErrUnsupported }
