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

// fault says whose failure a status is, by what the InfiniBand specification means by it.
type fault uint8

const (
	shared   fault = iota // the peer's, the way's there, or not known to be our own alone
	own                   // our end's: the peer has no part in it
	ownSends              // our end's, of what it posted to send; of a receive, what the peer sent is wrong
)

var statuses = [...]struct {
	text  string
	fault fault
}{
	{"success", shared},
	{"local length error", ownSends}, // more than a port carries, or more than a receive has room for
	{"local QP operation error", own},
	{"local EE context operation error", own},
	{"local protection error", own},
	{"flushed: the QP had failed before", shared},
	{"memory window bind error", own},
	{"bad response", shared},
	{"local access error: the peer wrote with an immediate where it may not", shared}, // despite its name: our memory is as we registered it
	{"remote invalid request", shared},
	{"remote access error: a wrong key, or memory that is not registered for it", shared},
	{"remote operation error", shared},
	{"transport retries exceeded: the peer did not acknowledge", shared},
	{"receiver-not-ready retries exceeded: the peer posted no receive", shared},
	{"local RDD violation", own},
	{"remote invalid read request", shared},
	{"remote abort", shared},
	{"invalid EE context number", own},
	{"invalid EE context state", own},
	{"fatal error", own},
	{"response timeout", shared},
	{"general error", own}, // of the device's, which has no better word for it
	{"tag matching error", own},
	{"tag matching rendezvous incomplete", shared},
}

// Local reports whether our own end failed, by the device's word, with a request to send or with a receive: the peer has no part in it.
func (s Status) Local(receive bool) bool {
	if int(s) >= len(statuses) {
		return false
	}
	f := statuses[s].fault
	return f == own || f == ownSends && !receive
}

func (s Status) String() string {
	if int(s) < len(statuses) {
		return statuses[s].text
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// Error makes a Status an error: "remote access error: … (status 10)".
func (s Status) Error() string { return fmt.Sprintf("%v (status %d)", s.String(), uint32(s)) }
