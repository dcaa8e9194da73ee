package topology

import (
	"encoding/binary"
	"fmt"
)

// ACSState says whether the PCIe port above a device sends traffic between devices up to the root complex (Access Control
// Services), where it is slow, and wrong or lost if the IOMMU doesn't expect it. "" is unknown.
type ACSState string

// States of a port.
const (
	ACSOff      ACSState = "off"      // peer traffic goes straight
	ACSRedirect ACSState = "redirect" // requests or completions are redirected, or egress is controlled
)

// IOMMU says what the host's IOMMU does to the addresses of devices. "" is unknown.
type IOMMU string

// What an IOMMU does.
const (
	IOMMUOff         IOMMU = "off"
	IOMMUPassthrough IOMMU = "passthrough" // addresses are physical
	IOMMUTranslate   IOMMU = "translate"
)

// ACS is a PCIe port's Access Control Services.
type ACS struct {
	Capable bool   `json:"capable"` // the port has the capability; without it nothing is redirected
	Control uint16 `json:"control"` // its control register
}

const acsRedirectRequest, acsRedirectCompletion, acsEgress = 1 << 2, 1 << 3, 1 << 5

// State says what the control register does to traffic between devices.
func (a ACS) State() ACSState {
	if a.Capable && a.Control&(acsRedirectRequest|acsRedirectCompletion|acsEgress) != 0 {
		return ACSRedirect
	}
	return ACSOff
}

const (
	conventionalSpace = 64  // what others than root may read
	extendedBegin     = 256 // where PCIe's capabilities begin
	acsCapability     = 0x000d
	pcieCapability    = 0x10
)

// ParseACS reads a port's Access Control Services from its configuration space, as in /sys/bus/pci/devices/*/config. Without
// root the kernel gives its first 64 bytes only: then the error says so, and nothing is known.
func ParseACS(config []byte) (ACS, error) {
	if len(config) <= conventionalSpace {
		return ACS{}, fmt.Errorf("need root: only %d bytes of the configuration space can be read", len(config))
	}
	if len(config) <= extendedBegin {
		if !isPCIe(config) {
			return ACS{}, nil
		}
		return ACS{}, fmt.Errorf("only %d bytes of the configuration space can be read, and the extended capabilities begin at %d",
			len(config), extendedBegin)
	}
	// A list in 12 bits of address has fewer entries than this, unless it is a loop.
	for at, steps := extendedBegin, 0; at >= extendedBegin && at+8 <= len(config) && steps < 1024; steps++ {
		header := binary.LittleEndian.Uint32(config[at:])
		if header == 0 || header == ^uint32(0) {
			break
		}
		if header&0xffff == acsCapability {
			return ACS{true, binary.LittleEndian.Uint16(config[at+6:])}, nil
		}
		at = int(header>>20) &^ 3
	}
	return ACS{}, nil
}

// isPCIe looks for the PCI Express capability in the conventional list.
func isPCIe(config []byte) bool {
	if len(config) < conventionalSpace {
		return false
	}
	for at, steps := int(config[0x34])&^3, 0; at >= conventionalSpace && at+1 < len(config) && steps < 64; steps++ {
		if config[at] == pcieCapability {
			return true
		}
		at = int(config[at+1]) &^ 3
	}
	return false
}
