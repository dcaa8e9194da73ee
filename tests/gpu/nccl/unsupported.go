//go:build !linux || !cgo

package nccl

import (
	"errors"
	"fmt"
	"unsafe"
)

// The kinds of calls.
const (
	AllReduce = iota
	AllGather
	ReduceScatter
	AllToAll
	Broadcast
	SendRecv
)

// Types of elements.
const (
	Float32  = 7
	Bfloat16 = 9
)

// A Comm is none in this build.
type Comm struct{}

var errUnsupported = fmt.Errorf("nccl: built without cgo: %w", errors.ErrUnsupported)

// Version says that this build has none.
func Version() (int, error) { return 0, errUnsupported }

// New makes none.
func New(int, int64, bool) (*Comm, error) { return nil, errUnsupported }

// Source is never called.
func (c *Comm) Source(int) unsafe.Pointer { return nil }

// Registered is never called.
func (c *Comm) Registered() bool { return false }

// Do is never called.
func (c *Comm) Do(int, int, int, []uintptr) error { return errUnsupported }

// Close is never called.
func (c *Comm) Close() error { return nil }
