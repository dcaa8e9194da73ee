//go:build linux && cgo

package verbs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/gccl-project/gccl/transport"
	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

// TestUC11_FailedRequest: a request that the peer's device refuses is an error at both ends, soon, that names the peer, the device, the
// GIDs and the status.
func TestUC11_FailedRequest(t *testing.T) {
	needDevices(t, 1)
	d := newDuo(t, testOptions(), small())
	d.pass(0, message(100))
	d.pass(1, message(100))
	d.conns[0].(*conn).link.queues[0].peer.rkey ^= 0xff00
	start := time.Now()
	errs := d.fails()
	t.Logf("after %v:\n%v\n%v", time.Since(start), errs[0], errs[1])
	require.Less(t, time.Since(start), patience) // a few milliseconds where there is nothing else to do
	for i, err := range errs {
		require.ErrorIs(t, err, transport.ErrGone)
		e := d.eps[i]
		for _, word := range []string{e.nics[0].device.Name(), addressOf(e.nics[0].gid.GID).String(), "rank " + string(rune('1'-i))} {
			require.ErrorContains(t, err, word)
		}
	}
	require.ErrorIs(t, errs[0], ibv.RemoteAccess)
	require.ErrorContains(t, errs[0], "remote access error")
}

// TestUC45_MTUsDiffer: ports whose MTUs differ talk with the smaller one, at all sizes.
func TestUC45_MTUsDiffer(t *testing.T) {
	needDevices(t, 2)
	names := unequalMTUs(t)
	one, other := small(), small()
	one.Devices, other.Devices = only(names[0]), only(names[1])
	one.Slot, other.Slot = 64<<10, 64<<10
	d := newDuo(t, testOptions(), one, other)
	for n := 4; n <= 8<<20; n *= 8 {
		d.pass(0, message(n))
		d.pass(1, message(n + 1)[:n])
	}
	require.NotEqual(t, d.eps[0].nics[0].port.ActiveMTU, d.eps[1].nics[0].port.ActiveMTU)
}

// unequalMTUs finds two devices on the same wire with different MTUs: in the virtual machine rxe1 and rxe2.
func unequalMTUs(t *testing.T) [2]string {
	t.Helper()
	if os.Getenv("GCCL_RDMA_VM") == "" {
		t.Skip("which devices are on the same wire is known in the virtual machine of make test-rdma only")
	}
	return [2]string{"rxe1", "rxe2"}
}

// TestUC51_SoftRoCE: messages longer than an MTU pass, and a link-local GID that leads nowhere is an error within the time that was
// set, or works, but nothing hangs.
func TestUC51_SoftRoCE(t *testing.T) {
	needDevices(t, 1)
	c := small()
	c.Slot = 64 << 10
	d := newDuo(t, testOptions(), c)
	for _, n := range []int{4 << 10, 1 << 20} {
		d.pass(0, message(n))
	}
	zero := 0
	c.GIDIndex, c.ConnectTimeout, c.Timeout = &zero, 20*time.Second, 14
	d = newDuo(t, testOptions(), c)
	require.True(t, addressOf(d.eps[0].nics[0].gid.GID).IsLinkLocalUnicast())
	b, got := message(64<<10), make([]byte, 64<<10)
	var err error
	d.until("a message or an error", func() bool {
		if _, err = d.conns[0].Stream(0).Send(1, bufOf(b)); err != nil {
			return true
		}
		var ok bool
		ok, err = d.conns[1].Stream(0).Recv(1, bufOf(got))
		return ok || err != nil
	})
	t.Logf("over a link-local GID: %v", err)
	if err == nil {
		require.Equal(t, b, got)
	}
}

// TestUC101_DataBeforeFlag: whoever is told of a message, by its seal or by its completion, sees all its bytes, whatever was in the slot before.
func TestUC101_DataBeforeFlag(t *testing.T) {
	for _, n := range []int{sealMost, 4 << 10} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { dataBeforeFlag(t, n) })
	}
}

