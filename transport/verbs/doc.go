// Package verbs carries messages by RDMA: InfiniBand, or RoCE over Ethernet. It needs Linux, a build with cgo, libibverbs.so.1, which
// is opened by name, and a device with an active port; else [Open] returns an error wrapping errors.ErrUnsupported.
//
// # Set-up
//
// An endpoint opens ports of devices (Config.Devices) and listens on a TCP address, where peers prove the secret by bootstrap/auth before
// anything of theirs is parsed. Of a pair the lower rank alone offers QPs, in the background; the higher rank asks it to, again and
// again until it does. So either may be first, neither needs a step of the other's user, and there is never a choice between two
// attempts.
//
//	higher → lower   ring     connect to me, here is my address
//	lower → higher   offer    key, options, records of my QPs, which can receive already
//	higher → lower   welcome  records of mine, which can receive and send
//	lower → higher   commit   mine can, too
//
// A record has the QP's number, its first packet, GID, LID, MTU and the key of the slots. The path MTU is the smaller one of both
// ends'. The GID is chosen by rule, on each end for itself: RoCE v2 before v1, on the interface of Config.Addr if it has one, IPv4
// before routed IPv6 before link-local, then the lowest index. Options that differ are an error wrapping transport.ErrMismatch at both
// ends, naming the field.
//
// A connection has as many QPs on each port as the end that wants more of them says, and as many ports as the end that has more; QP i is
// on port i of either end, counted around. Pieces of messages go by turns over all of them, so that a message is striped over the ports.
//
// The TCP connection stays, silent, but that an end which was closed since it said welcome, or committed, says goodbye there: its end tells of a dead process at once, where the device would find out after its retries.
//
// # Slots
//
// Each end of a connection has Slots slots for every stream in either direction: pinned memory out of the endpoint's pool, which is
// mapped for that alone, never Go's heap. A message is cut into pieces, each of one slot or of several in a row, a quarter of them at most. A
// piece is copied into the sender's slots and written into the same ones of the receiver's by one WRITE_WITH_IMM, inline if it is short. A
// message that comes while others are under way is one piece where there is room for it; one that begins alone begins with a short piece, and
// each is as long as all before it, so that the copies at both ends hide behind what is under way. Before its bytes a piece has 48 others,
// little-endian:
//
//	 0  4  seal: a checksum of all that follows, odd, of a piece of up to 80 bytes; 0 of a longer one
//	 4  4  CRC-32C of this piece, with Options.Checksum
//	 8  8  number of the message in its stream
//	16  4  tag
//	20  4  bytes of the message
//	24  4  offset of this piece
//	28  4  length of this piece
//	32  4  credit: slots of this stream that the sender has read itself, modulo 2^32
//	36  4  0
//	40  8  how often the slots of the stream have been written, this time included
//
// A message of 16 KiB or more in memory from Alloc, or that the user registered, is lent (transport.Buf.Shared): the device gathers the 48 bytes
// from the slot and the rest from where it lies. Such a request asks for its completion, with which the memory is the user's again: the peer's
// device has the bytes. The slot remains the piece's, empty, for the case that its QP fails.
//
// Who spins polls memory (transport.Awaiter): the count of writes. The InfiniBand specification promises nothing about the order in which
// the bytes of a WRITE come, so the count is a hint; that a short piece is all there says its seal, and that a long one is, the completion
// which the immediate makes. The completion of a short piece is taken later, with others. The immediate is the
// kind in 2 bits (0 a word about the link, 1 piece, 2 credit, 3 goodbye), the stream or the word in 6 and a count in 24: the number of the
// piece's first slot. With several QPs pieces may arrive in any order; a bit for each slot says which have, and they are read in theirs.
//
// # Flow control: why streams never block one another, and receives never run out
//
// A slot is written only when the peer has said that it was read. It says so in the header of what it sends on the same stream, or,
// once half of the slots were read, by an immediate without data; and it says so of no slot whose completion it has not taken yet, nor
// is a credit read from memory before the completion that it came with. Else nothing would bound the completions, each of which takes a
// receive. As it is, a stream takes
// a few receives more than it has slots, all of which are posted when the connection is made, so that no peer ever finds the receiver
// not ready. What is sent needs no completion of its own: a credit proves it done. The device is asked for one every quarter of its
// queue, by the pieces of long messages and those that are lent, after a second in which it told of nothing, and for the goodbye, which says
// how much was sent on each stream, so that it may arrive before that.
//
// # Parking
//
// An endpoint may have fewer QPs than peers (Config.Budget). Who needs one more has the connections parked that were idle for longest:
// both ends agree that nothing is under way and destroy their QPs; what the streams had counted stays. The next send or receive of either
// end connects anew. Where too few are idle for a second the budget is exceeded, and a line is logged.
//
// # Failover
//
// When a QP fails, as after its retries or because the peer's device refuses, or because its own device says nothing of it for four times as
// long as the retries may take, or has failed altogether, and the connection has others, its traffic goes by those; with Config.Fallback,
// where there are none, over the TCP connection of the set-up. Both ends' QPs are in the state ERR, or destroyed, before anything is sent
// again, so that nothing can come late, and what comes twice is known by its number; what was lent to the QP and may not have been heard
// of is copied to its slot first. Meanwhile the lower rank offers other QPs in the place of those that failed, again and again, and an end
// to which a request by one is acknowledged uses it; one that gives it up says so, and has the other give it up, too. Each of these moves is
// one line in the log. Without Fallback the connection fails with its last QP.
//
// A connection that is made when a device of either end has failed, or when two ports do not come together, is made without that QP, as if it had failed
// before; a device that is short of something is no such case, but an error.
//
// # One-sided operations
//
// An endpoint registers its user's memory (transport.Registrar), and a connection reads a peer's and makes atomic operations on it
// (transport.OneSided), in their order, by one QP. Registrations are kept by range: where the device or Config.Pool has no room for one
// more, those that were used longest ago give way until they are used again. A message is lent while its memory is pinned, or can be, and copied else.
//
// Memory of a GPU (Config.GPUs) is registered in its whole pages of 2 MiB, as far as its allocation goes, and where it is: as a DMA-BUF,
// else by its address, which the module nvidia-peermem makes good, on each port by the first of these that is not refused. Where a port
// takes neither, or has no room though others gave way, or the GPU cannot flush what is written to it, as much pinned memory of the host's
// is registered instead: what our operations bring is copied from there, and a Token is an error, since a peer's operations would find what
// was there once. How it is and why is in what the Region prints, and in one line of the log for each GPU, port and way. An operation
// counts as performed once the GPU was told to let its kernels see what was written, where it needs that.
//
// # Promises
//
// Send borrows the memory until it is in slots, or read where it lies, which Sent tells: of slots at once while there are free ones. A message longer than Slots slots
// is counted only when the peer asks for it. View shows a message of one piece where it lies. The steady state allocates nothing,
// and a batch of pieces is one call into C for each QP.
//
// A failed completion is an error wrapping transport.ErrGone, the device's status and the peer with its GIDs and QPs; so is the end of
// the peer's process. That our own device failed, takes no requests, gives no completions or refuses what is our own in one, is an error that names it and
// blames our rank, of connections that it was the last way of. Close destroys the QPs before the memory goes: afterwards no peer can touch it. A connection that is closed while its
// device reads what was lent ends when that is over, within 20 ms, or is broken: afterwards the memory is the user's.
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
