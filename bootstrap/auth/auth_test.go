package auth

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// both runs client and server code over an in-memory pipe and returns their errors. Each side closes after its end.
func both(c, s func(net.Conn) error) (clientErr, serverErr error) {
	a, b := net.Pipe()
	done := make(chan error, 1)
	go func() {
		err := s(b)
		b.Close()
		done <- err
	}()
	clientErr = c(a)
	a.Close()
	return clientErr, <-done
}

func TestHandshake(t *testing.T) {
	key, other := bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{8}, 32)
	tests := []struct {
		name             string
		clientKey        []byte
		serverKey        []byte
		clientUse        string
		serverUse        string
		clientIs, serves error
	}{
		{"same", key, key, "x", "x", nil, nil},
		{"other secret", other, key, "x", "x", ErrSecret, ErrSecret},
		{"prefix of the secret", key[:31], key, "x", "x", ErrSecret, ErrSecret},
		{"other service", key, key, "x", "y", ErrSecret, ErrSecret},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := both(
					func(n net.Conn) error { return Client(n, tt.clientKey, tt.clientUse) },
					func(n net.Conn) error { return Server(n, tt.serverKey, tt.serverUse) },
				)
				require.ErrorIs(t, c, tt.clientIs)
				require.ErrorIs(t, s, tt.serves)
			})
		})
	}
}

func TestEmptySecretIsRefused(t *testing.T) {
	a, _ := net.Pipe()
	require.ErrorContains(t, Client(a, nil, "x"), "secret is empty")
	require.ErrorContains(t, Server(a, nil, "x"), "secret is empty")
}

func TestDeadlineIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := []byte("k")
		c, s := both(
			func(n net.Conn) error {
				if err := Client(n, key, "x"); err != nil {
					return err
				}
				time.Sleep(3 * Timeout)
				_, err := n.Write([]byte{1})
				return err
			},
			func(n net.Conn) error {
				if err := Server(n, key, "x"); err != nil {
					return err
				}
				_, err := io.ReadFull(n, make([]byte, 1))
				return err
			},
		)
		require.NoError(t, c)
		require.NoError(t, s)
	})
}

// A man in the middle who answers a client with its own words must not pass.
func TestReflectionFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mirror := func(n net.Conn) error {
			hello := make([]byte, 40)
			if _, err := io.ReadFull(n, hello); err != nil {
				return err
			}
			if _, err := n.Write(append(hello, make([]byte, macSize)...)); err != nil {
				return err
			}
			proof := make([]byte, macSize)
			if _, err := io.ReadFull(n, proof); err != nil {
				return err
			}
			if !bytes.Equal(proof, make([]byte, macSize)) {
				return errors.New("the client gave its proof away")
			}
			return nil
		}
		c, s := both(func(n net.Conn) error { return Client(n, []byte("k"), "x") }, mirror)
		require.ErrorIs(t, c, ErrSecret)
		require.NoError(t, s)
	})
}

// The roles differ, so a client's proof over the same nonces is no server's proof.
func TestMACsDependOnEveryField(t *testing.T) {
	h := handshake{secret: []byte("k"), service: "x"}
	base := h.mac(client)
	require.NotEqual(t, base, h.mac(server))
	for name, change := range map[string]func(*handshake){
		"secret":  func(h *handshake) { h.secret = []byte("l") },
		"service": func(h *handshake) { h.service = "xx" },
		"c":       func(h *handshake) { h.c[31] = 1 },
		"s":       func(h *handshake) { h.s[31] = 1 },
	} {
		other := h
		change(&other)
		require.NotEqual(t, base, other.mac(client), name)
	}
}

func TestStrangersAreTold(t *testing.T) {
	tests := []struct {
		name string
		says string
		kind Kind
	}{
		{"http", "GET / HTTP/1.0\r\n\r\n", NotGccl},
		{"random", "\x8f\x01\x02\x03\x04\x05\x06\x07", NotGccl},
		{"tls", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", NotGccl},
		{"zeros", string(make([]byte, 1<<20)), NotGccl},
		{"one byte", "g", Left},
		{"nothing", "", Left},
		{"magic only", magic, Left},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, err := both(
					func(n net.Conn) error { _, err := io.WriteString(n, tt.says); return err },
					func(n net.Conn) error { return Server(n, []byte("k"), "x") },
				)
				var e *Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, tt.kind, e.Kind, err.Error())
				require.Equal(t, tt.kind == NotGccl, errors.Is(err, ErrStranger))
			})
		})
	}
}

func TestSilencePastTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, err := both(
			func(n net.Conn) error { time.Sleep(time.Hour); return nil },
			func(n net.Conn) error {
				err := Server(n, []byte("k"), "x")
				require.Equal(t, Timeout, time.Since(start))
				return err
			},
		)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, Silent, e.Kind)
	})
}

