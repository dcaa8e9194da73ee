package topology

// Demand is what a rank asks of an RDMA device: how many peers it connects to, and what each connection takes.
type Demand struct {
	Peers      int   // other ranks connected to: world-1 with all-to-all
	QPsPerPeer int   // queue pairs of each connection
	Entries    int   // completions that a queue pair can have outstanding, sends and receives together
	Bytes      int64 // registered for each connection
}

// RDMALimits are a device's, as libibverbs gives them.
type RDMALimits struct {
	MaxQP  Fact[int] `json:"max_qp"`
	MaxCQE Fact[int] `json:"max_cqe"` // of one completion queue
	MaxMR  Fact[int] `json:"max_mr"`
}

// Totals are a rank's sums.
type Totals struct {
	QPs    int64    `json:"qps"`
	CQEs   int64    `json:"cqes"`
	Bytes  int64    `json:"bytes"`  // pinned
	Exceed []Reason `json:"exceed"` // what is more than the device can
}

// Totals multiplies, and compares with a device that several ranks of a host share.
func (d Demand) Totals(l RDMALimits, ranksOnDevice int) Totals {
	t := Totals{QPs: int64(d.Peers) * int64(d.QPsPerPeer)}
	t.CQEs, t.Bytes = t.QPs*int64(d.Entries), int64(d.Peers)*d.Bytes
	if most, ok := l.MaxQP.Get(); ok && t.QPs*int64(ranksOnDevice) > int64(most) {
		t.Exceed = append(t.Exceed, because(
			"%d queue pairs (%d peers × %d, %d ranks on the device), and the device has %d: fewer per peer, or connect only to peers that are sent to",
			t.QPs*int64(ranksOnDevice), d.Peers, d.QPsPerPeer, ranksOnDevice, most))
	}
	if most, ok := l.MaxCQE.Get(); ok && t.CQEs > int64(most) {
		t.Exceed = append(t.Exceed, because(
			"%d completion entries (%d queue pairs × %d), and a completion queue of the device holds %d: use several, or shorter queues",
			t.CQEs, t.QPs, d.Entries, most))
	}
	if most, ok := l.MaxMR.Get(); ok && int64(d.Peers)*int64(ranksOnDevice) > int64(most) {
		t.Exceed = append(t.Exceed, because("%d memory regions, and the device has %d", int64(d.Peers)*int64(ranksOnDevice), most))
	}
	return t
}
