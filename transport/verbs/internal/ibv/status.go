package ibv

import "fmt"

// Status is the result of a work request. All but Success are errors, after which the QP is in the state Err.
type Status uint32

// Statuses that someone decides on.
const (
	Success          Status = 0
	Flushed          Status = 5 // the QP had failed before
	RemoteAccess     Status = 10
	RetryExceeded    Status = 12
	RNRRetryExceeded Status = 13
)

var statuses = [...]string{
	"success", "local length error", "local QP operation error", "local EE context operation error", "local protection error",
	"flushed: the QP had failed before", "memory window bind error", "bad response", "local access error", "remote invalid request",
	"remote access error: a wrong key, or memory that is not registered for it", "remote operation error",
	"transport retries exceeded: the peer did not acknowledge", "receiver-not-ready retries exceeded: the peer posted no receive",
	"local RDD violation", "remote invalid read request", "remote abort", "invalid EE context number", "invalid EE context state",
	"fatal error", "response timeout", "general error", "tag matching error", "tag matching rendezvous incomplete",
}

// Local reports whether our own end failed, by the device's word: the peer has no part in it.
func (s Status) Local() bool {
	switch s {
	case 2, 3, 4, 6, 8, 19, 21: // errors of the QP's operation, the EE context, protection, binding and access; fatal, general
		return true
	}
	return false
}

func (s Status) String() string {
	if int(s) < len(statuses) {
		return statuses[s]
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// Error makes a Status an error: "remote access error: … (status 10)".
func (s Status) Error() string { return fmt.Sprintf("%v (status %d)", s.String(), uint32(s)) }
