// Package tcp carries messages over TCP sockets that the caller's goroutine
// drives itself, without the runtime's poller. It runs on Linux; elsewhere [Open]
// returns an error wrapping errors.ErrUnsupported.
//
// # Set-up
//
// An endpoint listens on one address, and one more for each of Config.Rails. The first Conn with a key dials the peer in
// a background goroutine, again and again with growing pauses until
// Config.ConnectTimeout; the peer accepts in the background whether or not its
// user has asked for the key yet. So either rank may be first. If both dial, the
// lower rank of the pair decides: it takes the first attempt that is complete,
// its own or the peer's, and the other attempt is dropped. The three steps of an
// attempt, on each of its sockets, come after proof of the secret by
// bootstrap/auth:
//
//	dialler → acceptor   hello    who, for whom, with which options   96 bytes
//	acceptor → dialler   welcome  yes, later, no and why, or left    256 bytes
//	dialler → acceptor   commit   only when all sockets were welcome   8 bytes
//
// Sockets are spread over the networks that both ends have an address in (Rails), several on each where that is a bond (Flows): the dialler
// says how many there are.
//
// Options that differ are an error wrapping transport.ErrMismatch at both ends,
// naming the field.
//
// # Frames
//
// Afterwards a socket carries frames: a header of 48 bytes, little-endian, then
// length bytes of payload.
//
//	 0  4  CRC-32C of bytes 4 to 47
//	 4  1  kind: 1 piece of a message, 2 credit, 3 goodbye
//	 5  1  0
//	 6  2  stream
//	 8  8  number of the message in its stream
//	16  4  tag
//	20  4  bytes of the message
//	24  4  offset of this piece
//	28  4  length of this piece
//	32  4  CRC-32C of this piece, with Options.Checksum
//	36  4  place of the message in the stream, in bytes modulo 2^32
//	40  4  credit: 2 × messages consumed + 1 if the next one is asked for, modulo 2^32
//	44  4  0
//
// A message is cut in pieces of at most 1 MiB so that streams take turns on a
// socket. With several sockets pieces of long messages go over whichever socket has
// room; the first piece of every message stays on its stream's own socket, in
// order, which is how a lost, doubled or reordered message is found by number.
//
// # Flow control: why streams never block one another
//
// A receiver reads whatever comes, so a socket is never stopped by a stream that
// nobody asks for. What is not asked for yet is staged, and is bounded because a
// sender may be at most Window bytes (each message counted up to a multiple of
// 64) and 32 messages ahead of what the reader has consumed; beyond that it needs
// credit. Asking for a message (Recv or View) gives credit for all of it, so long
// messages are never staged whole, and credit comes for free in the headers of
// messages going the other way. Hence at most Streams × Window bytes are staged
// for a connection, no stream waits for another, and no cycle of waits exists
// that the callers did not make themselves. The price: Sent of a message longer
// than Window is counted only when the peer asks for the message.
//
// # Promises
//
// Send borrows the memory until it is written to the kernel, which Sent tells;
// nothing is copied, but by Close, what the kernel does not take at once. A message that is asked for before it arrives is read from
// the kernel straight into its place, also by a Progress that reads for the sake of credit: it stops behind such a message, so that its reader can
// ask for the next one first. The steady state allocates nothing. A message of up to
// 4 KiB is one system call at each end, and its header and payload one segment.
//
// The host's congestion control stands, but for peers that have our address, or one of the loopback network: their
// sockets use Reno, which does not pace.
//
// The end of a peer is an error wrapping transport.ErrGone for everyone who
// waits for it: at once when its process ends or the connection is reset. A host
// that vanishes without a word is found by TCP keep-alive after 20 s at the
// earliest; job-wide liveness belongs to the bootstrap.
//
// # Duties
//
// Besides the contract of package transport: whoever waits must call Progress or
// ask a stream now and then, also a rank that only sends, because credit is read
// there. Sleep on FD, and ask for it before each sleep: sockets are in its epoll set
// only from then until something is read. Whoever looks once more before it sleeps calls Progress last, which says so if that has happened.
//
//	e, err := tcp.Open(tcp.Config{Addr: netip.MustParseAddr("192.0.2.7")}, options)
//	c, err := e.Conn(key, peerAddress)
//	for {
//		if ok, err := c.Stream(0).Recv(tag, buf); ok || err != nil {
//			break
//		}
//		e.Progress()
//	}
package tcp
