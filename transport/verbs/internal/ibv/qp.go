//go:build linux && cgo

package ibv

// #include "shim.h"
import "C"

import "unsafe"

// QP is a queue pair.
type QP struct {
	qp     *C.struct_gv_qp
	number C.uintptr_t // qp, for gv_post_send and gv_post_recv
}

// NewQP makes a queue pair in the state Reset, and returns what capacities it got. The SRQ may be nil.
func (p *PD) NewQP(t QPType, send, recv *CQ, srq *SRQ, want Caps) (*QP, Caps, error) {
	caps := C.struct_gv_qp_cap{
		send_wr: C.uint32_t(want.SendWR), recv_wr: C.uint32_t(want.RecvWR), send_sge: C.uint32_t(want.SendSGE), recv_sge: C.uint32_t(want.RecvSGE), inline_data: C.uint32_t(want.Inline),
	}
	var s *C.struct_gv_srq
	if srq != nil {
		s = srq.srq
	}
	qp, err := C.gv_create_qp(p.pd, send.cq, recv.cq, s, C.uint32_t(t), &caps)
	if err := made("ibv_create_qp", qp != nil, err); err != nil {
		return nil, Caps{}, err
	}
	return &QP{qp, C.uintptr_t(uintptr(unsafe.Pointer(qp)))}, Caps{SendWR: uint32(caps.send_wr), RecvWR: uint32(caps.recv_wr), SendSGE: uint32(caps.send_sge), RecvSGE: uint32(caps.recv_sge), Inline: uint32(caps.inline_data)}, nil
}

// Number is the QP's, 24 bits.
func (q *QP) Number() uint32 { return uint32(q.qp.number) }

// Modify sets the fields that a.Mask names.
func (q *QP) Modify(a Attr) error {
	c := C.struct_gv_qp_attr{
		state: C.uint32_t(a.State), mtu: C.uint32_t(a.MTU), qkey: C.uint32_t(a.QKey), rq_psn: C.uint32_t(a.RQPSN), sq_psn: C.uint32_t(a.SQPSN), peer: C.uint32_t(a.DestQPN), access: C.uint32_t(a.Access),
		ah: a.AV.native(), pkey: C.uint16_t(a.PKeyIndex), max_rd_atomic: C.uint8_t(a.MaxRDAtomic), max_dest_rd_atomic: C.uint8_t(a.MaxDestRDAtomic), min_rnr_timer: C.uint8_t(a.MinRNRTimer),
		port: C.uint8_t(a.Port), timeout: C.uint8_t(a.Timeout), retry: C.uint8_t(a.Retry), rnr_retry: C.uint8_t(a.RNRRetry),
	}
	return failure("ibv_modify_qp to "+a.State.String(), C.gv_modify_qp(q.qp, &c, C.uint32_t(a.Mask)))
}

func (v AddressVector) native() C.struct_gv_ah_attr {
	a := C.struct_gv_ah_attr{lid: C.uint16_t(v.LID), sl: C.uint8_t(v.SL), port: C.uint8_t(v.Port)}
	if v.Global {
		a.global = 1
		a.route.gid = *(*C.struct_gv_gid)(unsafe.Pointer(&v.GID))
		a.route.flow, a.route.index, a.route.hops, a.route.traffic = C.uint32_t(v.FlowLabel), C.uint8_t(v.GIDIndex), C.uint8_t(v.HopLimit), C.uint8_t(v.TrafficClass)
	}
	return a
}

