// Package verbs carries messages by RDMA: InfiniBand, or RoCE over Ethernet. It needs Linux, a build with cgo, libibverbs.so.1, which
// is opened by name, and a device with an active port; else [Open] returns an error wrapping errors.ErrUnsupported.
//
// # Set-up
//
// An endpoint opens one port of one device and listens on a TCP address, where peers prove the secret by bootstrap/auth before
// anything of theirs is parsed. Of a pair the lower rank alone offers a QP, in the background; the higher rank asks it to, again and
// again until it does. So either may be first, neither needs a step of the other's user, and there is never a choice between two
// attempts.
//
//	higher → lower   ring     connect to me, here is my address
//	lower → higher   offer    key, options, record of my QP, which can receive already
//	higher → lower   welcome  record of mine, which can receive and send
//	lower → higher   commit   mine can, too
//
// The record has the QP's number, its first packet, GID, LID, MTU and the key of its slots. The path MTU is the smaller one of both
// ends'. The GID is chosen by rule, on each end for itself: RoCE v2 before v1, on the interface of Config.Addr if it has one, IPv4
// before routed IPv6 before link-local, then the lowest index. Options that differ are an error wrapping transport.ErrMismatch at both
// ends, naming the field.
//
// The TCP connection stays, silent: its end tells of a dead process at once, where the device would find out after its retries.
//
// # Slots
//
// Each end of a connection has Slots slots of Slot bytes for every stream in either direction: pinned memory that is mapped for
// that alone, never Go's heap. A message is cut into pieces. A piece is copied into a slot of the sender's and written into the same
// slot of the receiver's by one WRITE_WITH_IMM, inline if it is short. A slot begins with 48 bytes, little-endian:
//
//	 0  8  number of the message in its stream
//	 8  4  tag
//	12  4  bytes of the message
//	16  4  offset of this piece
//	20  4  length of this piece
//	24  4  CRC-32C of this piece, with Options.Checksum
//	28  4  credit: slots of this stream that the sender has read itself, modulo 2^32
//	32  8  how often the slots of the stream have been written, this time included
//	40  8  0
//
// The completion that the immediate makes at the receiver is the flag: it is the only thing of which the InfiniBand specification says
// that the data is there when it is. A flag in the data would come first where the order of writes is relaxed; the count of writes is
// a hint for who spins (transport.Awaiter), never a promise. The immediate is the
// kind in 2 bits (1 piece, 2 credit, 3 goodbye), the stream in 6 and a count in 24: the slot's number.
//
// # Flow control: why streams never block one another, and receives never run out
//
// A slot is written only when the peer has said that it was read. It says so in the header of what it sends on the same stream, or,
// once half of the slots were read, by an immediate without data. A credit is never read from memory that the peer writes: then it
// could be ahead of its completion, and nothing would bound the completions, each of which takes a receive. As it is, a stream takes
// at most Slots + 3 receives, all of which are posted when the connection is made, so that no peer ever finds the receiver
// not ready. What is sent needs no completion of its own: a credit proves it done. The device is asked for one every quarter of its
// queue, and for the goodbye, after which all has arrived.
//
// # Promises
//
// Send borrows the memory until it is in slots, which Sent tells: at once while there are free ones. A message longer than Slots slots
// is counted only when the peer asks for it. View shows a message of one piece where it lies. The steady state allocates nothing,
// and a batch of pieces is one call into C.
//
// A failed completion is an error wrapping transport.ErrGone, the device's status and the peer with its GIDs and QPs; so is the end of
// the peer's process. Close destroys the QP before the memory goes: afterwards no peer can touch it.
//
// # Duties
//
// Besides the contract of package transport: whoever waits must call Progress or ask a stream now and then. Sleep on FD, and
// ask for it before each sleep: that arms the completion queue.
//
//	e, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr("192.0.2.7")}, options)
//	c, err := e.Conn(key, peerAddress)
//	for {
//		if ok, err := c.Stream(0).Recv(tag, buf); ok || err != nil {
//			break
//		}
//		e.Progress()
//	}
package verbs
