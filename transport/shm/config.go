package shm

import (
	"fmt"
	"path/filepath"
	"strings"
)

const (
	defaultDir = "/dev/shm"
	leastSize  = 16 << 20 // of a segment's address space
)

// Config is what shm has besides transport.Options. The zero value works.
type Config struct {
	Dir    string // absolute path of a directory of this host that the ranks share, where they meet; no room is taken there; "": /dev/shm
	HostID string // the user's word for this host (GCCL_HOSTID), at most 256 bytes; "": the boot id tells hosts apart

	// SegmentSize is the address space of the segment in bytes, not memory: the
	// bound on what Alloc and all connections can use together. 0: twice the host's
	// memory, at most 64 GiB. It is lowered to a 64th of ulimit -v.
	SegmentSize int64
	// Slots is how many copied messages of a stream may be on their way at once,
	// 1 to 8, as far as they do not fit a line (48 bytes; 4160 on a first stream with room); 0: 4. With little memory
	// fewer are made, and with much room more of up to 1 MiB together.
	Slots int
	// Staging bounds the bytes of all slots: beyond it a stream that needs longer slots gets one instead of Slots, so that
	// many peers do not take many times the memory. 0: no bound.
	Staging int64
	// LendFrom is the shortest message in bytes that is lent to the peer when it
	// lies in memory from Alloc; shorter ones are copied, as is what fits a line. 0: 4096. Between two
	// ranks lending and copying are equal within 15 % up to 32 KiB, and lending is
	// 1.2 to 1.7 times as fast from 64 KiB on; what several peers read, it saves
	// copying several times. To a peer on a distant processor nothing shorter than 64 KiB is lent.
	LendFrom int
}

// withDefaults fills in and checks; an error names the field and the value.
func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		c.Dir = defaultDir
	}
	if c.Slots == 0 {
		c.Slots = 4
	}
	if c.LendFrom == 0 {
		c.LendFrom = 4096
	}
	switch {
	case !filepath.IsAbs(c.Dir) || strings.ContainsRune(c.Dir, 0):
		return c, fmt.Errorf("shm: Config.Dir is %q, want an absolute path", c.Dir)
	case len(c.HostID) > 256:
		return c, fmt.Errorf("shm: Config.HostID has %d bytes, want at most 256", len(c.HostID))
	case c.SegmentSize < 0 || c.SegmentSize > maxSegment || c.SegmentSize > 0 && c.SegmentSize < leastSize:
		return c, fmt.Errorf("shm: Config.SegmentSize is %d, want 0 or %d to %d", c.SegmentSize, leastSize, int64(maxSegment))
	case c.Staging < 0:
		return c, fmt.Errorf("shm: Config.Staging is %d bytes, want 0 or more", c.Staging)
	case c.Slots < 1 || c.Slots > 8:
		return c, fmt.Errorf("shm: Config.Slots is %d, want 1 to 8", c.Slots)
	case c.LendFrom < 1:
		return c, fmt.Errorf("shm: Config.LendFrom is %d, want 1 at least", c.LendFrom)
	}
	c.Dir = filepath.Clean(c.Dir)
	return c, nil
}
