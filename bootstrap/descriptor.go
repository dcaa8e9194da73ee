package bootstrap

import "fmt"

// spareDescriptors are what the Go runtime, a name lookup or a log may open.
const spareDescriptors = 8

// needDescriptors makes sure that the process may open what a session of a world of ranks needs at the least, and more besides: its
// listener, the links to its neighbours, and on the rank that serves the root, a listener and a connection for each rank.
func needDescriptors(world int, serves bool, more int) error {
	need := countDescriptors() + spareDescriptors + 1 + min(world-1, 4) + more
	if serves {
		need += 1 + world
	}
	limit, err := raiseDescriptors(need)
	if err != nil {
		return err
	}
	if limit < need {
		return fmt.Errorf("nofile %d of need about %d: raise the limit of open files (ulimit -n, LimitNOFILE)", limit, need)
	}
	return nil
}
