package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

const (
	addressVersion = 2
	addressMax     = 1024
	minSegment     = 1 << 20
	maxSegment     = 1 << 46
)

// address is what Endpoint.Address carries: version, size, nonce, pid, then the
// strings, each with a 16-bit length. Little endian.
type address struct {
	identity Identity
	path     string // of the socket, in its owner's mount namespace
	nonce    [16]byte
	size     uint64 // bytes of address space in the segment
	pid      uint32 // in the owner's pid namespace
}

func (a *address) marshal() ([]byte, error) {
	b := []byte{addressVersion}
	b = binary.LittleEndian.AppendUint64(b, a.size)
	b = append(b, a.nonce[:]...)
	b = binary.LittleEndian.AppendUint32(b, a.pid)
	for _, s := range []*string{&a.path, &a.identity.HostID, &a.identity.BootID, &a.identity.HostName, &a.identity.ShmDevice} {
		if len(*s) > addressMax {
			return nil, fmt.Errorf("%.40q… has %d bytes, at most %d fit an address", *s, len(*s), addressMax)
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(len(*s)))
		b = append(b, *s...)
	}
	if len(b) > addressMax {
		return nil, fmt.Errorf("address has %d bytes, at most %d: shorten Config.Dir (%d) or Config.HostID (%d)",
			len(b), addressMax, len(a.path), len(a.identity.HostID))
	}
	return b, nil
}

func parseAddress(b []byte) (*address, error) {
	const fixed = 1 + 8 + 16 + 4
	if len(b) < fixed || len(b) > addressMax {
		return nil, fmt.Errorf("shm address of %d bytes, want %d to %d", len(b), fixed, addressMax)
	}
	if b[0] != addressVersion {
		return nil, fmt.Errorf("shm address of version %d, want %d: the ranks run different versions of gccl", b[0], addressVersion)
	}
	a := &address{
		size:  binary.LittleEndian.Uint64(b[1:]),
		nonce: [16]byte(b[9:25]),
		pid:   binary.LittleEndian.Uint32(b[25:]),
	}
	b = b[fixed:]
	for _, s := range []*string{&a.path, &a.identity.HostID, &a.identity.BootID, &a.identity.HostName, &a.identity.ShmDevice} {
		if len(b) < 2 || len(b)-2 < int(binary.LittleEndian.Uint16(b)) {
			return nil, errors.New("shm address ends in the middle of a string")
		}
		n := 2 + int(binary.LittleEndian.Uint16(b))
		*s, b = string(b[2:n]), b[n:]
	}
	switch {
	case len(b) > 0:
		return nil, fmt.Errorf("shm address has %d bytes too many", len(b))
	case a.size < minSegment || a.size > maxSegment || a.size%4096 != 0:
		return nil, fmt.Errorf("shm address: segment of %d bytes, want a multiple of 4096 from %d to %d", a.size, minSegment, int64(maxSegment))
	case a.pid == 0 || a.pid > 1<<30:
		return nil, fmt.Errorf("shm address: pid %d, want 1 to %d", a.pid, 1<<30)
	case !strings.HasPrefix(a.path, "/") || strings.ContainsRune(a.path, 0):
		return nil, fmt.Errorf("shm address: path %q, want an absolute one", a.path)
	}
	if _, err := parseName(a.path[strings.LastIndexByte(a.path, '/')+1:]); err != nil {
		return nil, fmt.Errorf("shm address: %w", err)
	}
	return a, nil
}
