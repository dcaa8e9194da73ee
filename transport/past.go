package transport

// Past is the keys of an endpoint's connections that their user has closed: the latest, so many that who comes late for one is told. The endpoint of a
// family sees many communicators come and go, and each leaves nothing else behind. The zero value is ready for use, by one at a time.
type Past struct {
	why  map[Key]error // why there was no connection, or nil
	keys []Key         // a ring, in the order in which they came
	next int           // the oldest, once it is full
}

// Add remembers a key and why there was no connection, nil if there was one, and forgets the oldest if there are most already.
func (p *Past) Add(k Key, why error, most int) {
	if p.why == nil {
		p.why = map[Key]error{}
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

// Of reports whether a key is of the past, and why there was no connection.
func (p *Past) Of(k Key) (why error, is bool) {
	why, is = p.why[k]
	return why, is
}

// Len is how many keys are remembered.
func (p *Past) Len() int { return len(p.why) }
