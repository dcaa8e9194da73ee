//go:build linux

// Package e2e tests whole jobs: ranks as processes of this machine, through the public API.
package e2e

import (
	"testing"

	"github.com/gccl-project/gccl/tests/cluster"
)

func TestMain(m *testing.M) {
	cluster.Main(m, cluster.Jobs{
		"matrix": matrix, "killed": killed, "differ": differ, "late": late, "left": left,
		"smallShm": smallShm, "refused": refused, "endless": endless, "brief": brief, "elsewhere": elsewhere, "rough": rough, "weigh": weigh, "random": random,
		"confined": confined, "crowded": crowded, "bare": bare, "collecting": collecting, "railed": railed, "hosted": hosted, "deaf": deaf, "placed": placed,
	})
}
