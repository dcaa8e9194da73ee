package bootstrap

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// protocolVersion changes whenever a frame does. It is the first thing in a joinRequest, so that any release can read it.
const protocolVersion = 5

// The services that the handshakes are bound to.
const (
	rootService = "gccl bootstrap root v1"
	peerService = "gccl bootstrap peer v1"
)

const (
	tokenSize   = 16
	nonceSize   = 16
	maxJoinBody = 4096
)

// joinRequest is what a rank tells the root about itself.
type joinRequest struct {
	proto    uint16
	rank     uint32
	world    uint32
	token    [tokenSize]byte // equal in the retries of one Join
	listen   netip.AddrPort
	wildcard bool // it listens at all of its host's addresses
	version  string
	arch     string
	host     string
	pid      uint32
	// Config.Heartbeat and Config.SilentAfter, in milliseconds
	heartbeat, silentAfter uint32
}

func (j joinRequest) body() []byte {
	b := binary.BigEndian.AppendUint16(nil, j.proto)
	b = binary.BigEndian.AppendUint32(b, j.rank)
	b = binary.BigEndian.AppendUint32(b, j.world)
	b = append(b, j.token[:]...)
	b = appendAddr(b, j.listen)
	var w byte
	if j.wildcard {
		w = 1
	}
	b = append(b, w)
	b = appendText(b, j.version)
	b = appendText(b, j.arch)
	b = appendText(b, j.host)
	b = binary.BigEndian.AppendUint32(b, j.pid)
	b = binary.BigEndian.AppendUint32(b, j.heartbeat)
	return binary.BigEndian.AppendUint32(b, j.silentAfter)
}

// parseJoin reads only the version of a request of another protocol.
func parseJoin(body []byte) (joinRequest, error) {
	f := fields{b: body}
	j := joinRequest{proto: f.u16()}
	if j.proto != protocolVersion {
		if f.bad {
			return j, &protocolError{"a join request without version"}
		}
		j.rank = f.u32()
		return j, nil
	}
	j.rank, j.world = f.u32(), f.u32()
	copy(j.token[:], f.take(tokenSize))
	if b := f.take(addrSize); b != nil {
		j.listen = parseAddr(b, "")
	}
	j.wildcard = f.u8() == 1
	j.version, j.arch, j.host = f.text(), f.text(), f.text()
	j.pid, j.heartbeat, j.silentAfter = f.u32(), f.u32(), f.u32()
	if f.bad || len(f.b) > 0 {
		return j, &protocolError{"a join request of the wrong length"}
	}
	if j.heartbeat == 0 || j.silentAfter/4 < j.heartbeat {
		return j, &protocolError{fmt.Sprintf("a join request with a heartbeat of %d ms and silence after %d ms", j.heartbeat, j.silentAfter)}
	}
	return j, nil
}

// nobody is in place of a rank that is not known.
const nobody = -1

// progress is how far a world has come.
type progress struct {
	home          int // the rank in whose process the root is, or nobody
	world, joined int
	missing, left []int
	others        string // whom the root turned away
}

func (p progress) body() []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(p.home))
	b = binary.BigEndian.AppendUint32(b, uint32(p.world))
	b = binary.BigEndian.AppendUint32(b, uint32(p.joined))
	return appendText(appendRanks(appendRanks(b, p.missing), p.left), p.others)
}

func parseProgress(body []byte) (progress, error) {
	f := fields{b: body}
	p := progress{home: int(int32(f.u32())), world: int(f.u32()), joined: int(f.u32())}
	p.missing, p.left, p.others = f.ranks(), f.ranks(), f.text()
	if f.bad || len(f.b) > 0 {
		return p, &protocolError{"a progress frame of the wrong length"}
	}
	return p, nil
}

func (e *RefusedError) body() []byte {
	return appendText(appendRanks([]byte{byte(e.Code)}, e.Ranks), e.Text)
}

func parseRefusal(body []byte, root string) (*RefusedError, error) {
	f := fields{b: body}
	e := &RefusedError{Root: root, Code: Refusal(f.u8())}
	e.Ranks, e.Text = f.ranks(), f.text()
	if f.bad || len(f.b) > 0 {
		return nil, &protocolError{"a refusal of the wrong length"}
	}
	return e, nil
}

// table is a complete world: where each rank listens.
type table struct {
	home  int             // as in progress
	nonce [nonceSize]byte // fresh for each world, so that nobody of an earlier one gets in
	addrs []netip.AddrPort
}

// session is the id of the session of the world that meets by an id. An address of a world before this one may be in use again, by
// somebody of this one: the nonce tells them apart.
func (t table) session(id ID) uint64 { return binary.BigEndian.Uint64(t.nonce[:]) ^ id.Hash() }

func (t table) body() []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 4+nonceSize+len(t.addrs)*addrSize), uint32(t.home))
	b = append(b, t.nonce[:]...)
	for _, a := range t.addrs {
		b = appendAddr(b, a)
	}
	return b
}

func parseTable(body []byte, world int, zone string) (table, error) {
	f := fields{b: body}
	t := table{home: int(int32(f.u32()))}
	copy(t.nonce[:], f.take(nonceSize))
	if f.bad || len(f.b) != world*addrSize {
		return t, &protocolError{"an address table of the wrong length"}
	}
	for range world {
		t.addrs = append(t.addrs, parseAddr(f.take(addrSize), zone))
	}
	return t, nil
}
