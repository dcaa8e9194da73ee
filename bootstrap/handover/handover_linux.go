package handover

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// An Offer is a file that is there to be taken, any number of times, until Close.
type Offer struct {
	ticket Ticket
	l      *net.UnixListener
	file   *os.File
	ends   sync.WaitGroup
	life   context.Context // until Close
	kill   context.CancelFunc
}

const (
	patience  = 5 * time.Second // with one who has connected
	strangers = 64              // who are heard at once
)

// New offers a file, which becomes the offer's: Close closes it, too, and so does an error.
func New(file *os.File) (*Offer, error) {
	o, err := newOffer(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return o, nil
}

func newOffer(file *os.File) (*Offer, error) {
	o := &Offer{file: file}
	var name [16]byte
	for _, b := range [][]byte{name[:], o.ticket.Secret[:]} {
		if _, err := rand.Read(b); err != nil {
			return nil, err
		}
	}
	o.ticket.Name = "@gccl-" + hex.EncodeToString(name[:])
	var err error
	if o.l, err = net.ListenUnix("unix", &net.UnixAddr{Name: o.ticket.Name, Net: "unix"}); err != nil {
		return nil, fmt.Errorf("handover: offer of a file: %w", err)
	}
	o.life, o.kill = context.WithCancel(context.Background())
	o.ends.Go(o.serve)
	return o, nil
}

// Ticket returns what others need. Whoever has it gets the file.
func (o *Offer) Ticket() Ticket { return o.ticket }

// Close ends the offer and closes the file.
func (o *Offer) Close() error {
	err := o.l.Close()
	o.kill()
	o.ends.Wait()
	return errors.Join(err, o.file.Close())
}

func (o *Offer) serve() {
	room := make(chan struct{}, strangers)
	for {
		conn, err := o.l.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(time.Millisecond) // no descriptors: some may come free
			continue
		}
		if !ours(conn) { // before it takes a place
			conn.Close()
			continue
		}
		select {
		case room <- struct{}{}:
		case <-o.life.Done():
			conn.Close()
			return
		}
		o.ends.Go(func() {
			defer func() { <-room }()
			defer conn.Close()
			defer context.AfterFunc(o.life, func() { conn.Close() })()
			o.hand(conn)
		})
	}
}

// ours reports whether a process of our user, or of root, is at the other end.
func ours(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var who *syscall.Ucred
	if raw.Control(func(fd uintptr) { who, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED) }) != nil || err != nil {
		return false
	}
	return who.Uid == 0 || int(who.Uid) == os.Geteuid()
}

// hand gives one who shows the secret the file. Who does not gets nothing, and no word why.
func (o *Offer) hand(conn *net.UnixConn) {
	if conn.SetDeadline(time.Now().Add(patience)) != nil {
		return
	}
	var shown [len(o.ticket.Secret)]byte
	if _, err := io.ReadFull(conn, shown[:]); err != nil || subtle.ConstantTimeCompare(shown[:], o.ticket.Secret[:]) != 1 {
		return
	}
	_, _, _ = conn.WriteMsgUnix([]byte{1}, syscall.UnixRights(int(o.file.Fd())), nil) // who does not get it says so
}

// Take returns the file of an offer, as a new descriptor that the caller closes. It waits some seconds at most.
func Take(ctx context.Context, t Ticket) (*os.File, error) {
	fail := func(err error) (*os.File, error) {
		return nil, fmt.Errorf("handover: no file from %s (processes must share a network namespace): %w", t.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", t.Name)
	if err != nil {
		return fail(err)
	}
	conn := c.(*net.UnixConn)
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := conn.Write(t.Secret[:]); err != nil {
		return fail(errors.Join(err, ctx.Err()))
	}
	var one [1]byte
	rights := make([]byte, syscall.CmsgSpace(4))
	n, m, _, _, err := conn.ReadMsgUnix(one[:], rights)
	if err != nil || n == 0 {
		return fail(errors.Join(errors.New("it gave none"), err, ctx.Err()))
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:m])
	if err != nil || len(messages) != 1 {
		return fail(fmt.Errorf("%d messages of control: %w", len(messages), errors.Join(errors.New("it gave none"), err)))
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return fail(fmt.Errorf("%d descriptors: %w", len(fds), errors.Join(errors.New("it gave none"), err)))
	}
	syscall.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), t.Name), nil
}
