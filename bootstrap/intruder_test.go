package bootstrap

import (
	"bufio"
	"context"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gccl-project/gccl/bootstrap/auth"
)

// pair joins two ranks over loopback.
func pair(t *testing.T) (ID, []*session) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	root, err := ListenRoot(ctx, RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	sessions := make([]*session, 3)
	errs := make(chan error, 3)
	for r := range sessions {
		go func() {
			s, err := Join(ctx, Config{Rank: r, World: 3, ID: root.ID()})
			if err == nil {
				sessions[r] = s.(*session)
			}
			errs <- err
		}()
	}
	for range sessions {
		require.NoError(t, <-errs)
	}
	t.Cleanup(func() {
		for _, s := range sessions {
			s.Close()
		}
	})
	return root.ID(), sessions
}

// Peers that know the secret and break the protocol: the session ends with a reason that names them, and never hangs or panics.
func TestProvenPeersThatBreakTheProtocol(t *testing.T) {
	gather := func(seq uint64, origin uint32) []byte {
		b := binary.BigEndian.AppendUint64(nil, seq)
		return makeFrame(frameGather, binary.BigEndian.AppendUint32(b, origin))
	}
	for name, frame := range map[string][]byte{
		"unknown type":     makeFrame(99, []byte("x")),
		"too long":         {0xff, 0xff, 0xff, 0xff, byte(frameMessage)},
		"short message":    makeFrame(frameMessage, []byte("123")),
		"short gather":     makeFrame(frameGather, []byte("123")),
		"gather off ring":  gather(2, 2),
		"gather of nobody": gather(2, 77),
		"gather of ours":   gather(2, 0),
		"death of nobody":  makeFrame(frameDead, []byte{0, 0, 0, 9, 0, 0, 0, 1, 1}),
		"abort by nobody":  makeFrame(frameAbort, []byte{0, 0, 0, 9}),
		"second hello":     hello{}.frame(),
	} {
		t.Run(name, func(t *testing.T) {
			_, sessions := pair(t)
			victim := sessions[0]
			conn, _, err := sessions[2].dial(context.Background(), "test", 0, forMessages, sessions[2].sendErrorLocked)
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Write(frame)
			require.NoError(t, err)
			select {
			case n := <-victim.Aborted():
				require.Equal(t, 0, n.From)
				require.Contains(t, n.Reason, "protocol: ")
			case <-time.After(time.Minute):
				t.Fatal("not noticed")
			}
			n := <-sessions[1].Aborted()
			require.Contains(t, n.Reason, "protocol: ", "the others hear of it")
		})
	}
}

// Proven peers with a wrong hello get no entry, and nobody is disturbed.
func TestHelloIsChecked(t *testing.T) {
	_, sessions := pair(t)
	s := sessions[0]
	for says, h := range map[string]hello{
		"rank 0 lives here, not rank 1":  {session: s.id, from: 2, to: 1},
		"there is no other rank 7":       {session: s.id, from: 7, to: 0},
		"there is no other rank 0":       {session: s.id, from: 0, to: 0},
		"rank 1 is not awaited":          {session: s.id, from: 1, to: 0, use: forRing},
		"rank 2 is not awaited":          {session: s.id, from: 2, to: 0, use: forRing},
		"rank 0 lives here, not rank -1": {session: s.id, from: 2, to: 0xffffffff},
	} {
		conn, err := dialProven(context.Background(), Network{}.orTCP(), s.addrs[0].String(), s.hub.secret, s.hub.service)
		require.NoError(t, err)
		_, err = conn.Write(h.frame())
		require.NoError(t, err)
		typ, body, err := readFrame(bufio.NewReader(conn), 2*maxReason)
		require.NoError(t, err)
		require.Equal(t, frameNoEntry, typ)
		require.Contains(t, strings.ReplaceAll(string(body[1:]), "rank 4294967295", "rank -1"), says)
		conn.Close()
	}
	// The secret of the root's service opens no rank's door.
	_, err := dialProven(context.Background(), Network{}.orTCP(), s.addrs[0].String(), s.hub.secret, rootService)
	require.ErrorIs(t, err, auth.ErrSecret)
	for _, s := range sessions[1:] {
		go s.Barrier(context.Background())
	}
	require.NoError(t, sessions[0].Barrier(contextWithin(t, time.Minute)))
}

