//go:build linux

package cluster

import "hash/crc32"

// Case is a case under way on one rank.
type Case struct {
	sum    uint32
	summed bool
	facts  map[string]int64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Same says that b must have the same bits on every rank that calls it in this case: the parent compares checksums.
// It may be called for several pieces.
func (c *Case) Same(b []byte) {
	c.sum = crc32.Update(c.sum, castagnoli, b)
	c.summed = true
}

// Fact gives the parent a number to judge by, in [Result.Fact].
func (c *Case) Fact(name string, n int64) {
	if c.facts == nil {
		c.facts = map[string]int64{}
	}
	c.facts[name] = n
}