func dataBeforeFlag(t *testing.T, n int) {
	needDevices(t, 1)
	c := small()
	c.QPs = 2 // which overtake one another
	d := newDuo(t, testOptions(), c)
	times := 3000
	if os.Getenv("GCCL_TEST_FULL") != "" {
		times = 1_000_000
	}
	if testing.Short() {
		times = 300
	}
	b := make([]byte, n)
	from, to := d.conns[0].Stream(0), d.conns[1].Stream(0)
	sent := 0
	for k := range times {
		var view unsafe.Pointer
		d.until("a view", func() bool {
			for ahead := true; ahead && sent < times && sent < k+20; {
				for i := range b {
					b[i] = byte(sent)
				}
				var err error
				ahead, err = from.Send(1, bufOf(bytes.Clone(b)))
				require.NoError(t, err)
				if ahead {
					sent++
				}
			}
			var err error
			view, err = to.View(1, n)
			require.NoError(t, err)
			return view != nil
		})
		for i, v := range unsafe.Slice((*byte)(view), n) {
			if v != byte(k) {
				t.Fatalf("byte %d of message %d is %#x", i, k, v)
			}
		}
		require.NoError(t, to.Release())
	}
}

func ip(t *testing.T, arguments string) {
	out, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput()
	require.NoError(t, err, "ip %s: %s", arguments, out)
}

// cut takes the wire between rxe1 and rxe2 away, until the test ends or heal is called.
func cut(t *testing.T) (heal func()) {
	ip(t, "link set veth1 down")
	heal = sync.OnceFunc(func() {
		ip(t, "link set veth1 up")
		for i, dev := range []string{"veth0", "veth1"} { // they went with the link
			ip(t, "route replace 10.78.0.0/24 dev "+dev+" table 10"+string(rune('0'+i))+" src 10.78.0."+string(rune('1'+i)))
		}
		aim(t, hardware)
	})
	t.Cleanup(heal)
	return heal
}

// aim sends what rxe1 and rxe2 have for each other to a hardware address.
func aim(t *testing.T, at func(t *testing.T, dev string) string) {
	for i, dev := range []string{"veth0", "veth1"} {
		peer := "10.78.0." + string(rune('2'-i))
		ip(t, "neigh replace "+peer+" lladdr "+at(t, "veth"+string(rune('1'-i)))+" nud permanent dev "+dev)
	}
}

func hardware(t *testing.T, dev string) string {
	address, err := os.ReadFile("/sys/class/net/" + dev + "/address")
	require.NoError(t, err)
	return strings.TrimSpace(string(address))
}

// stray has nothing arrive between rxe1 and rxe2, until the test ends; neither end sees that.
func stray(t *testing.T) {
	t.Cleanup(func() { aim(t, hardware) })
	aim(t, func(*testing.T, string) string { return "02:00:00:00:00:99" })
}

// TestCutLink: a link that is cut breaks the connection after the retries, and says so.
func TestCutLink(t *testing.T) {
	needDevices(t, 2)
	names := unequalMTUs(t)
	one, other := small(), small()
	one.Devices, other.Devices = only(names[0]), only(names[1])
	one.Timeout, one.Retry = 14, 3 // 0.27 s
	other.Timeout, other.Retry = 14, 3
	d := newDuo(t, testOptions(), one, other)
	d.pass(0, message(100_000))
	cut(t)
	start := time.Now()
	var err error
	b := make([]byte, 5000)
	d.until("the error of a cut link", func() bool {
		_, err = d.conns[0].Stream(0).Send(1, bufOf(b))
		return err != nil
	})
	t.Logf("after %v: %v", time.Since(start), err)
	require.ErrorIs(t, err, transport.ErrGone)
	require.ErrorIs(t, err, ibv.RetryExceeded)
}

