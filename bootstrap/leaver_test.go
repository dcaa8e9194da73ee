package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rawRank is a rank that says to a root what a test has it say.
type rawRank struct {
	net.Conn
	in *bufio.Reader
}

// join has a rank ask to join; token tells it from another of that number.
func join(t *testing.T, r *Root, rank, world int, token byte) rawRank {
	conn, err := dialProven(contextWithin(t, time.Minute), Network{}.orTCP(), r.Addr().String(), r.ID().Secret(), rootService)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	j := joinRequest{
		proto: protocolVersion, rank: uint32(rank), world: uint32(world), token: [tokenSize]byte{token, byte(rank)},
		listen: netip.MustParseAddrPort("127.0.0.1:9"), pid: uint32(100 + rank), heartbeat: 1000, silentAfter: 60_000,
	}
	q := rawRank{conn, bufio.NewReader(conn)}
	q.says(t, makeFrame(frameJoin, j.body()))
	return q
}

func (q rawRank) says(t *testing.T, frame []byte) {
	_, err := q.Write(frame)
	require.NoError(t, err)
}

// hears returns the next frame of a type that pleases ok, or any if that is nil.
func (q rawRank) hears(t *testing.T, want frameType, ok func(body []byte) bool) []byte {
	t.Helper()
	q.SetReadDeadline(time.Now().Add(20 * time.Second))
	for {
		got, body, err := readFrame(q.in, maxFrame)
		require.NoError(t, err)
		if got == want && (ok == nil || ok(body)) {
			return body
		}
	}
}

// A rank that has said that it leaves is gone then, and not when its connection ends: the world that the last rank would have completed
// waits for its successor.
func TestLeaveBeforeTable(t *testing.T) {
	root, err := ListenRoot(context.Background(), RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() }) // after the ranks, who keep it waiting
	zero, one := join(t, root, 0, 3, 0), join(t, root, 1, 3, 0)
	one.hears(t, frameProgress, nil)
	one.says(t, makeFrame(frameLeave, []byte{0}))
	zero.hears(t, frameProgress, func(body []byte) bool {
		p, err := parseProgress(body)
		return err == nil && len(p.left) == 1 && p.left[0] == 1
	})
	two := join(t, root, 2, 3, 0)
	two.hears(t, frameProgress, nil) // and no table
	next := join(t, root, 1, 3, 1)
	one.Close()
	for _, q := range []rawRank{zero, next, two} {
		q.hears(t, frameTable, nil)
		q.says(t, makeFrame(frameMet, nil))
	}
	require.NoError(t, root.Wait(contextWithin(t, time.Minute)))
}

// A rank that gives up as the world is complete may leave without a word on why: it has no session to abort. The others hear who it is, and
// do not take it for dead.
func TestLeaveAfterTable(t *testing.T) {
	root, err := ListenRoot(context.Background(), RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() }) // after the ranks, who keep it waiting
	var ranks []rawRank
	for r := range 3 {
		ranks = append(ranks, join(t, root, r, 3, 0))
	}
	for _, q := range ranks {
		q.hears(t, frameTable, nil)
	}
	ranks[1].says(t, makeFrame(frameLeave, []byte{1}))
	for _, r := range []int{0, 2} {
		n, err := parseAbort(ranks[r].hears(t, frameAbort, nil), 3)
		require.NoError(t, err)
		require.Equal(t, 1, n.From)
		require.Equal(t, []int{1}, n.Ranks)
		require.Contains(t, n.Reason, "gave up before all ranks had met")
	}
	var refused *RefusedError
	require.ErrorAs(t, root.Wait(contextWithin(t, time.Minute)), &refused)
	require.Equal(t, RefusedAborted, refused.Code)
	require.Equal(t, []int{1}, refused.Ranks)
	ranks[1].Close()
	ranks[0].says(t, deadFrame(1, fate{by: 0, sure: true, reason: "nobody listens there any more"}))
	ranks[2].hears(t, frameDead, nil)
}

// Who says that it has met the others before they are there breaks the protocol, and is lost.
func TestMetBeforeTable(t *testing.T) {
	root, err := ListenRoot(context.Background(), RootConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() }) // after the ranks, who keep it waiting
	zero := join(t, root, 0, 2, 0)
	zero.says(t, makeFrame(frameMet, nil))
	var refused *RefusedError
	require.True(t, errors.As(root.Wait(contextWithin(t, time.Minute)), &refused))
	require.Equal(t, RefusedDead, refused.Code)
	require.Contains(t, refused.Text, "before the world is complete")
}
