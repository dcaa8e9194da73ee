// Package doctor says what is wrong with a host for collective communication, in words that an operator can act on.
//
// # What there is
//
// [Read] looks at what [topology.Discover] doesn't: limits, where ranks of one host meet, character devices, modules. [Examine] makes [Finding]s of both: for each
// thing that RDMA and GPU operators check by hand, what was seen, why it matters, and the command or setting that mends it.
// [Compare] does so for two hosts, and [Estimate] for a job of a number of ranks. A [Report] holds all of it, as JSON for
// programs and for comparing on another host.
//
// # What it promises and what it asks
//
// Read changes nothing, needs no rights and never fails; all else is pure, so a recorded host is diagnosed as the live one is. What
// could not be read is a finding "unknown" with the reason; it is never taken for good or bad. The ids of findings, and what they
// mean, stay what they are: programs may depend on them. [Checks] lists them.
//
// What files don't tell the caller gives: the network interfaces, how much room is where ranks meet, and the limits of RDMA devices.
//
//	root := os.DirFS("/")
//	host := topology.Discover(root, nvml.GPUs())
//	system := doctor.Read(root, host, doctor.ShmDir)
//	system.Interfaces = topology.Known(interfaces)
//	for _, f := range doctor.Examine(host, system, doctor.Wants{}) {
//		fmt.Println(f.Level, f.ID, f.Of, f.Seen, f.Fix)
//	}
package doctor
