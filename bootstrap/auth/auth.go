// Package auth lets two ends of a connection prove to each other that they know the same secret, before either of them
// parses anything else.
//
// # Wire
//
// Three messages, all of fixed size, so a stranger can neither choose a length nor make us hold more than 72 bytes:
//
//	client → server   magic "gcclAUT1" (8)   nonce C (32)
//	server → client   magic "gcclAUT1" (8)   nonce S (32)   HMAC-SHA-256 "server" (32)
//	client → server   HMAC-SHA-256 "client" (32)            all zero: the client refuses the server's proof
//
// Each MAC is keyed with the secret and covers its role, the service, C and S. The role stops a proof from being sent back
// to the one who made it; the service stops a proof made for one kind of socket from being used on another.
//
// # Promises
//
// A peer that does not know the secret gets [ErrSecret] on this side, one that does not speak the protocol [ErrStranger];
// both learn nothing but a MAC over random nonces. Whoever is silent costs one goroutine and one descriptor for [Timeout].
// What follows the handshake is neither encrypted nor signed: it is as safe as the TCP connection is.
//
// # Duties of the caller
//
// Use a secret of 32 random bytes where strangers can reach the port: a short one can be guessed offline from a recorded
// handshake. Close the connection after an error. To stop a handshake early, close the connection.
//
//	if err := auth.Client(conn, secret, "gccl tcp v1"); err != nil {
//		conn.Close()
//		return err
//	}
//
// Servers that listen where strangers come by use a [Gate], which bounds the handshakes under way.
package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// Timeout bounds one whole handshake, on either side.
const Timeout = 5 * time.Second

const (
	magic     = "gcclAUT1"
	nonceSize = 32
	macSize   = sha256.Size
)

// Client proves secret to the server at the other end of conn and checks the server's proof. Service names what the
// connection is for, for example "gccl bootstrap peer v1"; both ends must give the same one.
//
// It sets conn's deadline to [Timeout] from now and removes it before it returns. A failure is an [*Error]; conn is then
// unusable and still the caller's to close.
func Client(conn net.Conn, secret []byte, service string) error {
	h := handshake{conn: conn, secret: secret, service: service}
	return h.prove(Timeout, h.client)
}

// Server is the other half of [Client], for the end that accepted conn.
func Server(conn net.Conn, secret []byte, service string) error {
	h := handshake{conn: conn, secret: secret, service: service}
	return h.prove(Timeout, h.server)
}

type role string

const (
	client role = "client"
	server role = "server"
)

// prove plays one part in time.
func (h *handshake) prove(timeout time.Duration, part func() error) error {
	if len(h.secret) == 0 {
		return h.fail(Broken, errors.New("the secret is empty"))
	}
	if err := h.conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return h.fail(Broken, err)
	}
	if err := part(); err != nil {
		return err
	}
	// It fails only on a connection that is closed by now, which the next use of it tells.
	_ = h.conn.SetDeadline(time.Time{})
	return nil
}

// handshake is one run of the protocol over one connection.
type handshake struct {
	conn    net.Conn
	secret  []byte
	service string
	named   func() (service string, ok bool) // a server's that learns the service in the middle; or nil
	c, s    [nonceSize]byte                  // both nonces
}

func (h *handshake) client() error {
	rand.Read(h.c[:]) // never fails
	if err := h.write([]byte(magic), h.c[:]); err != nil {
		return err
	}
	if err := h.readMagic(); err != nil {
		return err
	}
	var theirs [macSize]byte
	if err := h.read(h.s[:]); err != nil {
		return err
	}
	if err := h.read(theirs[:]); err != nil {
		return err
	}
	if !h.proves(theirs, server) {
		// The zeros tell the server why we hang up, so that its log says "wrong secret" and not "left".
		_ = h.write(make([]byte, macSize))
		return h.fail(WrongSecret, nil)
	}
	mine := h.mac(client)
	return h.write(mine[:])
}

func (h *handshake) server() error {
	if err := h.readMagic(); err != nil {
		return err
	}
	if err := h.read(h.c[:]); err != nil {
		return err
	}
	if h.named != nil {
		service, ok := h.named()
		if !ok {
			return h.fail(Early, nil)
		}
		h.service = service
	}
	rand.Read(h.s[:])
	mine := h.mac(server)
	if err := h.write([]byte(magic), h.s[:], mine[:]); err != nil {
		return err
	}
	var theirs [macSize]byte
	if err := h.read(theirs[:]); err != nil {
		return err
	}
	if !h.proves(theirs, client) {
		return h.fail(WrongSecret, nil)
	}
	return nil
}

// readMagic reads eight bytes alone, because a stranger's first words are often shorter than our first message.
func (h *handshake) readMagic() error {
	var got [len(magic)]byte
	if err := h.read(got[:]); err != nil {
		return err
	}
	if string(got[:]) != magic {
		return h.fail(NotGccl, fmt.Errorf("it began with %q", got[:]))
	}
	return nil
}

func (h *handshake) proves(theirs [macSize]byte, as role) bool {
	want := h.mac(as)
	return subtle.ConstantTimeCompare(theirs[:], want[:]) == 1
}

func (h *handshake) mac(as role) (sum [macSize]byte) {
	m := hmac.New(sha256.New, h.secret)
	field := func(b []byte) {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(b)))
		m.Write(n[:])
		m.Write(b)
	}
	field([]byte(magic))
	field([]byte(as))
	field([]byte(h.service))
	field(h.c[:])
	field(h.s[:])
	m.Sum(sum[:0])
	return sum
}

func (h *handshake) read(b []byte) error {
	if _, err := io.ReadFull(h.conn, b); err != nil {
		return h.fail(kindOf(err), err)
	}
	return nil
}

func (h *handshake) write(parts ...[]byte) error {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	if _, err := h.conn.Write(all); err != nil {
		return h.fail(kindOf(err), err)
	}
	return nil
}

func (h *handshake) fail(k Kind, err error) error {
	peer := "unknown address"
	if a := h.conn.RemoteAddr(); a != nil {
		peer = a.String()
	}
	return &Error{Kind: k, Peer: peer, Service: h.service, Err: err}
}

func kindOf(err error) Kind {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return Silent
	}
	return Left
}
