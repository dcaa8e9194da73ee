package transport

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// Errors to decide on, with errors.Is.
var (
	ErrClosed   = errors.New("transport closed")
	ErrGone     = errors.New("peer is gone")
	ErrCorrupt  = errors.New("checksum mismatch")
	ErrSequence = errors.New("message out of sequence")
	ErrMismatch = errors.New("ranks disagree about the call")
	ErrSpace    = errors.New("not enough memory")

	// ErrLeft is ErrGone of a peer that closed the connection in good order. It may have done so because of what somebody
	// else did to it.
	ErrLeft error = leftError{}
)

type leftError struct{}

func (leftError) Error() string { return ErrGone.Error() }

// Is makes it an ErrGone.
func (leftError) Is(target error) bool { return target == ErrGone }

// PeerError wraps whatever befell a conn.
type PeerError struct {
	Transport string
	Key       Key
	Peer      string // what Conn.Peer says
	Op        string // "send", "receive", "connect"
	Err       error
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("%s: %s: %s (communicator %016x, channel %d): %v", e.Transport, e.Op, e.Peer, e.Key.Comm, e.Key.Channel, e.Err)
}

func (e *PeerError) Unwrap() error { return e.Err }

// OwnError is a failure of our own end that its peer cannot help and has no part in: we lack memory, descriptors, or something of a device. In a
// PeerError it says whose fault it is.
type OwnError struct {
	Rank int // ours, in the communicator
	Err  error
}

// Error is for the peer's log as well as ours.
func (e *OwnError) Error() string {
	return fmt.Sprintf("this is rank %d's own failure: %v", e.Rank, e.Err)
}

// Unwrap returns the failure.
func (e *OwnError) Unwrap() error { return e.Err }

// Culprits are the ranks to blame.
func (e *OwnError) Culprits() []int { return []int{e.Rank} }

// Scarce reports whether there is too little of something here, memory or descriptors, which no peer can help.
func Scarce(err error) bool {
	return slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}, func(e error) bool { return errors.Is(err, e) })
}

// TagError says that the peer's next message is not the one that was asked for:
// the ranks called different collectives, or the same with other arguments. It
// is ErrMismatch.
type TagError struct {
	Seq              uint64 // number of the message in its stream
	Tag, WantTag     uint32
	Bytes, WantBytes int
}

func (e *TagError) Error() string {
	return fmt.Sprintf("message %d has tag %08x and %d bytes, want tag %08x and %d bytes: the ranks called different collectives or gave different arguments",
		e.Seq, e.Tag, e.Bytes, e.WantTag, e.WantBytes)
}

// Is makes a TagError an ErrMismatch.
func (e *TagError) Is(target error) bool { return target == ErrMismatch }

// SequenceError says that a frame was lost, doubled or reordered. It is
// ErrSequence.
type SequenceError struct{ Got, Want uint64 }

func (e *SequenceError) Error() string {
	return fmt.Sprintf("got message %d, want %d: a frame was lost, doubled or reordered", e.Got, e.Want)
}

// Is makes a SequenceError an ErrSequence.
func (e *SequenceError) Is(target error) bool { return target == ErrSequence }
