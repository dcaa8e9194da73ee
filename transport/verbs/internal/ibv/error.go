package ibv

import "syscall"

// Error is a verb that failed.
type Error struct {
	Verb  string // "ibv_modify_qp"
	Errno syscall.Errno
}

func (e *Error) Error() string { return e.Verb + ": " + e.Errno.Error() }

// Unwrap returns the errno, which is errors.ErrUnsupported where the provider or the library lacks the verb.
func (e *Error) Unwrap() error { return e.Errno }
