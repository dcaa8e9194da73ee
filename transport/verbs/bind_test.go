//go:build linux && cgo

package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestBind: where the processors near the port are asked for, all threads of the process run on those alone, and so do later ones. It is
// tried in a child, for there is no way back.
func TestBind(t *testing.T) {
	var all unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &all))
	if all.Count() < 2 {
		t.Skip("needs two processors to choose from")
	}
	last := 0
	for n := range 64 * len(all) {
		if all.IsSet(n) {
			last = n
		}
	}
	cmd := child(t, "bind")
	cmd.Env = append(cmd.Env, "GCCL_VERBS_PROCESSOR="+strconv.Itoa(last))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	t.Logf("%s", out)
	var threads int
	_, err = fmt.Sscanf(string(out[bytes.LastIndexByte(bytes.TrimSpace(out), '\n')+1:]), "%d threads: <nil>", &threads)
	require.NoError(t, err, string(out))
	require.Greater(t, threads, 8)
	if names, err := ibv.Devices(); err == nil && len(names) > 0 {
		require.Regexp(t, `asked for (.+):(\d+) of .+ port`, string(out))
	}
	require.ErrorContains(t, bind([]int{0, 0}), "different numbers")
	require.ErrorContains(t, bind([]int{1 << 20}), "different numbers")
}

// beBound binds the process, by an endpoint where there is a device, and says for each thread where it may run.
func beBound() {
	n, err := strconv.Atoi(os.Getenv("GCCL_VERBS_PROCESSOR"))
	begun, end := make(chan bool), make(chan bool)
	threads := func() {
		for range 4 {
			go func() {
				runtime.LockOSThread()
				begun <- true
				<-end
			}()
			<-begun
		}
	}
	threads()
	c := small()
	far := []int{n, maxProcessors - 1} // the system leaves out what it does not have
	asked := ""
	c.Near = func(device string, port int) []int {
		asked = device + ":" + strconv.Itoa(port)
		return far
	}
	if e, open := Open(c, testOptions()); open == nil {
		defer e.Close()
		fmt.Println("asked for", asked, "of", e.(*endpoint).nics[0])
	} else if err == nil {
		err = bind(far) // no device here
	}
	threads()
	tasks, failed := os.ReadDir("/proc/self/task")
	err = errors.Join(err, failed)
	for _, task := range tasks {
		id, _ := strconv.Atoi(task.Name())
		var set unix.CPUSet
		if failed := unix.SchedGetaffinity(id, &set); failed == nil && (set.Count() != 1 || !set.IsSet(n)) {
			err = errors.Join(err, fmt.Errorf("thread %d may run on %d processors", id, set.Count()))
		}
	}
	close(end)
	fmt.Println(len(tasks), "threads:", err)
}