// TestConnectCycles makes and closes connections, and wants the device to have as many objects as before, and the process as many
// descriptors and as much pinned memory.
func TestConnectCycles(t *testing.T) {
	needDevices(t, 1)
	objects := func() string {
		out, err := exec.Command("rdma", "resource", "show").Output()
		if err != nil {
			t.Skipf("nothing here counts the device's objects: %v", err)
		}
		return string(out)
	}
	warm, err := Open(small(), testOptions()) // the first one makes what the process keeps
	require.NoError(t, err)
	require.NoError(t, warm.Close())
	files := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(all)
	}
	pinned := func() (lines string) {
		b, err := os.ReadFile("/proc/self/status")
		require.NoError(t, err)
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, "VmLck") || strings.HasPrefix(line, "VmPin") {
				lines += line
			}
		}
		return lines
	}
	before, beforeFiles, beforePinned := objects(), files(), pinned()
	require.Contains(t, beforePinned, "VmPin")
	times := 300
	if testing.Short() {
		times = 40
	}
	if os.Getenv("GCCL_TEST_FULL") != "" {
		times = 10_000
	}
	began := time.Now()
	o := testOptions()
	c := small()
	c.Slot, c.Slots, o.MaxMessage = 1<<10, 4, 1<<10
	var first int64
	func() {
		var eps [2]transport.Endpoint
		for i := range eps {
			var err error
			eps[i], err = Open(c, o)
			require.NoError(t, err)
			defer eps[i].Close()
		}
		d := &duo{TB: t, eps: [2]*endpoint{eps[0].(*endpoint), eps[1].(*endpoint)}}
		for k := range times {
			for i := range d.conns {
				var err error
				d.conns[i], err = eps[i].Conn(transport.Key{Comm: uint64(k), Self: int32(i), Peer: int32(1 - i)}, eps[1-i].Address())
				require.NoError(t, err)
			}
			d.pass(k%2, message(500))
			require.NoError(t, d.conns[k%2].Close())
			require.NoError(t, d.conns[1-k%2].Close())
			if k == 0 {
				first = eps[0].Stats().Memory + eps[1].Stats().Memory
			}
			d.until("the connections to be over", func() bool { return d.eps[0].qps()+d.eps[1].qps() == 0 })
			if k%1000 == 999 {
				t.Logf("%d connections made and closed in %v", k+1, time.Since(began))
			}
			require.LessOrEqual(t, eps[0].Stats().Memory+eps[1].Stats().Memory, first)
		}
		require.LessOrEqual(t, d.eps[0].nics[0].cq.Entries(), 4*firstCQ, "the completion queue did not grow with the number of connections made")
	}()
	require.Equal(t, before, objects())
	require.LessOrEqual(t, files(), beforeFiles)
	require.Equal(t, beforePinned, pinned())
	t.Logf("%d connections made and closed in %v: %s", times, time.Since(began), before)
}

// TestUC40_Memlock: where too little memory may be pinned the error says so, with the limit and what to set.
func TestUC40_Memlock(t *testing.T) {
	needDevices(t, 1)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a process that has less rights")
	}
	out, err := child(t, "memlock", "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all", "bash", "-c", `ulimit -l 64; exec "$0" "$@"`).CombinedOutput()
	require.NoError(t, err, string(out))
	t.Logf("%s", out)
	for _, word := range []string{"memlock is 64 KiB", "ulimit -l unlimited", "LimitMEMLOCK", "--ulimit memlock=-1", "cannot allocate memory"} {
		require.Contains(t, string(out), word)
	}
}

// TestKilledProcess: a peer whose process is killed is known soon.
func TestKilledProcess(t *testing.T) {
	needDevices(t, 1)
	e, err := Open(small(), testOptions())
	require.NoError(t, err)
	defer e.Close()
	peer := child(t, "peer")
	peer.Env = append(peer.Env, "GCCL_VERBS_PEER="+hexOf(e.Address()))
	stdout, err := peer.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, peer.Start())
	defer peer.Wait()
	defer peer.Process.Kill()
	var line [512]byte
	n, err := stdout.Read(line[:])
	require.NoError(t, err)
	address := bytesOf(t, strings.TrimSpace(string(line[:n])))
	c, err := e.Conn(transport.Key{Comm: 7, Self: 0, Peer: 1}, address)
	require.NoError(t, err)
	got := make([]byte, 100)
	wait := func() (bool, error) {
		for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Microsecond) {
			e.Progress()
			if ok, err := c.Stream(0).Recv(1, bufOf(got)); ok || err != nil {
				return ok, err
			}
			require.False(t, time.Now().After(deadline), "nothing came")
		}
	}
	ok, err := wait()
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, peer.Process.Kill())
	start := time.Now()
	_, err = wait()
	t.Logf("after %v: %v", time.Since(start), err)
	require.ErrorIs(t, err, transport.ErrGone)
	require.NotErrorIs(t, err, transport.ErrLeft)
	require.Less(t, time.Since(start), patience) // milliseconds where there is nothing else to do
}
