package auth

import (
	"errors"
	"fmt"
)

// Errors to decide by. An [*Error] of kind [NotGccl] is ErrStranger, one of kind [WrongSecret] is ErrSecret. Neither gets
// better by trying the same peer again; the other kinds may.
var (
	ErrStranger = errors.New("the peer does not speak gccl's handshake")
	ErrSecret   = errors.New("the peer does not know this job's secret")
)

// Kind says in which way a handshake failed.
type Kind uint8

const (
	// NotGccl: the first eight bytes were not ours (a scanner, a health check, another program's port).
	NotGccl Kind = iota + 1
	// WrongSecret: it speaks the protocol but is of another job or service.
	WrongSecret
	// Silent: it was connected but said too little within the time-out.
	Silent
	// Left: it closed or reset the connection in the middle.
	Left
	// Early: it came before this side knew what it serves, and that took too long.
	Early
	// Broken: our own side could not begin (empty secret, connection already closed).
	Broken
)

// String returns the kind as log lines spell it.
func (k Kind) String() string {
	switch k {
	case NotGccl:
		return "not gccl"
	case WrongSecret:
		return "wrong secret"
	case Silent:
		return "silent"
	case Left:
		return "left"
	case Early:
		return "early"
	case Broken:
		return "broken"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Error is a failed handshake.
type Error struct {
	Kind    Kind
	Peer    string // remote address
	Service string
	Err     error // what the operating system said, or what was seen; may be nil
}

func (e *Error) Error() string {
	s := fmt.Sprintf("handshake with %s for %q failed (%s)", e.Peer, e.Service, e.Kind)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	switch e.Kind {
	case NotGccl:
		s += "; another program answers at this port"
	case WrongSecret:
		s += "; it belongs to another job, or the secret differs"
	}
	return s
}

// Unwrap returns the sentinel of the kind, if it has one, and the cause.
func (e *Error) Unwrap() []error {
	var errs []error
	switch e.Kind {
	case NotGccl:
		errs = append(errs, ErrStranger)
	case WrongSecret:
		errs = append(errs, ErrSecret)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}
