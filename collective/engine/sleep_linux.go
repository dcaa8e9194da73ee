package engine

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/transport"
)

// sleeper is where a driver sleeps in the kernel. Peers on shared memory wake it through the bells of its endpoints,
// sockets through epoll, this process through Wake. With bells it sleeps in a futex on their words, and a goroutine
// in poll wakes it for the descriptors, if there are any. Without bells it sleeps in poll itself.
type sleeper struct {
	asleep atomic.Bool // from arm to the first Wake, or disarm
	word   uint32      // slept on when there is neither bell nor descriptor

	words []*uint32     // slept on
	fds   []unix.PollFd // of pollable endpoints; the last is event

	// What system calls read and fill: what is passed to one lives on the heap.
	until   unix.Timespec
	waiters []waiter
	arrived [16]unix.EpollEvent
	count   [8]byte

	event   int           // an eventfd for Wake while a pollable endpoint is attached, else none; under the driver's mu
	unused  int           // what event was until now, or none
	polling atomic.Bool   // a goroutine is in poll; until it is not, it is who reads event
	aside   chan struct{} // closed when the last one that was there is done with the descriptors
}

// none is no descriptor.
const none = -1

// Futex operations, between processes.
const (
	futexWait = 0
	futexWake = 1
)

// osYield lets another process run. By a raw system call: of a goroutine that stays in another one, the runtime takes the processor away after 20 µs.
// All-reduces of 4 ranks on 2 processors take 0.95 of the time with it at 8 B and 0.75 at 256 KiB.
func osYield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

func isPollable(e transport.Endpoint) bool { _, ok := e.(transport.Pollable); return ok }

// watch follows a change of the attached endpoints. The caller holds mu and the token.
func (d *Driver) watch(es []transport.Endpoint) {
	d.writeEvent() // the goroutine in poll looks at the old ones
	switch need := slices.ContainsFunc(es, isPollable); {
	case need && d.event == none:
		fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		if err == nil {
			d.event = fd
		}
	case !need && d.event != none:
		d.unused, d.event = d.event, none
	}
}

// unwatch returns what lets go of the descriptors that are watched no more: it waits for a goroutine that is in poll with the last ones. The
// caller holds the token, not to wait with.
func (d *Driver) unwatch() (letGo func()) {
	old, aside := d.unused, d.aside
	d.unused = none
	return func() {
		if old == none {
			return // others are watched: of what goes poll has taken note, or looks once at what has its number now
		}
		if aside != nil {
			<-aside
		}
		unix.Close(old)
	}
}

// arm makes everything that can wake us do so; the caller looks once more before it sleeps.
func (d *Driver) arm(s *idleness) {
	s.armed = true
	d.words, d.fds = d.words[:0], d.fds[:0]
	for _, e := range d.attached() {
		if b, ok := e.(transport.Bell); ok {
			b.Arm()
			d.words = append(d.words, b.Word())
		}
		if p, ok := e.(transport.Pollable); ok {
			d.fds = append(d.fds, unix.PollFd{Fd: int32(p.FD()), Events: unix.POLLIN})
		}
	}
	if len(d.fds) > 0 && d.event != none {
		d.fds = append(d.fds, unix.PollFd{Fd: int32(d.event), Events: unix.POLLIN})
	}
	if len(d.words) == 0 && len(d.fds) == 0 {
		d.words = append(d.words, &d.word)
		atomic.StoreUint32(&d.word, 1)
	}
	d.asleep.Store(true)
}

func (d *Driver) disarm(s *idleness) {
	if !s.armed {
		return
	}
	s.armed = false
	d.asleep.Store(false)
	atomic.StoreUint32(&d.word, 0)
	for _, e := range d.attached() {
		if b, ok := e.(transport.Bell); ok {
			b.Disarm()
		}
	}
}

