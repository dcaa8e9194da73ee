package topology

import (
	"fmt"
	"strings"
)

// Fabric is a GPU's place in an NVLink fabric, as NVML gives it. The zero Fabric is of a GPU without one.
type Fabric struct {
	State   string `json:"state,omitempty"`   // completed, in progress, not started, not supported
	Status  string `json:"status,omitempty"`  // "" or success, else NVML's error
	Cluster string `json:"cluster,omitempty"` // UUID
	Clique  int    `json:"clique,omitempty"`
}

// Ready returns "" if the GPU can use its NVSwitches, else what is wrong and what to do.
func (f Fabric) Ready() string {
	switch strings.ToLower(f.State) {
	case "", "not supported":
		return ""
	case "completed":
		if s := strings.ToLower(f.Status); s != "" && s != "success" {
			return fmt.Sprintf("NVSwitch fabric: registration ended with %q: look at the log of nvidia-fabricmanager, whose version must be the driver's", f.Status)
		}
		return ""
	}
	return fmt.Sprintf("NVSwitch fabric not ready (%s): start nvidia-fabricmanager, whose version must be the driver's; CUDA fails with 802 until then", f.State)
}

// Joins reports whether NVLink leads from one host's GPU to another's. A cluster whose UUID is zero is one host's.
func (f Fabric) Joins(g Fabric) bool {
	ready := func(f Fabric) bool { return strings.EqualFold(f.State, "completed") && f.Ready() == "" }
	return ready(f) && ready(g) && strings.Trim(f.Cluster, "0-") != "" && strings.EqualFold(f.Cluster, g.Cluster) && f.Clique == g.Clique
}
