// Package gpu runs collectives on the memory of GPUs: it lowers all ranks' plans to programs of package cuda's interpreter.
//
// Ranks of one process find each other in a [Process]. On one GPU they meet on the host, and one launch does the work of all of
// them ([Communicator]). What such a launch
// reads was written by work that the ranks' streams are joined behind, and its end is what they wait for, so it needs no flags:
// nothing on the GPU waits for a launch still to come, and no deadlock is possible, whatever else runs there.
//
// # Several GPUs
//
// GPUs that are linked ([cuda.Device.Linked]: NVLink) get a launch each, whose kernels wait for each other on the GPUs: nobody waits for an
// event, and each GPU's streams may be captured in a graph of their own. [Communicator] picks the way by kind and size: LL128 lines for
// short messages; pushes through FIFOs for long sums, for links carry stores faster than loads when both directions are busy; direct
// stores between two barriers for long messages that nobody folds; and the copy engines for the longest. All launches of a call are
// queued at once, in one order on all GPUs of the process, and are cooperative: they run as a whole or fail. Launches that would fill a
// GPU wait for those of other communicators, but not in captures: graphs of several communicators that are replayed at once have
// to fit beside each other. A call is captured on all GPUs or on none, and so is replayed; what waits in vain is ended by
// [Communicator.Abort].
//
// Where several ranks are on a GPU their operands are folded before they travel: the tree of a sum is then the fold, in the order of
// GPUs, of each GPU's fold in the order of ranks. All ranks get the same bits. A call that names an algorithm is done as that one says.
//
// # Several processes
//
// Ranks that are processes of one host, with a GPU each, have a [Part] each: it exports its stage, and maps those of the others. Only LL128 lines need nothing else
// of other ranks, so all goes by lines, long messages in rounds, and every rank queues its own launch, as its calls come: it meets nobody on the host, and captures what it
// likes. The lines name the call that they belong to: what differs between ranks never arrives, instead of as wrong data, and hosts find out who
// differs. Launches are small enough for those of two communicators to run at once on an H200, whatever their order. Who is some hundred calls ahead of its GPU waits
// for it. Messages have a kernel of their own ([Part.Post]): each direction of a pair is a FIFO of lines that waits for no other, so ranks may
// group them as they like. [Part.Abort] ends what waits in vain; what a rank has got by then is right, whatever others' kernels were in when they were ended.
//
// # Events
//
// Elsewhere, and for what no such way fits (long messages that are not aligned to 16 bytes, long exchanges in place), every GPU gets a
// launch for the moves of its ranks that waits for nobody, and their streams meet by events, at some microseconds a phase.
//
// # Lowering
//
// [Lower] takes the plans of all ranks. Peers' memory is ordinary memory here, so a message is no more than a name for where the
// sender keeps it: a fold reads it there, and what is sent on is written where the receivers want it. Receives, folds and
// sends of one chunk become one [Move] of several sources and several destinations, and a one-shot all-reduce of eight ranks
// a single one that reads eight buffers and writes eight. Moves that depend on each other go to phases, one after the other.
// Sums keep the plan's order of operands, and so have the bits that the engine gives on hosts.
//
//	c, err := gpu.New(devices) // of each rank: the same one, or several
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	err = c.Group(calls) // one call a rank; queued on the ranks' streams when it returns
//
// Calls that are made between Communicator.Hold and Release are queued together: those that use one kernel share its launch, and the
// streams meet once for all. Calls that touch memory which another one writes are done in the order in which they were made. Between linked
// GPUs messages that follow each other share a launch, and a collective has its own, unless the streams meet by events.
//
// A rank multiplies its input by a Factor of its own before a sum, of a value that the host knows, or that lies in GPU memory and is read
// when the work is done. Between GPUs such a call, and a sum of a type of 8-bit floating-point numbers, is done between events.
//
// Kernels are launched by way of graphs of one kernel, which takes the host a third of the time when a call is made again ([cuda.Replays]); they are made
// with the communicator, for to make one may wait for the GPU.
//
// Nothing here waits for a GPU, so a rank that is late is late on the host, and Missing names it; or its stream does not come to what was
// queued, and Behind names it. Work that is queued cannot be taken back, but by Abort between linked GPUs: it is done once that stream goes
// on. The driver queues about a thousand things; who is ahead by more waits in a call until the GPU has come on.
//
// A rank whose stream is captured in a graph takes part if the streams of all ranks on its GPU are captured in the same one, and where
// GPUs meet by events those of all ranks; captured apart, the driver refuses the call. A replay does what was captured, on the memory that
// was given.
//
// All memory of a call must be reachable from all its devices and stay until the call's stream has come so far.
package gpu
