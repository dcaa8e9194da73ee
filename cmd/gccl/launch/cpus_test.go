package launch

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestRanksAreBoundToTheirCPUs(t *testing.T) {
	mine := unix.NewCPUSet(maxCPUs)
	require.NoError(t, unix.SchedGetaffinityDynamic(0, mine))
	var allowed []int
	for n := range maxCPUs {
		if mine.IsSet(n) {
			allowed = append(allowed, n)
		}
	}
	last := allowed[len(allowed)-1]
	const show = `echo $GCCL_RANK $(sh -c 'sed -n s/Cpus_allowed_list:// p /proc/self/status')`
	out, err := runScript(t, 3, strings.ReplaceAll(show, "// p", "//p"), func(j *Job) { j.CPUs = [][]int{{allowed[0]}, {last}, nil} })
	require.NoError(t, err)
	require.Contains(t, out, "[0] 0 "+strconv.Itoa(allowed[0])+"\n", "and what it starts")
	require.Contains(t, out, "[1] 1 "+strconv.Itoa(last)+"\n")
	if len(allowed) > 1 {
		require.NotContains(t, out, "[2] 2 "+strconv.Itoa(last)+"\n", "not bound")
	}
	after := unix.NewCPUSet(maxCPUs)
	require.NoError(t, unix.SchedGetaffinityDynamic(0, after))
	require.Equal(t, mine, after)

	// The system leaves out what it does not have, and so shows that it was told.
	for _, far := range []int{1023, 1024, 5000, maxCPUs - 1} {
		if !mine.IsSet(far) {
			out, err = runScript(t, 1, strings.ReplaceAll(show, "// p", "//p"), func(j *Job) { j.CPUs = [][]int{{far, last}} })
			require.NoError(t, err)
			require.Contains(t, out, "[0] 0 "+strconv.Itoa(last)+"\n")
		}
	}
	for _, cpus := range [][]int{{-1}, {maxCPUs, allowed[0]}, {1 << 20}, {allowed[0], allowed[0]}, {maxCPUs - 1}} {
		_, err = runScript(t, 2, "exit 0", func(j *Job) { j.CPUs = [][]int{nil, cpus} })
		require.ErrorContains(t, err, "rank 1")
		require.ErrorContains(t, err, strconv.Itoa(cpus[0]))
	}
}

// A rank that was started, and whose launcher could not get its own CPUs back, does not run on.
func TestNoProcessWithoutWhatFollows(t *testing.T) {
	program, args := script(t, "sleep 1000 & wait")
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	lost := errors.New("the CPUs are lost")
	require.ErrorIs(t, startThen(cmd, func() error { return lost }), lost)
	require.NotNil(t, cmd.ProcessState, "it was waited for")
	require.Equal(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
}
