package mem

import "math"

// Host returns the network as the host of that name, not empty, sees it: endpoints opened on it share the host's fate. Hosts with
// one name are one host.
func (n *Network) Host(name string) *Network {
	if n.of != nil {
		n = n.of
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts == nil {
		n.hosts, n.cut, n.dead = map[uint64]string{}, map[string]bool{}, map[string]bool{}
	}
	return &Network{of: n, host: name}
}

// Cut takes a host off the network, without a word to anybody, as when its cable is pulled or its processes are stopped: what
// it and others send to each other from now on, the end of a connection included, is held until Heal. Messages that have
// arrived are still read. Anyone may call it.
func (n *Network) Cut(host string) { n.change(host, func() { n.cut[host] = true }) }

// Heal ends Cut: what was held arrives. Anyone may call it.
func (n *Network) Heal(host string) { n.change(host, func() { delete(n.cut, host) }) }

// Kill resets all connections of a host, those to come included, as the death of its processes does. Its endpoints are still to
// be closed. Anyone may call it.
func (n *Network) Kill(host string) { n.change(host, func() { n.dead[host] = true }) }

// Len counts what is open: endpoints, and links that are open at one end at least.
func (n *Network) Len() (endpoints, links int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.open), len(n.links)
}

// change applies a change to a host's links, and wakes their ends.
func (n *Network) change(host string, f func()) {
	n.mu.Lock()
	if n.hosts == nil {
		n.mu.Unlock()
		return // no host has been made
	}
	f()
	var wake []*endpoint
	for k, l := range n.links {
		a, b := n.hosts[k.ids[0]], n.hosts[k.ids[1]]
		if a != host && b != host {
			continue
		}
		if n.dead[host] {
			l.reset()
		}
		l.setCut(n.cut[a] || n.cut[b])
		wake = append(wake, n.open[k.ids[0]], n.open[k.ids[1]])
	}
	n.mu.Unlock()
	for _, e := range wake {
		e.wake()
	}
}

// setCut begins to hold what passes, or lets it go.
func (l *link) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut == cut {
		return
	}
	l.cut = cut
	for side := range l.queues {
		for i := range l.queues[side] {
			l.queues[side][i].setCut(cut)
		}
		if !cut {
			l.told[side].Store(l.closed[side].Load())
		}
	}
}

func (q *queue) setCut(cut bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cut, q.unread = cut, math.MaxUint64
	if cut {
		if first := q.firstLent(); first < q.accepted {
			q.unread = first
		}
	} else {
		q.publish()
	}
}

// reset breaks the connection for both ends, unless no word of it can pass.
func (l *link) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cut {
		l.broken.Store(true)
	}
}
