package auth

import (
	"bytes"
	"errors"
	"io"
	"net"
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

// Whatever a stranger sends, a server answers with an error: never a panic, never success, never a wait past the end.
func FuzzServer(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"))
	f.Add([]byte("GET"))
	f.Add([]byte(magic))
	f.Add([]byte(magic + "short"))
	f.Add(append([]byte(magic), make([]byte, 64)...))
	f.Add(append([]byte(magic), make([]byte, 200)...))
	f.Fuzz(func(t *testing.T, says []byte) {
		_, err := both(
			func(n net.Conn) error {
				go io.Copy(io.Discard, n)
				_, err := n.Write(says)
				return err
			},
			func(n net.Conn) error { return Server(n, []byte("k"), "x") },
		)
		require.Error(t, err)
	})
}

// The same of a server that does not know the secret.
func FuzzClient(f *testing.F) {
	f.Add([]byte("220 mail ESMTP\r\n"))
	f.Add([]byte(magic))
	f.Add([]byte(magic + "short"))
	f.Add(append([]byte(magic), make([]byte, nonceSize)...))
	f.Add(append([]byte(magic), make([]byte, nonceSize+macSize)...))
	f.Add(append([]byte(magic), make([]byte, 200)...))
	f.Fuzz(func(t *testing.T, says []byte) {
		err, _ := both(
			func(n net.Conn) error { return Client(n, []byte("k"), "x") },
			func(n net.Conn) error {
				go io.Copy(io.Discard, n)
				_, err := n.Write(says)
				return err
			},
		)
		require.Error(t, err)
	})
}
