package comm

import (
	"sync"

	"github.com/gccl-project/gccl/collective/engine"
)

// processDriver returns the driver that all communicators of the process share unless told otherwise.
var processDriver = sync.OnceValue(engine.NewDriver)
