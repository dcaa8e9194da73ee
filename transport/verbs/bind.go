//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// bindNear binds the process's threads as Config.Near says.
func (e *endpoint) bindNear() error {
	if e.config.Near == nil {
		return nil
	}
	first := e.nics[0]
	processors := e.config.Near(first.device.Name(), int(first.port.Number))
	if len(processors) == 0 {
		e.config.Log.Warn("verbs: threads are not bound: no processor is known to be near", "device", first.device.Name())
		return nil
	}
	e.config.Log.Info("verbs: threads run near the port", "port", first, "processors", processors)
	return bind(processors)
}

// maxProcessors is how many any Linux has at most: CONFIG_NR_CPUS ends there.
const maxProcessors = 8192

// bind lets all threads of the process run on these processors alone, and so those that they will start. Whoever waits polls, so that no
// single thread could be told to be the poller.
func bind(processors []int) error {
	set := unix.NewCPUSet(maxProcessors)
	for _, n := range processors {
		set.Set(n)
	}
	if set.Count() < len(processors) {
		return fmt.Errorf("verbs: bind to the processors %v: want different numbers from 0 to %d", processors, maxProcessors-1)
	}
	bound := map[int]bool{}
	for fresh := true; fresh; { // a thread that was not bound yet may have started another
		fresh = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("verbs: bind to the processors %v: %w", processors, err)
		}
		for _, task := range tasks {
			id, err := strconv.Atoi(task.Name())
			if err != nil || bound[id] {
				continue
			}
			if err := unix.SchedSetaffinityDynamic(id, set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("verbs: bind to the processors %v: %w", processors, err)
			}
			bound[id], fresh = true, true
		}
	}
	return nil
}
