package topology

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseBusID returns a PCI bus id in the kernel's form: domain of 4 (or, with virtual domains, up to 8) hexadecimal digits,
// bus, device and function, in lower case: "0000:17:00.0". It takes upper case, NVML's 8-digit domains, and ids without domain.
func ParseBusID(s string) (string, error) {
	parts := strings.Split(strings.TrimSpace(s), ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	fail := fmt.Errorf("bus id %q; want one like 0000:17:00.0", s)
	if len(parts) != 3 {
		return "", fail
	}
	slot, function, ok := strings.Cut(parts[2], ".")
	if !ok {
		return "", fail
	}
	var v [4]uint64
	for i, f := range []struct {
		text string
		bits int
	}{{parts[0], 32}, {parts[1], 8}, {slot, 8}, {function, 4}} {
		n, err := strconv.ParseUint(f.text, 16, f.bits)
		if err != nil {
			return "", fail
		}
		v[i] = n
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", v[0], v[1], v[2], v[3]), nil
}

// isBusID reports whether s is a bus id as the kernel writes it.
func isBusID(s string) bool {
	canonical, err := ParseBusID(s)
	return err == nil && canonical == s
}