func contextWithin(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// A rank of another release, whose join request we cannot read, is told so; and so is everybody who waits.
func TestOtherProtocolIsNamed(t *testing.T) {
	ctx := contextWithin(t, time.Minute)
	root, err := ListenRoot(ctx, RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	defer root.Close()
	told := make(chan error, 1)
	go func() {
		_, err := Join(ctx, Config{Rank: 0, World: 2, ID: root.ID()})
		told <- err
	}()
	for { // rank 0 is first
		root.mu.Lock()
		n := len(root.members)
		root.mu.Unlock()
		if n == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	conn, err := dialProven(ctx, Network{}.orTCP(), root.Addr().String(), root.ID().Secret(), rootService)
	require.NoError(t, err)
	defer conn.Close()
	future := binary.BigEndian.AppendUint16(nil, protocolVersion+1)
	future = binary.BigEndian.AppendUint32(future, 1)
	_, err = conn.Write(makeFrame(frameJoin, append(future, "whatever comes then"...)))
	require.NoError(t, err)
	typ, body, err := readFrame(conn, maxFrame)
	require.NoError(t, err)
	require.Equal(t, frameRefused, typ)
	refusal, err := parseRefusal(body, "")
	require.NoError(t, err)
	require.Equal(t, RefusedVersion, refusal.Code)
	require.Contains(t, refusal.Text, "speaks bootstrap protocol 6, the root 5")
	err = <-told
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "rank 1 (from 127.0.0.1:")
}

// A proven peer that does not ask to join, or says nonsense, costs the root a bounded time and changes nothing.
func TestProvenPeerThatDoesNotJoin(t *testing.T) {
	ctx := contextWithin(t, time.Minute)
	root, err := ListenRoot(ctx, RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	defer root.Close()
	for _, frame := range [][]byte{makeFrame(frameTable, nil), makeFrame(frameJoin, nil), makeFrame(frameJoin, []byte{0, protocolVersion, 0}), {0xff, 0xff, 0xff, 0xff, 1}} {
		conn, err := dialProven(ctx, Network{}.orTCP(), root.Addr().String(), root.ID().Secret(), rootService)
		require.NoError(t, err)
		_, err = conn.Write(frame)
		require.NoError(t, err)
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		_, err = conn.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		conn.Close()
	}
	root.mu.Lock()
	require.Empty(t, root.members)
	root.mu.Unlock()
}

// TestCloseWithSilentPeers: who has proved the secret and then says nothing, as a rank that is frozen or cut off just there, keeps nobody
// from closing.
func TestCloseWithSilentPeers(t *testing.T) {
	network := Network{}.orTCP()
	silent := func(t *testing.T, address, service string, id ID, frames ...[]byte) {
		conn, err := dialProven(contextWithin(t, time.Minute), network, address, id.Secret(), service)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		for _, f := range frames {
			_, err := conn.Write(f)
			require.NoError(t, err)
		}
	}
	soon := func(t *testing.T, close func() error) {
		t.Helper()
		start := time.Now()
		require.NoError(t, close())
		require.Less(t, time.Since(start), auth.Timeout-time.Second) // 0.1 or 1 s where there is nothing else to do
	}
	t.Run("root", func(t *testing.T) {
		root, err := ListenRoot(contextWithin(t, time.Minute), RootConfig{Address: "127.0.0.1:0"})
		require.NoError(t, err)
		address := root.Addr().String()
		silent(t, address, rootService, root.ID())
		j := joinRequest{proto: protocolVersion + 1, rank: 1, world: 2, heartbeat: 1000, silentAfter: 4000}
		silent(t, address, rootService, root.ID(), makeFrame(frameJoin, j.body())) // which is refused
		require.ErrorIs(t, root.Wait(contextWithin(t, time.Minute)), ErrRefused)
		soon(t, root.Close)
	})
	t.Run("session", func(t *testing.T) {
		id, sessions := pair(t)
		silent(t, sessions[0].addrs[0].String(), sessions[0].hub.service, id)
		time.Sleep(200 * time.Millisecond) // until the hub has let it in, or this shows less
		each := make(chan error)
		for _, s := range sessions[1:] {
			go func() { each <- s.Close() }()
		}
		soon(t, sessions[0].Close)
		for range sessions[1:] {
			require.NoError(t, <-each)
		}
	})
}

func TestPortHolder(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := ln.Addr().(*net.TCPAddr).AddrPort().Port()
	if who := portHolder(port); who != "" {
		require.Regexp(t, `^pid \d+ \(.+\)$`, who)
	}
	ln.Close()
	require.NotContains(t, portHolder(port), "bootstrap.test")
}