// stranger says something while it hears so many bytes of the other, and hangs up.
func stranger(n net.Conn, says []byte, hears int) error {
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		io.CopyN(io.Discard, n, int64(hears))
	}()
	_, err := n.Write(says)
	<-heard
	return err
}

// A gate that is not ready sends strangers away, and lets those in who know the secret once it is.
func TestGateBeforeItIsReady(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	key := []byte("k")
	g := &Gate{Secret: key, Ready: make(chan struct{}), Timeout: 2 * time.Second}
	served := make(chan error, 1)
	go func() { served <- g.Serve(ln, func(c net.Conn) { c.Write([]byte{42}); c.Close() }) }()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		c.SetReadDeadline(time.Now().Add(30 * time.Second))
		return c
	}
	for _, says := range []string{"GET / HTTP/1.0\r\n\r\n", "", magic, magic + string(make([]byte, nonceSize))} {
		c := dial()
		io.WriteString(c, says)
		_, err := io.ReadAll(c)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "%q is let be", says)
	}
	early := make(chan error, 1)
	go func() {
		c := dial()
		if err := Client(c, key, "x"); err != nil {
			early <- err
			return
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		early <- err
	}()
	time.Sleep(50 * time.Millisecond)
	g.Service = "x"
	close(g.Ready)
	require.NoError(t, <-early)
	ln.Close()
	require.NoError(t, <-served)
}

// Whatever a stranger sends, a server answers with an error: never a panic, never success, never a wait past the end.
func FuzzServer(f *testing.F) {
	words := []string{"GET / HTTP/1.0\r\n\r\n", "GET", magic, magic + "short", magic + string(make([]byte, 40)), magic + string(make([]byte, 64)), magic + string(make([]byte, 200))}
	for hears := range words {
		for _, says := range words {
			f.Add([]byte(says), 40*hears)
		}
	}
	f.Fuzz(func(t *testing.T, says []byte, hears int) {
		synctest.Test(t, func(t *testing.T) {
			_, err := both(
				func(n net.Conn) error { return stranger(n, says, hears) },
				func(n net.Conn) error { return Server(n, []byte("k"), "x") },
			)
			require.Error(t, err)
		})
	})
}

// The same of a server that does not know the secret.
func FuzzClient(f *testing.F) {
	for _, hears := range []int{0, 39, 40, 41, 1000} {
		for _, says := range []string{"220 mail ESMTP\r\n", magic, magic + "short", magic + string(make([]byte, nonceSize)), magic + string(make([]byte, nonceSize+macSize)), magic + string(make([]byte, 200))} {
			f.Add([]byte(says), hears)
		}
	}
	f.Fuzz(func(t *testing.T, says []byte, hears int) {
		synctest.Test(t, func(t *testing.T) {
			err, _ := both(
				func(n net.Conn) error { return Client(n, []byte("k"), "x") },
				func(n net.Conn) error { return stranger(n, says, hears) },
			)
			require.Error(t, err)
		})
	})
}

// mangled changes the byte at a place of what is written.
type mangled struct {
	net.Conn
	at   int
	mask byte
}

func (m *mangled) Write(b []byte) (int, error) {
	b = bytes.Clone(b)
	if m.at >= 0 && m.at < len(b) {
		b[m.at] ^= m.mask
	}
	m.at -= len(b)
	return m.Conn.Write(b)
}

// Two that know the secret, and somebody between them who changes a byte: neither takes the other for proven, unless nothing of what it
// read was changed.
func FuzzProof(f *testing.F) {
	for ready := range byte(3) {
		f.Add(0, byte(0), 0, byte(0), ready)
		for _, at := range []int{0, 7, 8, 39, 40, 71, 72, 1000} {
			f.Add(at, byte(1), 0, byte(0), ready)
			f.Add(0, byte(0), at, byte(0x80), ready)
		}
	}
	f.Fuzz(func(t *testing.T, atClient int, clients byte, atServer int, servers, ready byte) {
		synctest.Test(t, func(t *testing.T) {
			c, s := both(
				func(n net.Conn) error { return Client(&mangled{n, atClient, clients}, []byte("k"), "x") },
				func(n net.Conn) error {
					h := handshake{conn: &mangled{n, atServer, servers}, secret: []byte("k"), service: "x"}
					if ready %= 3; ready > 0 {
						h.service, h.named = "", func() (string, bool) { return "x", ready == 1 }
					}
					return h.prove(Timeout, h.server)
				},
			)
			if ready == 2 {
				require.Error(t, c)
				require.Error(t, s)
				return
			}
			const hello, proof = len(magic) + nonceSize, macSize
			toClient := servers != 0 && atServer >= 0 && atServer < hello+proof
			toServer := clients != 0 && atClient >= 0 && atClient < hello+proof
			nonce := clients != 0 && atClient >= 0 && atClient < hello // the server's proof is over it
			require.Equal(t, toClient || nonce, c != nil, "%v", c)
			require.Equal(t, toClient || toServer, s != nil, "%v", s)
		})
	})
}