// nap sleeps until something wakes us, at most limit.
func (d *Driver) nap(limit time.Duration) {
	d.until = unix.NsecToTimespec(int64(limit))
	if len(d.words) == 0 {
		unix.Ppoll(d.fds, &d.until, nil)
		d.drain()
		return
	}
	if len(d.fds) > 0 && d.event != none && d.polling.CompareAndSwap(false, true) {
		d.pollAside()
	}
	if len(d.words) == 1 {
		unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(d.words[0])), futexWait, 1, uintptr(unsafe.Pointer(&d.until)), 0, 0)
	} else {
		d.waitOnAny(limit)
	}
	if len(d.fds) > 0 {
		d.drain()
	}
}

// pollAside has a goroutine wait for news of the descriptors and wake the driver. It ends with the first news, such as a
// change of the attached endpoints.
func (d *Driver) pollAside() {
	fds, before, done := slices.Clone(d.fds), d.aside, make(chan struct{})
	d.aside = done
	go func() {
		defer close(done)
		unix.Ppoll(fds, nil, nil)
		d.polling.Store(false)
		d.Wake()
		if before != nil {
			<-before
		}
	}()
}

// drain takes the news from the descriptors, so that the next sleep waits for newer ones.
func (d *Driver) drain() {
	for _, fd := range d.fds {
		if int(fd.Fd) != d.event {
			unix.EpollWait(int(fd.Fd), d.arrived[:], 0)
		}
	}
	if d.event != none && !d.polling.Load() {
		unix.Read(d.event, d.count[:])
	}
}

// waiter is the kernel's struct futex_waitv.
type waiter struct {
	val, addr       uint64
	flags, reserved uint32
}

// waitOnAny sleeps while all words are 1. Kernels before 5.16 cannot, and some profiles forbid it; there it sleeps a short while.
func (d *Driver) waitOnAny(limit time.Duration) {
	d.waiters = d.waiters[:0]
	for _, w := range d.words[:min(len(d.words), 128)] { // the kernel's limit
		d.waiters = append(d.waiters, waiter{val: 1, addr: uint64(uintptr(unsafe.Pointer(w))), flags: 2}) // FUTEX_32
	}
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &d.until)
	d.until = unix.NsecToTimespec(d.until.Nano() + int64(limit))
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX_WAITV, uintptr(unsafe.Pointer(&d.waiters[0])), uintptr(len(d.waiters)), 0, uintptr(unsafe.Pointer(&d.until)), unix.CLOCK_MONOTONIC, 0)
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR, unix.ETIMEDOUT:
	default:
		time.Sleep(min(limit, 100*time.Microsecond))
	}
}

// Wake makes the driver look again if it sleeps. Anyone may call it, also with the token.
func (d *Driver) Wake() {
	if d.bubble != nil {
		select {
		case d.bubble <- struct{}{}:
		default:
		}
		return
	}
	if !d.asleep.CompareAndSwap(true, false) {
		return
	}
	ring(&d.word)
	d.mu.Lock() // so that nothing is touched once Detach has returned: its memory goes
	defer d.mu.Unlock()
	rung := false
	for _, e := range d.attached() {
		if b, ok := e.(transport.Bell); ok {
			ring(b.Word())
			rung = true
		}
	}
	if !rung { // Who sleeps on bells does not sleep in poll, and what we wrote after it woke up would end its next sleep.
		d.writeEvent()
	}
}

// writeEvent wakes whoever is in poll. The caller holds mu.
func (d *Driver) writeEvent() {
	if d.event != none {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		unix.Write(d.event, one[:])
	}
}

func ring(word *uint32) {
	if atomic.CompareAndSwapUint32(word, 1, 0) {
		unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1<<30, 0, 0, 0)
	}
}

// napInBubble sleeps on a channel and a timer, which virtual time knows.
func (d *Driver) napInBubble() {
	t := time.NewTimer(napTime)
	defer t.Stop()
	select {
	case <-d.bubble:
	case <-t.C:
	}
}
