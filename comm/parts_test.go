package comm

import "slices"

// PartsAnyway has ranks of this process be as if in processes of their own, with GPUs that are linked, until the test is over.
func PartsAnyway(t interface{ Cleanup(func()) }, yes bool) {
	partsAnyway = yes
	t.Cleanup(func() { partsAnyway = false })
}

// Pinned returns the bytes of pinned memory for rounds that a communicator's proxy has, and of those that are in use, and how many captured trips it knows.
func Pinned(c *Comm) (all, used int64, captured int) {
	y := c.proxy
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, s := range append(slices.Clone(y.old), y.slots) {
		used = proxyDepth * (s.in + s.out)
		all += used
	}
	if y.trips != nil {
		y.trips.mu.Lock()
		defer y.trips.mu.Unlock()
		captured = len(y.trips.captured)
	}
	return all, used, captured
}

// Reserve has a communicator's proxy have so much room for a round.
func Reserve(c *Comm, in, out int64) error {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	return c.proxy.reserve(in, out)
}
