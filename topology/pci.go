package topology

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// PCIFacts is one device on PCI.
type PCIFacts struct {
	Bus             string         `json:"bus"`
	Class           Fact[string]   `json:"class"`
	Vendor          Fact[string]   `json:"vendor"`
	Device          Fact[string]   `json:"device"`
	SubsystemVendor Fact[string]   `json:"subsystem_vendor"`
	SubsystemDevice Fact[string]   `json:"subsystem_device"`
	GTs             Fact[float64]  `json:"gts"` // now, in GT/s; less than the most when idle
	MaxGTs          Fact[float64]  `json:"max_gts"`
	Width           Fact[int]      `json:"width"` // now, in lanes
	MaxWidth        Fact[int]      `json:"max_width"`
	NUMA            Fact[int]      `json:"numa"`
	Bridge          Fact[string]   `json:"bridge"` // the host bridge, such as pci0000:16
	Above           Fact[[]string] `json:"above"`  // the ports above, from the root port down
	Driver          Fact[string]   `json:"driver"`
	IOMMUGroup      Fact[int]      `json:"iommu_group"`
	ACS             Fact[ACS]      `json:"acs"` // of this device, if it is a port
}

const pciDevices = "sys/bus/pci/devices"

func (s sysfs) pciFacts() Fact[[]PCIFacts] {
	names, err := s.list(pciDevices)
	if err != nil {
		return Unknown[[]PCIFacts]("%s", reason(err))
	}
	var all []PCIFacts
	for _, name := range names {
		if isBusID(name) {
			all = append(all, s.pciDevice(name))
		}
	}
	slices.SortFunc(all, func(a, b PCIFacts) int { return cmp.Or(len(a.Bus)-len(b.Bus), cmp.Compare(a.Bus, b.Bus)) })
	return Known(all)
}

func (s sysfs) pciDevice(bus string) PCIFacts {
	dir := path.Join(pciDevices, bus)
	gts := func(name string) Fact[float64] {
		return then(s.text(dir, name), func(t string) (float64, error) {
			if f := parseGTs(t); f > 0 {
				return f, nil
			}
			return 0, fmt.Errorf("the kernel says %q", shorten(t))
		})
	}
	lanes := func(name string) Fact[int] {
		return then(s.number(dir, name), func(n int) (int, error) {
			if n <= 0 || n > 32 { // 255 is the kernel's unknown
				return 0, fmt.Errorf("the kernel says %d lanes", n)
			}
			return n, nil
		})
	}
	d := PCIFacts{
		Bus: bus, Class: s.text(dir, "class"), Vendor: s.text(dir, "vendor"), Device: s.text(dir, "device"),
		SubsystemVendor: s.text(dir, "subsystem_vendor"), SubsystemDevice: s.text(dir, "subsystem_device"),
		GTs: gts("current_link_speed"), MaxGTs: gts("max_link_speed"), Width: lanes("current_link_width"), MaxWidth: lanes("max_link_width"),
		Driver: s.baseOf(dir, "driver"),
	}
	d.NUMA = then(s.number(dir, "numa_node"), func(n int) (int, error) {
		if n < 0 {
			return 0, errors.New("the firmware gives no NUMA node (-1)")
		}
		return n, nil
	})
	d.IOMMUGroup = then(s.baseOf(dir, "iommu_group"), strconv.Atoi)
	to, err := s.link(dir)
	d.Above = factOf(portsAbove(to, bus), err)
	d.Bridge = factOf(hostBridge(to), err)
	if isBridgeClass(d.Class.Or("")) {
		b, err := s.bytes(path.Join(dir, "config"))
		d.ACS = then(factOf(b, err), ParseACS)
	} else {
		d.ACS = Unknown[ACS]("it is no port")
	}
	return d
}

// baseOf is the last element of where a link leads.
func (s sysfs) baseOf(elem ...string) Fact[string] {
	to, err := s.link(elem...)
	if err != nil {
		return Unknown[string]("%s", reason(err))
	}
	return Known(path.Base(to))
}

func isBridgeClass(class string) bool { return strings.HasPrefix(class, "0x0604") }

// portsAbove are the devices in a path such as sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0 above the last.
func portsAbove(to, bus string) []string {
	above := []string{}
	for elem := range strings.SplitSeq(to, "/") {
		if isBusID(elem) && elem != bus {
			above = append(above, elem)
		}
	}
	return above
}

func hostBridge(to string) string {
	for elem := range strings.SplitSeq(to, "/") {
		if strings.HasPrefix(elem, "pci") && strings.Contains(elem, ":") {
			return elem
		}
	}
	return ""
}

// pciOf is the device on PCI that a device in sysfs belongs to: the last one in its path.
func (s sysfs) pciOf(elem ...string) Fact[string] {
	to, err := s.link(elem...)
	if err != nil {
		return Unknown[string]("%s", reason(err))
	}
	ids := portsAbove(to, "")
	if len(ids) == 0 {
		return Unknown[string]("it is not on PCI: /%s", to)
	}
	return Known(ids[len(ids)-1])
}

// iommu looks at what the IOMMUs do by default: the groups' types say so on kernels from 5.11 on.
func (s sysfs) iommu() Fact[IOMMU] {
	units, err := s.list("sys/class/iommu")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := fs.Stat(s.root, "sys/bus/pci"); err != nil {
			return Unknown[IOMMU]("%s", reason(err))
		}
		return Known(IOMMUOff)
	case err != nil:
		return Unknown[IOMMU]("%s", reason(err))
	case len(units) == 0:
		return Known(IOMMUOff)
	}
	groups, err := s.numbered("", "sys/kernel/iommu_groups")
	if err != nil {
		return Unknown[IOMMU]("%s", reason(err))
	}
	mode := Unknown[IOMMU]("no group of /sys/kernel/iommu_groups says its type")
	for _, g := range groups {
		switch t, ok := s.text("sys/kernel/iommu_groups", strconv.Itoa(g), "type").Get(); {
		case !ok:
		case t == "identity":
			if !mode.known {
				mode = Known(IOMMUPassthrough)
			}
		default: // DMA, DMA-FQ, blocked
			return Known(IOMMUTranslate)
		}
	}
	return mode
}
