package tcp

import "github.com/gccl-project/gccl/transport"

// past is the keys of connections that our user has closed: the latest, so many that who comes late for one is told. The endpoint of a family
// sees many communicators come and go, and each leaves nothing else behind.
type past struct {
	why  map[transport.Key]error // why there was no connection, or nil
	keys []transport.Key         // a ring, in the order in which they came
	next int                     // the oldest, once it is full
}

// add remembers a key, and forgets the oldest if there are too many.
func (p *past) add(k transport.Key, why error, most int) {
	if p.why == nil {
		p.why = map[transport.Key]error{}
	}
	p.why[k] = why
	if len(p.keys) < most {
		p.keys = append(p.keys, k)
		return
	}
	delete(p.why, p.keys[p.next])
	p.keys[p.next] = k
	p.next = (p.next + 1) % most
}

// of reports whether a key is of the past, and why there was no connection.
func (p *past) of(k transport.Key) (why error, is bool) {
	why, is = p.why[k]
	return why, is
}
