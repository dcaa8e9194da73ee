//go:build linux && cgo

package verbs

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/gccl-project/gccl/transport"
	"github.com/stretchr/testify/require"
)

// childVar says what a process that a test started is to do.
const childVar = "GCCL_VERBS_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childVar) {
	case "pins":
		fmt.Println(MayPin(64<<10), "|", MayPin(64<<10+1))
	case "memlock":
		beLimited()
	case "peer":
		bePeer()
	case "gpu":
		beFull()
	case "bind":
		beBound()
	default:
		os.Exit(m.Run())
	}
}

// child is the test binary with that job, behind the words of a wrapper.
func child(t *testing.T, job string, wrapper ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	words := append(wrapper, exe)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), childVar+"="+job)
	return cmd
}

// beLimited opens two endpoints, connects them and prints the error of the connection.
func beLimited() {
	o := testOptions()
	a, err := Open(small(), o)
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	defer a.Close()
	b, err := Open(small(), o)
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	defer b.Close()
	c, err := a.Conn(transport.Key{Comm: 7, Self: 0, Peer: 1}, b.Address())
	if err != nil {
		fmt.Println("connect:", err)
		return
	}
	in := make([]byte, 8)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		a.Progress()
		if _, err := c.Stream(0).Recv(1, bufOf(in)); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("connected, or nothing happened")
}

// bePeer sends one message to the endpoint whose address it was given, then drives its own until it is killed.
func bePeer() {
	address, err := hex.DecodeString(os.Getenv("GCCL_VERBS_PEER"))
	if err != nil {
		panic(err)
	}
	e, err := Open(small(), testOptions())
	if err != nil {
		panic(err)
	}
	fmt.Println(hexOf(e.Address()))
	c, err := e.Conn(transport.Key{Comm: 7, Self: 1, Peer: 0}, address)
	if err != nil {
		panic(err)
	}
	b := make([]byte, 100)
	for sent := false; ; time.Sleep(50 * time.Microsecond) {
		if !sent {
			if sent, err = c.Stream(0).Send(1, bufOf(b)); err != nil {
				panic(err)
			}
		}
		e.Progress()
	}
}

func hexOf(b []byte) string { return hex.EncodeToString(b) }

func bytesOf(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}
