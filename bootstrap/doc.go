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
// A rank whose connection breaks is [Dead], and one that calls [Session.Close] is [Closed], for all ranks, as fast as news
// travels along the ring; collectives that need it fail with a [*PeerError], and messages between the others go on. A process
// that is frozen while its connections stay up is not noticed here, only by the contexts of those who wait for it. Abort ends
// everything everywhere.
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
