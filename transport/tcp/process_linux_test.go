package tcp

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// TestMain runs as rank 1 of TestUC04_PeerKilled when the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv("GCCL_TCP_TEST_PEER") != "" {
		if err := killedPeer(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var killedOptions = transport.Options{Streams: 2, MaxMessage: 4 << 20, Secret: []byte("s")}

// killedPeer tells its address, learns rank 0's, sends three messages and then
// progresses for ever.
func killedPeer() error {
	e, err := Open(Config{Addr: netip.MustParseAddr("127.0.0.1")}, killedOptions)
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(e.Address()))
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	address, err := hex.DecodeString(strings.TrimSpace(line))
	if err != nil {
		return err
	}
	c, err := e.Conn(transport.Key{Self: 1, Peer: 0}, address)
	if err != nil {
		return err
	}
	message := make([]byte, 1000)
	for range 3 {
		if ok, err := c.Stream(0).Send(1, bufOf(message)); !ok || err != nil {
			return fmt.Errorf("send: %v, %v", ok, err)
		}
	}
	for {
		e.Progress()
		time.Sleep(time.Millisecond)
		if os.Getppid() == 1 {
			return nil
		}
	}
}

// TestUC04_PeerKilled: after kill -9 whoever waits for the peer, to receive or to
// send, has ErrGone naming it after that, and what was sent before arrives first.
func TestUC04_PeerKilled(t *testing.T) {
	for _, waits := range []string{"receive", "send"} {
		t.Run(waits, func(t *testing.T) {
			e := openAt(t, Config{}, killedOptions)
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), "GCCL_TCP_TEST_PEER=1")
			child.Stderr = os.Stderr
			child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			stdin, err := child.StdinPipe()
			require.NoError(t, err)
			stdout, err := child.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, child.Start())
			killed := false
			kill := func() {
				if !killed {
					killed = true
					child.Process.Kill()
					child.Wait()
				}
			}
			defer kill()
			line, err := bufio.NewReader(stdout).ReadString('\n')
			require.NoError(t, err)
			address, err := hex.DecodeString(strings.TrimSpace(line))
			require.NoError(t, err)
			fmt.Fprintln(stdin, hex.EncodeToString(e.Address()))
			c, err := e.Conn(transport.Key{Self: 0, Peer: 1}, address)
			require.NoError(t, err)

			s, in := c.Stream(0), make([]byte, 1000)
			wait(t, "the first message", func() bool {
				ok, err := s.Recv(1, bufOf(in))
				require.NoError(t, err)
				return ok
			}, e)
			message := make([]byte, 4<<20)
			if waits == "send" {
				ok, err := c.Stream(1).Send(1, bufOf(message))
				require.NoError(t, err)
				require.True(t, ok)
			}
			kill()
			if waits == "send" {
				wait(t, "the error", func() bool { _, err = c.Stream(1).Sent(); return err != nil }, e)
			} else {
				for range 2 {
					wait(t, "messages sent before", func() bool {
						ok, err := s.Recv(1, bufOf(in))
						require.NoError(t, err)
						return ok
					}, e)
				}
				wait(t, "the error", func() bool { _, err = s.Recv(1, bufOf(in)); return err != nil }, e)
			}
			require.ErrorIs(t, err, transport.ErrGone)
			require.ErrorContains(t, err, c.Peer())
			var pe *transport.PeerError
			require.ErrorAs(t, err, &pe)
			require.Equal(t, transport.Key{Self: 0, Peer: 1}, pe.Key)
			_, err = c.Stream(1).Send(1, bufOf(message))
			require.ErrorIs(t, err, transport.ErrGone)
		})
	}
}
