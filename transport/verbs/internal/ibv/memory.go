//go:build linux && cgo

package ibv

// #include "shim.h"
import "C"

import "unsafe"

// PD is a protection domain: what belongs together.
type PD struct{ pd unsafe.Pointer }

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	pd, err := C.gv_alloc_pd(d.context)
	if err := made("ibv_alloc_pd", pd != nil, err); err != nil {
		return nil, err
	}
	return &PD{pd}, nil
}

// Close frees the domain, which must be empty.
func (p *PD) Close() error { return failure("ibv_dealloc_pd", C.gv_dealloc_pd(p.pd)) }

// MR is registered memory.
type MR struct{ mr *C.struct_gv_mr }

// Register pins memory and gives it keys. The memory must stay mapped until Close.
func (p *PD) Register(addr uintptr, bytes int, access Access) (*MR, error) {
	return p.RegisterAt(addr, bytes, uint64(addr), access)
}

// RegisterAt is Register with the address that peers and requests use for the memory's begin.
func (p *PD) RegisterAt(addr uintptr, bytes int, iova uint64, access Access) (*MR, error) {
	var errno C.int
	mr := C.gv_reg(p.pd, C.uint64_t(addr), C.uint64_t(bytes), C.uint64_t(iova), C.uint32_t(access), &errno)
	if mr == nil {
		return nil, failure("ibv_reg_mr", errno)
	}
	return &MR{mr}, nil
}

// RegisterDMABuf registers bytes at offset of a DMA-BUF.
func (p *PD) RegisterDMABuf(fd int, offset uint64, bytes int, iova uint64, access Access) (*MR, error) {
	var errno C.int
	mr := C.gv_reg_dmabuf(p.pd, C.uint64_t(offset), C.uint64_t(bytes), C.uint64_t(iova), C.int(fd), C.uint32_t(access), &errno)
	if mr == nil {
		return nil, failure("ibv_reg_dmabuf_mr", errno)
	}
	return &MR{mr}, nil
}

// LKey is for our requests.
func (m *MR) LKey() uint32 { return uint32(m.mr.lkey) }

// RKey is for the peer's.
func (m *MR) RKey() uint32 { return uint32(m.mr.rkey) }

// Close ends the registration: afterwards no device reads or writes the memory.
func (m *MR) Close() error { return failure("ibv_dereg_mr", C.gv_dereg(m.mr)) }
