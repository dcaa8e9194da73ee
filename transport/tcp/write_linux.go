package tcp

import (
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/unix"
)

const (
	batch    = 8       // frames written by one call
	enough   = 1 << 20 // bytes that one push or pump moves at most, about
	shortMax = 4 << 10 // bytes of a message that is copied behind its header
)

// flow is one socket of a connection.
type flow struct {
	conn  *conn
	index int
	fd    int

	// Writing: frames[first…first+queued) mod batch, of which the first one may
	// be half written.
	frames [batch]frame
	first  int
	queued int
	said   bool // the goodbye was written
	vector [2 * batch]unix.Iovec
	msg    unix.Msghdr
	short  [headerSize + shortMax]byte

	// Reading: buf[r:w] holds what was read beyond the piece under way.
	buf     []byte
	r, w    int
	piece   piece
	drained bool   // nothing was left in the kernel
	bye     bool   // the peer said goodbye
	end     error  // why nothing more will come
	watched uint32 // events that the endpoint's epoll set has the socket for
	places  [3]unix.Iovec
}

// frame is a frame that is waiting to be written.
type frame struct {
	header  [headerSize]byte
	data    []byte
	written int     // bytes of header and data
	stream  *stream // nil for credit and goodbye
	message uint64
	kind    uint8
}

func (f *flow) add(h *header, s *stream, message uint64, data []byte) {
	r := &f.frames[(f.first+f.queued)%batch]
	f.queued++
	h.put(&r.header)
	r.data, r.written, r.stream, r.message, r.kind = data, 0, s, message, h.kind
}

func (f *flow) dropFrames() {
	for i := range f.frames {
		f.frames[i].data, f.frames[i].stream = nil, nil
	}
	f.queued = 0
}

// takeBack makes the frames that wait point to the copies that their messages now have.
func (f *flow) takeBack() {
	for i := range f.queued {
		r := &f.frames[(f.first+i)%batch]
		if r.stream == nil || len(r.data) == 0 {
			continue
		}
		offset := binary.LittleEndian.Uint32(r.header[offsetAt:])
		r.data = r.stream.tx.at(r.message).data[offset:][:len(r.data)]
	}
}

// fill queues frames: credit first, for others wait for it, then the streams in
// turn, in the end the goodbye.
func (f *flow) fill() {
	c := f.conn
	bytes := 0
	for i := range f.queued {
		bytes += len(f.frames[(f.first+i)%batch].data)
	}
	for c.toCredit != 0 && f.queued < batch {
		i := bits.TrailingZeros64(c.toCredit)
		c.toCredit &^= 1 << i
		f.add(&header{kind: kindCredit, stream: uint16(i), credit: c.streams[i].rx.tell(c)}, nil, 0, nil)
	}
	most := enough / len(c.flows)
	blocked := uint64(0) // streams that have nothing for this flow now
	for f.queued < batch && bytes < most {
		able := c.toSend &^ blocked
		if able == 0 {
			break
		}
		i := bits.TrailingZeros64(bits.RotateLeft64(able, -c.turn))
		i = (i + c.turn) % 64
		if !c.streams[i].cutFrame(f) {
			blocked |= 1 << i
			continue
		}
		bytes += len(f.frames[(f.first+f.queued-1)%batch].data)
		c.turn = (i + 1) % 64
	}
	if c.closed && !f.said && c.toSend == 0 && f.queued < batch && !f.parting() {
		f.add(&header{kind: kindBye}, nil, 0, nil)
	}
}

// parting reports whether the goodbye is queued.
func (f *flow) parting() bool {
	return f.queued > 0 && f.frames[(f.first+f.queued-1)%batch].kind == kindBye
}

// push writes what one call takes and returns how many bytes that was: 0 when
// the kernel takes no more, nothing may be sent, or writing failed.
func (f *flow) push() int {
	f.fill()
	if f.queued == 0 {
		return 0
	}
	n, errno := f.write()
	switch errno {
	case 0:
	default:
		f.refused(errno)
		return 0
	}
	f.advance(n)
	return n
}

// refused acts on a call that wrote nothing.
func (f *flow) refused(errno unix.Errno) {
	switch errno {
	case unix.ENOBUFS, unix.ENOMEM:
		f.watched &^= unix.EPOLLIN // so that it is set again: room that the socket has all the while is no news otherwise
	case unix.EAGAIN:
	default:
		f.conn.cannotSend(f.conn.blame(errno))
		return
	}
	if f.watched != 0 { // by who looks once more before it sleeps
		f.conn.watch()
	}
}

// write makes one call for the queued frames. A short one that is alone is copied behind its header: one piece of memory takes the kernel less time
// than two.
func (f *flow) write() (int, unix.Errno) {
	if r := &f.frames[f.first]; f.queued == 1 && r.written == 0 && len(r.data) <= shortMax {
		copy(f.short[:], r.header[:])
		return send(f.fd, f.short[:headerSize+copy(f.short[headerSize:], r.data)])
	}
	f.gather()
	n, errno := sendmsg(f.fd, &f.msg)
	clear(f.vector[:f.msg.Iovlen]) // it must not keep the memory of messages from the collector
	return n, errno
}

// gather describes the queued frames to the kernel.
func (f *flow) gather() {
	n := 0
	for i := range f.queued {
		r := &f.frames[(f.first+i)%batch]
		skip := r.written
		if skip < headerSize {
			point(&f.vector[n], r.header[skip:])
			n++
			skip = headerSize
		}
		if rest := r.data[skip-headerSize:]; len(rest) > 0 {
			point(&f.vector[n], rest)
			n++
		}
	}
	f.msg.Iov = &f.vector[0]
	f.msg.SetIovlen(n)
}

// advance takes n written bytes off the queue.
func (f *flow) advance(n int) {
	for n > 0 {
		r := &f.frames[f.first]
		step := min(n, headerSize+len(r.data)-r.written)
		r.written += step
		n -= step
		if r.written < headerSize+len(r.data) {
			return
		}
		f.first = (f.first + 1) % batch
		f.queued--
		s := r.stream
		r.data, r.stream = nil, nil
		switch {
		case s != nil:
			s.tx.at(r.message).inFlight--
			s.account()
		case r.kind == kindBye:
			f.said = true
			unix.Shutdown(f.fd, unix.SHUT_WR)
		}
	}
}
