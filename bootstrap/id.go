package bootstrap

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// IDSize is the size of an [ID] in bytes, that of ncclUniqueId.
const IDSize = 128

// ID names one world: where its root is, and the secret by which its ranks know each other. Whoever has the id can join, so
// it is passed on as a password is. It is plain comparable data; the zero ID is not valid.
//
//	0    magic "gcclid", version 1, flags (1: unauthenticated, 2: derived)
//	8    secret, 32 bytes
//	40   nonce, 8 bytes: tells apart the worlds of one secret
//	48   number of addresses (0-3), then 18 bytes each: IPv6 or mapped IPv4, port
//	     or 0, length (1-69), host name, port
//	124  CRC-32C of bytes 0-123
type ID [IDSize]byte

const (
	idMagic       = "gcclid"
	idVersion     = 1
	idSecret      = 8
	idNonce       = 40
	idRoot        = 48
	idSum         = 124
	maxAddrs      = 3
	maxName       = idSum - idRoot - 4
	flagUnproven  = 1
	flagDerived   = 2
	secretSize    = 32
	idTextLen     = (IDSize*8 + 5) / 6
	addrsCapacity = idSum - idRoot - 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewID returns an id with a fresh random secret, for a root that listens at addrs, in the order in which ranks should try
// them (one to three). The zone of a link-local address is left out: each rank uses its own interface.
func NewID(addrs ...netip.AddrPort) (ID, error) {
	var secret [secretSize]byte
	rand.Read(secret[:])
	var nonce [8]byte
	rand.Read(nonce[:])
	return makeID(secret, nonce, 0, func(b []byte) ([]byte, error) {
		if len(addrs) == 0 || len(addrs) > maxAddrs {
			return nil, fmt.Errorf("%d root addresses; want 1 to %d", len(addrs), maxAddrs)
		}
		b = append(b, byte(len(addrs)))
		for _, a := range addrs {
			if !a.IsValid() || a.Addr().IsUnspecified() || a.Port() == 0 {
				return nil, fmt.Errorf("root address %v is nothing that a rank could connect to", a)
			}
			b = appendAddr(b, a)
		}
		return b, nil
	})
}

// DeriveID returns the id that all ranks compute for themselves when a launcher gave them a root at "host:port" and, instead
// of an id, a secret. Labels tell apart worlds of the same secret (job id, restart count). An empty secret makes an id that
// anybody who knows the labels can make, too: it keeps jobs apart, not strangers out (see [ID.Authenticated]).
func DeriveID(root, secret string, labels ...string) (ID, error) {
	host, port, err := splitRoot(root)
	if err != nil {
		return ID{}, err
	}
	h := sha256.New()
	field := func(s string) {
		fmt.Fprintf(h, "%d:%s,", len(s), s)
	}
	field("gccl derived id v1")
	field(secret)
	for _, l := range labels {
		field(l)
	}
	key := [secretSize]byte(h.Sum(nil))
	field("nonce")
	nonce := [8]byte(h.Sum(nil))
	flags := byte(flagDerived)
	if secret == "" {
		flags |= flagUnproven
	}
	return makeID(key, nonce, flags, func(b []byte) ([]byte, error) {
		if a, err := netip.ParseAddr(host); err == nil {
			return appendAddr(append(b, 1), netip.AddrPortFrom(a, port)), nil
		}
		if len(host) > maxName {
			return nil, fmt.Errorf("host name %q is longer than %d bytes", host, maxName)
		}
		b = append(b, 0, byte(len(host)))
		b = append(b, host...)
		return binary.BigEndian.AppendUint16(b, port), nil
	})
}

// splitRoot checks the text of a root's address.
func splitRoot(root string) (host string, port uint16, err error) {
	host, p, err := net.SplitHostPort(root)
	if err == nil && host == "" {
		err = errors.New("the host is empty")
	}
	var n uint64
	if err == nil {
		if n, err = strconv.ParseUint(p, 10, 16); err == nil && n == 0 {
			err = errors.New("the port is 0")
		}
	}
	if err != nil {
		return "", 0, fmt.Errorf("root address %q: want host:port, with IPv6 in brackets: %w", root, err)
	}
	return host, uint16(n), nil
}

func makeID(secret [secretSize]byte, nonce [8]byte, flags byte, root func([]byte) ([]byte, error)) (ID, error) {
	b := make([]byte, 0, IDSize)
	b = append(b, idMagic...)
	b = append(b, idVersion, flags)
	b = append(b, secret[:]...)
	b = append(b, nonce[:]...)
	b, err := root(b)
	if err != nil {
		return ID{}, fmt.Errorf("make an id: %w", err)
	}
	var id ID
	copy(id[:idSum], b)
	binary.BigEndian.PutUint32(id[idSum:], crc32.Checksum(id[:idSum], castagnoli))
	return id, nil
}

// ParseID reads the text form that [ID.String] wrote.
func ParseID(s string) (ID, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != IDSize || len(s) != idTextLen { // the decoder passes over line ends
		return ID{}, fmt.Errorf("unique id of %d characters: want the %d characters (letters, digits, - and _) that another rank printed, whole", len(s), idTextLen)
	}
	return IDFromBytes(b)
}

// IDFromBytes reads what [ID.Bytes] returned.
func IDFromBytes(b []byte) (ID, error) {
	if len(b) != IDSize {
		return ID{}, fmt.Errorf("unique id of %d bytes instead of %d", len(b), IDSize)
	}
	id := ID(b)
	return id, id.check()
}

func (id ID) check() error {
	switch {
	case id == ID{}:
		return errors.New("unique id is not set")
	case !bytes.HasPrefix(id[:], []byte(idMagic)):
		return fmt.Errorf("unique id begins with %q instead of %q: it is not one of gccl's", id[:len(idMagic)], idMagic)
	case id[len(idMagic)] != idVersion:
		return fmt.Errorf("unique id has version %d; this release reads %d", id[len(idMagic)], idVersion)
	case binary.BigEndian.Uint32(id[idSum:]) != crc32.Checksum(id[:idSum], castagnoli):
		return errors.New("unique id has a wrong checksum: some of it was lost or changed on the way")
	case id[idRoot] > maxAddrs || id[idRoot] == 0 && (id[idRoot+1] == 0 || id[idRoot+1] > maxName):
		return errors.New("unique id holds no root address")
	}
	return nil
}

// Bytes returns a copy of the id's bytes.
func (id ID) Bytes() []byte { return slices.Clone(id[:]) }

// String returns the id as 171 characters of base64url. It holds the secret: don't log it.
func (id ID) String() string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// Secret returns a copy of the key with which ranks prove themselves to each other.
func (id ID) Secret() []byte { return slices.Clone(id[idSecret:idNonce]) }

// Authenticated reports whether the secret is one that strangers cannot compute.
func (id ID) Authenticated() bool { return id[7]&flagUnproven == 0 }

// derived reports whether ranks make the id for themselves, so that one world after the other has the same.
func (id ID) derived() bool { return id[7]&flagDerived != 0 }

// Hash returns a number that stands for the id in logs and on the wire; it gives nothing of the secret away.
func (id ID) Hash() uint64 {
	sum := sha256.Sum256(append([]byte("gccl id hash v1"), id[:]...))
	return binary.BigEndian.Uint64(sum[:])
}

// Roots returns the root's addresses as "host:port", in the order in which to try them. Zone is the local interface with which
// to complete link-local ones.
func (id ID) Roots(zone string) []string {
	if id.check() != nil {
		return nil
	}
	n := int(id[idRoot])
	b := id[idRoot+1:]
	if n == 0 {
		l := int(b[0])
		port := binary.BigEndian.Uint16(b[1+l:])
		return []string{net.JoinHostPort(string(b[1:1+l]), strconv.Itoa(int(port)))}
	}
	var roots []string
	for i := range n {
		roots = append(roots, parseAddr(b[i*addrSize:], zone).String())
	}
	return roots
}
