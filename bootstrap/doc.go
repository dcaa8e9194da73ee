// Package bootstrap brings the ranks of a job together and lets them exchange small messages over TCP: addresses to connect
// faster transports, agreements on plans, news of failures.
//
// # How ranks meet
//
// A [Root] listens at an address that is known beforehand, inside an [ID] or through a launcher's variables ([Environment]).
// Each rank opens its own listener, proves to the root that it knows the id's secret (package auth), and says which rank it is
// and where it listens. When all have come, the root sends everybody the table of addresses. From then on there is no centre:
// the ranks form a ring, over which [Session.AllGather] and [Session.Barrier] go in both directions at once, and connect to
// each other when [Session.Send] first needs it. [Session.Sub] makes the session of some ranks without any root.
//
// # What it promises
//
// Nothing waits for ever: joining ends with its context or after [DefaultTimeout], and the error names the ranks that are
// missing. Two processes that claim one rank, different world sizes or releases, and an id used twice are told to every rank
// at once. A rank that is not up yet is waited for. Strangers at any of the ports cost a bounded amount and disturb nobody.
//
// Until all ranks have met, each keeps its connection to the root, which asks for signs of life and passes news on. So one that dies,
// is frozen or cut off after it has joined the root is named to all others as fast as later, when the ring is there: the dead in about a
// second, the silent after [Config.SilentAfter]. One that gives up by its timeout or context says so, and may come back as long as the world
// is not complete. The end of the root itself is that of the rank in whose process it is, where that is known.
//
// # When ranks fail
//
// A rank whose connection ends without goodbye is [Dead], one that is silent for [Config.SilentAfter] (frozen, or cut off) too, and one
// that calls [Session.Close] is [Closed], as is, most likely, one at whose door nobody is any more, if those next to it closed: for all ranks, as fast as news travels over their links, and in the order that
// [Session.Fates] gives. Collectives that need such a rank fail with a [*PeerError], and messages between the others go on. Each rank
// watches over its neighbours in the ring and the rank half way around it; where ranks are gone, the next living ones connect, so
// news reaches everybody whom a chain of living ranks reaches. Time in which this process itself could not run does not count as
// others' silence. A rank that was given up and comes back is told so: its session is aborted, and it never gets in again.
//
// A cut of the network makes two sides of which each takes the other for dead. When it heals, one of them is told that it was given
// up: ranks that were alone, else the smaller side, or of two that are as large the one without the lowest rank.
//
// Abort ends everything everywhere. Word of it, of deaths and of closing goes over the links that there are; who comes too late for that, and
// asks a process that has closed the session and still has others, hears it then. On an aborted session the survivors may still [Session.Ask] each other what happened,
// [Session.Agree] on who is left, and make a session of those ([Session.Sub]; [Session.Regroup] does it all).
//
// After the handshake, bytes are neither encrypted nor signed.
//
// # What the caller must do
//
// Give every call a context with a deadline. Call collectives in the same order on all ranks. Close every session: a process
// that ends without it is dead to the others.
//
//	root, err := bootstrap.ListenRoot(ctx, bootstrap.RootConfig{Address: "192.0.2.1:0"}) // in one process
//	…                                                                                    // pass root.ID() to all
//	s, err := bootstrap.Join(ctx, bootstrap.Config{Rank: rank, World: world, ID: id})
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	hosts, err := s.AllGather(ctx, []byte(hostname))
//
// The package reads clocks only for deadlines and has no state outside its values, so with a [Network] in memory (package
// bootstraptest) whole jobs run under testing/synctest in virtual time.
package bootstrap
