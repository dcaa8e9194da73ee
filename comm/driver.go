package comm

import (
	"runtime"
	"sync"

	"github.com/gccl-project/gccl/collective/engine"
)

// processDriver returns the driver that all communicators of the process share unless told otherwise.
var processDriver = sync.OnceValue(engine.NewDriver)

// processors is how many ranks of this host can run at once.
func processors() int { return min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) }