// Query asks the device for the path and the patience of a QP: MTU, Timeout, Retry, and of the address vector the GID, its index, traffic
// class and service level.
func (q *QP) Query() (Attr, error) {
	var a C.struct_gv_qp_attr
	if err := failure("ibv_query_qp", C.gv_query_qp(q.qp, &a, C.uint32_t(MaskState|MaskAV|MaskMTU|MaskTimeout|MaskRetry))); err != nil {
		return Attr{}, err
	}
	return Attr{
		State: State(a.state), MTU: MTU(a.mtu), Timeout: uint8(a.timeout), Retry: uint8(a.retry),
		AV: AddressVector{
			Global: a.ah.global != 0, GID: *(*GID)(unsafe.Pointer(&a.ah.route.gid)), GIDIndex: uint8(a.ah.route.index),
			HopLimit: uint8(a.ah.route.hops), TrafficClass: uint8(a.ah.route.traffic), LID: uint16(a.ah.lid), SL: uint8(a.ah.sl), Port: uint8(a.ah.port),
		},
	}, nil
}

// State asks the device for the QP's state.
func (q *QP) State() (State, error) {
	var a C.struct_gv_qp_attr
	err := failure("ibv_query_qp", C.gv_query_qp(q.qp, &a, C.uint32_t(MaskState)))
	return State(a.state), err
}

// Post queues sends and returns how many it took. An error is about the one behind those: syscall.ENOMEM, the queue is full.
func (q *QP) Post(batch []Send) (int, error) {
	if len(batch) == 0 {
		return 0, nil
	}
	var posted C.int
	first := (*C.gv_send)(unsafe.Pointer(unsafe.SliceData(batch))) // in a variable: what is made in the call is checked there, each time
	errno := C.gv_post_send(q.number, first, C.int(len(batch)), &posted)
	return int(posted), failure("ibv_post_send", errno)
}

// PostRecv queues receives and returns how many it took.
func (q *QP) PostRecv(batch []Recv) (int, error) {
	if len(batch) == 0 {
		return 0, nil
	}
	var posted C.int
	first := (*C.gv_recv)(unsafe.Pointer(unsafe.SliceData(batch)))
	errno := C.gv_post_recv(q.number, first, C.int(len(batch)), &posted)
	return int(posted), failure("ibv_post_recv", errno)
}

// Close destroys the QP. Afterwards the device touches no memory for its sake; its completions that were not polled are gone.
func (q *QP) Close() error { return failure("ibv_destroy_qp", C.gv_destroy_qp(q.qp)) }

// SRQ is a receive queue that QPs share.
type SRQ struct{ srq *C.struct_gv_srq }

// NewSRQ makes a shared receive queue of so many requests.
func (p *PD) NewSRQ(requests int) (*SRQ, error) {
	srq, err := C.gv_create_srq(p.pd, C.uint32_t(requests), 1)
	if err := made("ibv_create_srq", srq != nil, err); err != nil {
		return nil, err
	}
	return &SRQ{srq}, nil
}

// Post queues receives and returns how many it took.
func (s *SRQ) Post(batch []Recv) (int, error) {
	if len(batch) == 0 {
		return 0, nil
	}
	var posted C.int
	errno := C.gv_post_srq(s.srq, (*C.gv_recv)(unsafe.Pointer(&batch[0])), C.int(len(batch)), &posted)
	return int(posted), failure("ibv_post_srq_recv", errno)
}

// Close frees the queue, which no QP may use any more.
func (s *SRQ) Close() error { return failure("ibv_destroy_srq", C.gv_destroy_srq(s.srq)) }

// AddressHandle is the way to a peer for datagrams.
type AddressHandle struct{ ah unsafe.Pointer }

// NewAddressHandle makes one.
func (p *PD) NewAddressHandle(v AddressVector) (*AddressHandle, error) {
	a := v.native()
	ah, err := C.gv_create_ah(p.pd, &a)
	if err := made("ibv_create_ah", ah != nil, err); err != nil {
		return nil, err
	}
	return &AddressHandle{ah}, nil
}

// Number is what Send.AddOrCompare takes.
func (h *AddressHandle) Number() uint64 { return uint64(uintptr(h.ah)) }

// Close frees the handle.
func (h *AddressHandle) Close() error { return failure("ibv_destroy_ah", C.gv_destroy_ah(h.ah)) }
