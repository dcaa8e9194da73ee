package cuda

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda/internal/cu"
)

// Connect lets kernels on each of the devices use the memory of all others: what CUDA's runtime allocates there, and what Alloc has
// returned and will return. It proves every path both ways: a random number that one device has in its memory is read by a
// kernel on the other. Twice is no error.
func Connect(devices ...*Device) error {
	for _, from := range devices {
		for _, to := range devices {
			if from == to {
				continue
			}
			if from.info.Ordinal != to.info.Ordinal {
				if err := from.reach(to); err != nil {
					return fmt.Errorf("cuda: %v cannot use memory of %v: %w", from, to, err)
				}
			}
			if err := from.link(to); err != nil {
				return fmt.Errorf("cuda: the way from %v to %v: %w", from, to, err)
			}
		}
	}
	return nil
}

// Reaches reports whether kernels on d use memory of peer: it is the same GPU, or the two have been connected.
func (d *Device) Reaches(peer *Device) bool {
	if d.info.Ordinal == peer.info.Ordinal {
		return true
	}
	peer.mu.Lock()
	defer peer.mu.Unlock()
	return slices.Contains(peer.peers, d.info.Ordinal)
}

func (d *Device) reach(peer *Device) error {
	can, err := cu.CanAccessPeer(d.info.Ordinal, peer.info.Ordinal)
	if err != nil {
		return err
	}
	if !can {
		return cu.NotSupported
	}
	if err := cu.EnablePeer(d.ctx, peer.ctx); err != nil {
		return err
	}
	peer.mu.Lock()
	if !slices.Contains(peer.peers, d.info.Ordinal) {
		peer.peers = append(peer.peers, d.info.Ordinal)
		for _, b := range peer.blocks {
			if err = cu.BlockAccess(peer.ctx, b, d.info.Ordinal); err != nil {
				break
			}
		}
	}
	peer.mu.Unlock()
	if err != nil {
		return err
	}
	return d.prove(peer)
}

func (d *Device) prove(peer *Device) error {
	var nonce [16]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return err
	}
	there, err := peer.Alloc(int64(len(nonce)))
	if err != nil {
		return err
	}
	here, err := d.Alloc(int64(len(nonce)))
	if err != nil {
		return errors.Join(err, peer.Free(there))
	}
	err = peer.CopyNow(there.Ptr, unsafe.Pointer(&nonce), int64(len(nonce)))
	var s Stream
	if err == nil {
		s, err = d.copying()
	}
	if err == nil {
		err = d.read(s, there.Ptr, here.Ptr, nonce[:])
	}
	if err != nil {
		return err // what was queued may be under way still: Close frees the memory
	}
	return errors.Join(peer.Free(there), d.Free(here))
}

// read has a kernel of ours copy from a path's other end what is known to be there.
func (d *Device) read(s Stream, there, here unsafe.Pointer, want []byte) error {
	if err := d.Copy(s, []unsafe.Pointer{here}, there, int64(len(want))); err != nil {
		return err
	}
	seen := make([]byte, len(want))
	if err := cu.CopyAsync(d.ctx, unsafe.Pointer(&seen[0]), here, int64(len(seen)), s); err != nil {
		return err
	}
	if err := cu.StreamSynchronize(d.ctx, s); err != nil {
		return err
	}
	if !bytes.Equal(seen, want) {
		return fmt.Errorf("%x is there and a kernel reads %x: the path corrupts data, often for an IOMMU or ACS setting: %w", want, seen, kernels.ErrInvalid)
	}
	return nil
}

// LinkTo makes d ready for traffic with a GPU of this host that another process has open, by kernels that store in memory which the two
// processes Import of each other. Where there is no link as Linked says, or this process does not see that GPU, it is an error that
// wraps errors.ErrUnsupported.
func (d *Device) LinkTo(uuid [16]byte) error {
	n, err := Count()
	if err != nil {
		return err
	}
	for peer := range n {
		if id, err := cu.DeviceUUID(peer); err != nil || id != uuid {
			continue
		}
		if peer != d.info.Ordinal {
			if can, err := cu.CanAccessPeer(d.info.Ordinal, peer); err != nil || !can {
				return errors.Join(fmt.Errorf("cuda: %v cannot use memory of device %d: %w", d, peer, errors.ErrUnsupported), err)
			}
			if atomics, err := cu.PeerAttribute(d.info.Ordinal, peer, cu.PeerNativeAtomics); err != nil || atomics == 0 {
				return errors.Join(fmt.Errorf("cuda: no link like NVLink between %v and device %d: %w", d, peer, errors.ErrUnsupported), err)
			}
		}
		return d.loadWire()
	}
	return fmt.Errorf("cuda: GPU %x is none of the %d that this process sees: %w", uuid, n, errors.ErrUnsupported)
}

// Prove proves the path to memory that was Imported: a kernel of d finds there what the other process has stored. Scratch is memory of d's own.
func (d *Device) Prove(there, scratch unsafe.Pointer, stored []byte) error {
	s, err := d.copying()
	if err == nil {
		err = d.read(s, there, scratch, stored)
	}
	if err != nil {
		return fmt.Errorf("cuda: memory of another process, mapped for %v: %w", d, err)
	}
	return nil
}
