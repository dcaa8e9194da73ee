//go:build linux && cgo

package verbs

// FD returns an epoll descriptor, always the same, of the completion channels and of news from the background. It is to be asked for
// before each sleep, by the driver: it arms the completion queues, which costs the device an event and the kernel an interrupt, so that
// who spins never pays for it. What is in the queues by then makes the descriptor readable at once.
func (e *endpoint) FD() int {
	news := false
	for _, n := range e.nics {
		if n.poll(e.completions[:]) { // a message may have been read by its seal, whose completion had made the event
			news = true
		}
		if !n.armed && n.failure.Load() == nil {
			if n.arm() || n.poll(e.completions[:]) {
				news = true
			}
		}
	}
	if news {
		e.poke()
	}
	return e.epoll
}

// poll takes a batch of completions of each port, and reports whether there were any.
func (e *endpoint) poll() (any bool) {
	for _, n := range e.nics {
		if n.poll(e.completions[:]) {
			any = true
		}
	}
	return any
}
