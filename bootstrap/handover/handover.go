// Package handover hands an open file from one process to others of the same host, which is how memory of GPUs is shared.
//
// Who has the file makes an [Offer], which owns it from then on, and tells the others its [Ticket], by a way that they trust, as a bootstrap session is. Who shows the
// ticket, and runs as the same user or root, gets the file. The offer has a name that nothing has to remove; processes find it that share a network namespace, as those of one
// container do. Elsewhere, and on systems other than Linux, there is none: that is an error that wraps errors.ErrUnsupported or says why it
// cannot be reached.
//
//	offer, err := handover.New(file) // in one process
//	if err != nil {
//		return err
//	}
//	defer offer.Close()
//	tell(offer.Ticket())
//
//	file, err := handover.Take(ctx, ticket) // in another
package handover

// A Ticket is what gets the file of an Offer: its name, and a secret.
type Ticket struct {
	Name   string
	Secret [16]byte
}
