package transport

import "fmt"

// Past is what an endpoint remembers of connections that its user has closed, and of communicators that it has left: the latest of either, so many that
// who comes late for one is told. The endpoint of a family sees many communicators come and go, and each leaves nothing else behind. The zero value is
// ready for use, by one at a time.
type Past struct {
	keys  memory[Key] // … and why there was no connection, or nil
	comms memory[uint64]
}

// errLeftComm is why there is no connection on a communicator that our user has left.
var errLeftComm = fmt.Errorf("%w: our end of the communicator was closed", ErrLeft)

// Add remembers a key and why there was no connection, nil if there was one, and forgets the oldest if there are most already.
func (p *Past) Add(k Key, why error, most int) { p.keys.add(k, why, most) }

// Leave remembers a communicator that our user has left, and forgets the oldest if there are most already.
func (p *Past) Leave(comm uint64, most int) { p.comms.add(comm, errLeftComm, most) }

// Of reports whether a key is of the past, and why there was no connection. Of one that there was, it is nil, though the communicator was left since:
// whoever comes for it is late, and is not to believe that there was none.
func (p *Past) Of(k Key) (why error, is bool) {
	if why, is = p.keys.why[k]; !is {
		why, is = p.comms.why[k.Comm]
	}
	return why, is
}

// Left reports whether our user has left that communicator.
func (p *Past) Left(comm uint64) bool { return p.comms.why[comm] != nil }

// Len is how many keys and communicators are remembered.
func (p *Past) Len() int { return len(p.keys.why) + len(p.comms.why) }

// memory holds so much, and then forgets the oldest.
type memory[T comparable] struct {
	why  map[T]error
	all  []T // a ring, in the order in which they came
	next int // the oldest, once it is full
}

func (m *memory[T]) add(x T, why error, most int) {
	if m.why == nil {
		m.why = map[T]error{}
	}
	if _, again := m.why[x]; again {
		m.why[x] = why
		return
	}
	m.why[x] = why
	if len(m.all) < most {
		m.all = append(m.all, x)
		return
	}
	delete(m.why, m.all[m.next])
	m.all[m.next] = x
	m.next = (m.next + 1) % most
}
