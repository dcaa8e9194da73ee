// Package shm is the transport between ranks of one host: messages through
// memory that both map. It is Linux on amd64 and arm64; elsewhere Open returns
// an error wrapping errors.ErrUnsupported.
//
// # What lies where
//
// Every endpoint owns one segment, sparse anonymous memory (memfd_create), and
// maps the segments of the peers that it reaches. It is in no file system: how
// large /dev/shm is, 64 MiB in a container, or that it is full does not matter.
// In /dev/shm (Config.Dir) there is, until Unlink, a socket; whoever connects to
// it is handed the segment and a pidfd. So ranks share memory that share the
// directory, in whatever containers and namespaces they are. All that a rank
// sends lies in its own segment:
//
//	header     who owns the segment, what must be equal on all ranks, the sleep word, the latest communicators that were left
//	directory  (communicator, channel, from, to) → where that connection's rings are
//	rings      per stream the peer's count of lines read, a landing: where in the arena a message from the peer is wanted, and 8 lines
//	staging    per stream some slots, used in turn, for messages that don't fit a line, filled past
//	           the caches where the peer's processor is found to be far
//	arena      what Endpoint.Alloc gave out; messages from there are lent, not copied, and messages to there may be made in their place
//
// All of it is on the NUMA node of the processor on which its rank reserved it, which is the rank's for one that is tied to a node (gccl run
// --pin, taskset): what a rank writes is near it, and peers read it from there.
//
// A line has 64 bytes, and in the first stream of a conn, where there is room, 4224. It is
//
//	 0  flag   low 32 bits of the message's number << 32 | tag; stored last
//	 8  length in the low 30 bits, bit 30 set when the payload is elsewhere; in the high
//	    32 bits CRC-32C, if Options.Checksum, else in the high 16 how many messages the sender has read
//	16  the payload of up to 48 bytes; or its offset in the segment, where it fits no line
//	64  the payload of more
//
// so that one load tells the reader that the message is there, that it is the
// next one, and that both ranks mean the same call. A line's next use differs by
// 8 in number, hence nothing old is taken for new. The reader looks the
// connection up in the peer's directory whenever the header's generation has
// changed: connecting asks nothing of the peer's user.
//
// # Promises
//
//   - No SIGBUS: whatever is used is reserved with fallocate first. When the system
//     refuses memory, or the segment has no address space left, that is a *SpaceError
//     (errors.Is transport.ErrSpace) with what was needed, what is free and how to
//     get more, at the sender and, from its first look on, at the receiver. (Most
//     containers' memory limits do not refuse: beyond them the kernel kills a
//     process of the container, as for any other memory.)
//   - What a peer wrote is checked before it is used: an offset, length or count
//     that is out of range is an error. The size of a segment is sealed. (Sockets
//     are open to their user only; Options.Secret is not used.)
//   - Two ranks use each other's memory only after one was handed the other's segment
//     and found the nonce there that came with the address. Names, boot ids and
//     device numbers only save a useless try; they are compared in full.
//   - Peers write to memory from Alloc alone, and there to landings alone. Closing a conn withdraws its landings: one that the peer has begun to write
//     to and not sent is left to it, with its pages of the segment, and gets pages of our own instead, whose content is undefined and which
//     nothing shares any more. So no byte of ours changes afterwards, however late a frozen peer goes on.
//   - A peer that dies is noticed by Progress through its pidfd, or on kernels before
//     5.3 through the lock on its segment.
//   - Dead processes leave no memory: it goes with the last that has it mapped, which
//     none has when nothing is in it that somebody could still read. Their
//     sockets are removed by the next Open. One counts as dead when its pid is gone
//     or was started at another time; in another pid namespace (a restarted
//     container), when nobody listens. Sockets of other users are left alone.
//
// # Duties
//
// Besides those in package transport: call Endpoint.Unlink once all peers have
// reached this endpoint, so that even a killed job leaves no socket.
//
//	ep, err := shm.Open(shm.Config{}, transport.Options{Streams: 4, MaxMessage: 1 << 20})
//	…                                  // exchange ep.Address() over the bootstrap
//	if err := ep.Reach(ctx, peerAddress); err != nil {
//		log.Print(err)                 // "no shared /dev/shm (nonce not found)": use TCP
//	}
//	conn, err := ep.Conn(transport.Key{Comm: id, Self: 0, Peer: 1}, peerAddress)
//	ok, err := conn.Stream(0).Send(tag, transport.Buf{Ptr: p, N: 8})
package shm
