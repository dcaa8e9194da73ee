//go:build !linux

package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
)

// An Offer is a file that is there to be taken. Here there is none.
type Offer struct{}

func unsupported() error {
	return fmt.Errorf("handover: not on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// New reports that it is not supported. It closes the file.
func New(f *os.File) (*Offer, error) {
	_ = f.Close()
	return nil, unsupported()
}

// Ticket is of no use.
func (*Offer) Ticket() Ticket { return Ticket{} }

// Close does nothing.
func (*Offer) Close() error { return nil }

// Take reports that it is not supported.
func Take(context.Context, Ticket) (*os.File, error) { return nil, unsupported() }
