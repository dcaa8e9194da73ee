// Package topology describes the machine a rank runs on and chooses among its parts.
//
// It answers, so far, which network interface ranks should meet on: [Interfaces] reads the host's interfaces, [ParseFilter]
// reads the user's wish (GCCL_SOCKET_IFNAME and its like), and [Choose] decides. Only Interfaces looks at the machine; the
// choice is a pure function of its arguments, so a recorded host gives the same answer as the live one, and [Choice] says
// why every other interface was dropped.
//
// [EncodeAddr] and [FormatAddr] are how an address travels to another host: without the scope of a link-local address, which
// means something only on the host that wrote it.
//
//	ifaces, err := topology.Interfaces()
//	…
//	filter, err := topology.ParseFilter(os.Getenv("GCCL_SOCKET_IFNAME"))
//	…
//	choice, err := topology.Choose(ifaces, topology.Query{Filter: filter, Toward: root.Addr()})
//	…
//	listen(choice.Addr)
package topology
