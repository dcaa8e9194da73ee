// Package ibv is the binding to libibverbs and nothing else: thin, and without policy.
//
// The library is opened by name at the first call of [Devices] or [Open]; where it is missing they return an error that names
// libibverbs.so.1 and wraps errors.ErrUnsupported, and nothing else of the package can be reached. Without cgo, or on another
// system than Linux, only the constants and plain values are there.
//
// # Promises
//
// One call into C posts or polls a whole batch and allocates nothing. Requests and completions are plain values without
// pointers; addresses in them are numbers. Errors name the verb and wrap the syscall.Errno. Whatever has a Close is freed by it;
// Close of what is still used by another object fails with EBUSY and may be tried again.
//
// # Duties
//
// Memory behind a registration or a request that is under way must not move or go away: map it outside the Go heap. Objects are
// closed in the reverse order of their making. Methods of different objects may be called at the same time; of one QP or CQ,
// one at a time.
//
//	d, err := ibv.Open("mlx5_0")
//	pd, err := d.AllocPD()
//	mr, err := pd.Register(addr, bytes, ibv.LocalWrite|ibv.RemoteWrite)
//	n, err := qp.Post([]ibv.Send{{Addr: addr, Bytes: 64, LKey: mr.LKey(), Op: ibv.Write, Remote: theirs, RKey: rkey}})
package ibv
