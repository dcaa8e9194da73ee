package verbs

import (
	"testing"

	"github.com/gccl-project/gccl/transport/verbs/internal/ibv"
	"github.com/stretchr/testify/require"
)

func goodPath() path {
	return path{
		port: 1, access: ibv.RemoteWrite, av: ibv.AddressVector{Global: true, GID: ibv.GID{1}}, mtu: 5, peerQPN: 17, peerPSN: most24, psn: 3,
		timeout: 14, retry: 6, reads: 1, qkey: 7,
	}
}

// TestTransitions: every pair of states is allowed or refused as the InfiniBand specification has it (table 91 for what each needs).
func TestTransitions(t *testing.T) {
	all := []ibv.State{ibv.Reset, ibv.Init, ibv.RTR, ibv.RTS, ibv.SQD, ibv.SQE, ibv.Err}
	const s = ibv.MaskState
	rc := map[transition]ibv.Mask{
		{ibv.Reset, ibv.Init}: s | ibv.MaskPKey | ibv.MaskPort | ibv.MaskAccess,
		{ibv.Init, ibv.RTR}:   s | ibv.MaskAV | ibv.MaskMTU | ibv.MaskDestQPN | ibv.MaskRQPSN | ibv.MaskMaxDestRDAtomic | ibv.MaskMinRNRTimer,
		{ibv.RTR, ibv.RTS}:    s | ibv.MaskSQPSN | ibv.MaskTimeout | ibv.MaskRetry | ibv.MaskRNRRetry | ibv.MaskMaxRDAtomic,
	}
	uc := map[transition]ibv.Mask{
		{ibv.Reset, ibv.Init}: rc[transition{ibv.Reset, ibv.Init}],
		{ibv.Init, ibv.RTR}:   s | ibv.MaskAV | ibv.MaskMTU | ibv.MaskDestQPN | ibv.MaskRQPSN,
		{ibv.RTR, ibv.RTS}:    s | ibv.MaskSQPSN,
	}
	ud := map[transition]ibv.Mask{
		{ibv.Reset, ibv.Init}: s | ibv.MaskPKey | ibv.MaskPort | ibv.MaskQKey,
		{ibv.Init, ibv.RTR}:   s,
		{ibv.RTR, ibv.RTS}:    s | ibv.MaskSQPSN,
	}
	for kind, want := range map[ibv.QPType]map[transition]ibv.Mask{ibv.RC: rc, ibv.UC: uc, ibv.UD: ud} {
		for _, from := range all {
			for _, to := range all {
				step := transition{from, to}
				a, err := step.attributes(kind, goodPath())
				mask, legal := want[step]
				if to == ibv.Err || to == ibv.Reset {
					mask, legal = s, true
				}
				if !legal {
					require.ErrorContains(t, err, from.String()+" to "+to.String())
					continue
				}
				require.NoError(t, err)
				require.Equal(t, mask, a.Mask, "%v %v to %v", kind, from, to)
				require.Equal(t, to, a.State)
			}
		}
	}
	_, err := transition{ibv.Reset, ibv.Init}.attributes(99, goodPath())
	require.Error(t, err)
}

func TestTransitionsRefuseBadValues(t *testing.T) {
	for name, c := range map[string]struct {
		step   transition
		change func(*path)
	}{
		"port":      {transition{ibv.Reset, ibv.Init}, func(p *path) { p.port = 0 }},
		"path MTU":  {transition{ibv.Init, ibv.RTR}, func(p *path) { p.mtu = 6 }},
		"QP number": {transition{ibv.Init, ibv.RTR}, func(p *path) { p.peerQPN = 1 << 24 }},
		"first":     {transition{ibv.Init, ibv.RTR}, func(p *path) { p.peerPSN = 1 << 24 }},
		"GID":       {transition{ibv.Init, ibv.RTR}, func(p *path) { p.av.GID = ibv.GID{} }},
		"LID":       {transition{ibv.Init, ibv.RTR}, func(p *path) { p.av.Global = false }},
		"retries":   {transition{ibv.RTR, ibv.RTS}, func(p *path) { p.retry = 8 }},
		"timeout":   {transition{ibv.RTR, ibv.RTS}, func(p *path) { p.timeout = 32 }},
		"packet":    {transition{ibv.RTR, ibv.RTS}, func(p *path) { p.psn = 1 << 24 }},
	} {
		p := goodPath()
		c.change(&p)
		_, err := c.step.attributes(ibv.RC, p)
		require.ErrorContains(t, err, name)
	}
}
